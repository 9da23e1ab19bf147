// The operators that torch_npu starts from C++ without torch's dispatcher, so that Python can't take their place:
// fills, casts, moves and paddings of plain types.  Every other one is refused by name.
#include <acl/acl.h>
#include <acl/acl_op_compiler.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "internal.h"

namespace {
struct Description {
    aclDataType type;
    std::vector<int64_t> sizes;
    aclFormat format;
    bool onHost = false;
    size_t numel() const {
        size_t n = 1;
        for (auto size : sizes) n *= size;
        return n;
    }
};
struct Buffer {
    char* data;
    size_t bytes;
    std::shared_ptr<std::vector<char>> copy;  // of a constant on the host, which may be gone when the stream is there
};
struct Operand {
    Description description;
    Buffer buffer;
};
using Operands = std::vector<Operand>;

// Call f with a null pointer of the C++ type; false for types that are none.
template <class F>
bool withType(aclDataType type, F f) {
    switch (type) {
        case ACL_BOOL: f((bool*)nullptr); return true;
        case ACL_INT8: f((int8_t*)nullptr); return true;
        case ACL_UINT8: f((uint8_t*)nullptr); return true;
        case ACL_INT16: f((int16_t*)nullptr); return true;
        case ACL_INT32: f((int32_t*)nullptr); return true;
        case ACL_INT64: f((int64_t*)nullptr); return true;
        case ACL_FLOAT: f((float*)nullptr); return true;
        case ACL_DOUBLE: f((double*)nullptr); return true;
        default: return false;
    }
}
bool isPlain(aclDataType type) {
    return withType(type, [](auto*) {});
}

void cast(const Operand& in, const Operand& out) {
    withType(in.description.type, [&](auto* from) {
        withType(out.description.type, [&](auto* to) {
            using From = std::remove_pointer_t<decltype(from)>;
            using To = std::remove_pointer_t<decltype(to)>;
            auto x = (const From*)in.buffer.data;
            auto y = (To*)out.buffer.data;
            for (size_t i = 0, n = out.description.numel(); i < n; i++) y[i] = (To)x[i];
        });
    });
}
void fill(const Buffer& value, const Buffer& out) {
    for (size_t at = 0; at + value.bytes <= out.bytes; at += value.bytes)
        memcpy(out.data + at, value.data, value.bytes);
}

// paddings: for each dimension, how many elements are added in front and behind.
void pad(const Operand& in, const Operand& paddings, const Buffer* value, const Operand& out) {
    auto& sizes = in.description.sizes;
    size_t bytes = out.buffer.bytes / out.description.numel();
    std::vector<char> zero(bytes, 0);
    fill(value ? *value : Buffer{zero.data(), bytes, nullptr}, out.buffer);
    auto front = [&](size_t dim) {
        return paddings.description.type == ACL_INT64 ? ((int64_t*)paddings.buffer.data)[2 * dim]
                                                      : ((int32_t*)paddings.buffer.data)[2 * dim];
    };
    for (size_t index = 0, n = in.description.numel(); index < n; index++) {
        size_t rest = index, to = 0, stride = 1;
        for (size_t dim = sizes.size(); dim-- > 0;) {
            to += (rest % sizes[dim] + front(dim)) * stride;
            rest /= sizes[dim];
            stride *= out.description.sizes[dim];
        }
        memcpy(out.buffer.data + to * bytes, in.buffer.data + index * bytes, bytes);
    }
}

void onStream(aclrtStream stream, std::function<void()> work) {
    auto run = [](void* argument) {
        std::unique_ptr<std::function<void()>> task((std::function<void()>*)argument);
        (*task)();
        return 0;
    };
    fakeStreamPush(stream, run, new std::function<void()>(std::move(work)));
}

aclError refuse(const std::string& name, const Operands& inputs, const Operands& outputs) {
    std::string text = "EE9999: the emulated CANN has no operator " + name + " for types";
    for (auto* operands : {&inputs, &outputs})
        for (auto& operand : *operands) text += " " + std::to_string(operand.description.type);
    fakeSetErrMsg(text.c_str());
    fprintf(stderr, "%s\n", text.c_str());
    return ACL_ERROR_API_NOT_SUPPORT;
}

aclError execute(const std::string& name, const Operands& in, const Operands& out, aclrtStream stream) {
    bool one = out.size() == 1 && in.size() >= 1;
    if (name == "Fill" && in.size() == 2 && one && in[1].description.type == out[0].description.type)
        onStream(stream, [value = in[1].buffer, result = out[0].buffer] { fill(value, result); });
    else if (name == "ZerosLike" && out.size() == 1)
        onStream(stream, [result = out[0].buffer] { memset(result.data, 0, result.bytes); });
    else if ((name == "TensorMove" || name == "Identity") && one && in[0].buffer.bytes == out[0].buffer.bytes)
        onStream(stream, [from = in[0].buffer, to = out[0].buffer] { memmove(to.data, from.data, to.bytes); });
    else if (name == "Cast" && one && isPlain(in[0].description.type) && isPlain(out[0].description.type))
        onStream(stream, [from = in[0], to = out[0]] { cast(from, to); });
    else if (name == "PadV3" && in.size() >= 2 && one && in[0].description.type == out[0].description.type)
        onStream(stream, [in, to = out[0]] { pad(in[0], in[1], in.size() > 2 ? &in[2].buffer : nullptr, to); });
    else
        return refuse(name, in, out);
    return 0;
}

template <class Descriptions, class Buffers>
Operands gather(int count, Descriptions descriptions, Buffers buffers) {
    Operands operands;
    for (int i = 0; i < count; i++) {
        Operand operand{*(const Description*)descriptions[i], *(const Buffer*)buffers[i]};
        Buffer& buffer = operand.buffer;
        if (operand.description.onHost && buffer.data) {
            buffer.copy = std::make_shared<std::vector<char>>(buffer.data, buffer.data + buffer.bytes);
            buffer.data = buffer.copy->data();
        }
        operands.push_back(operand);
    }
    return operands;
}
struct Attributes {};
}  // namespace

EXP aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes) {
    return (aclDataBuffer*)new Buffer{(char*)data, bytes, nullptr};
}
EXP aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
    delete (Buffer*)buffer;
    return 0;
}
EXP aclTensorDesc* aclCreateTensorDesc(aclDataType type, int count, const int64_t* sizes, aclFormat format) {
    return (aclTensorDesc*)new Description{type, std::vector<int64_t>(sizes, sizes + count), format};
}
EXP void aclDestroyTensorDesc(const aclTensorDesc* description) {
    delete (Description*)description;
}
EXP aclDataType aclGetTensorDescType(const aclTensorDesc* description) {
    return ((Description*)description)->type;
}
EXP aclFormat aclGetTensorDescFormat(const aclTensorDesc* description) {
    return ((Description*)description)->format;
}
EXP size_t aclGetTensorDescNumDims(const aclTensorDesc* description) {
    return ((Description*)description)->sizes.size();
}
EXP aclError aclGetTensorDescDimV2(const aclTensorDesc* description, size_t index, int64_t* size) {
    auto& sizes = ((Description*)description)->sizes;
    if (index >= sizes.size())
        return ACL_ERROR_INVALID_PARAM;
    *size = sizes[index];
    return 0;
}
EXP aclError aclSetTensorPlaceMent(aclTensorDesc* description, aclMemType place) {
    ((Description*)description)->onHost = place != ACL_MEMTYPE_DEVICE;
    return 0;
}
EXP aclopAttr* aclopCreateAttr() {
    return (aclopAttr*)new Attributes;
}
EXP void aclopDestroyAttr(const aclopAttr* attributes) {
    delete (Attributes*)attributes;
}
EXP aclError aclopCompileAndExecute(const char* name, int numInputs, const aclTensorDesc* const* inputs,
                                    const aclDataBuffer* const* inputData, int numOutputs,
                                    const aclTensorDesc* const* outputs, aclDataBuffer* const* outputData,
                                    const aclopAttr*, aclopEngineType, aclopCompileType, const char*,
                                    aclrtStream stream) {
    return execute(name, gather(numInputs, inputs, inputData), gather(numOutputs, outputs, outputData), stream);
}
EXP aclError aclopCompileAndExecuteV2(const char* name, int numInputs, aclTensorDesc** inputs,
                                      aclDataBuffer** inputData, int numOutputs, aclTensorDesc** outputs,
                                      aclDataBuffer** outputData, aclopAttr*, aclopEngineType, aclopCompileType,
                                      const char*, aclrtStream stream) {
    return execute(name, gather(numInputs, inputs, inputData), gather(numOutputs, outputs, outputData), stream);
}
