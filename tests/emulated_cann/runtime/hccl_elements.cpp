// Element types of the emulated HCCL: their sizes, and how two of them are reduced to one.
#include <cmath>
#include <cstring>

#include "hccl.h"

namespace {
float fromBfloat(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}
uint16_t toBfloat(float value) {
    if (std::isnan(value))
        return 0x7fc0;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
}
float fromHalf(uint16_t bits) {
    int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? ldexpf(1024 + fraction, exponent - 25)
                                 : ldexpf(fraction, -24);
    return bits >> 15 ? -value : value;
}
uint16_t toHalf(float value) {
    uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    value = fabsf(value);
    if (std::isnan(value))
        return 0x7e00;
    if (value >= 65520.f)
        return sign | 0x7c00;
    if (value < ldexpf(1, -14))
        return sign | (uint16_t)nearbyintf(ldexpf(value, 24));
    int exponent;
    float fraction = frexpf(value, &exponent);                   // in [0.5, 1)
    uint32_t rounded = (uint32_t)nearbyintf(ldexpf(fraction, 11));  // 1024 to 2048; a carry moves into the exponent
    return sign | (uint16_t)(((exponent + 14) << 10) + (rounded - 1024));
}

template <class T>
T combine(T a, T b, HcclReduceOp op) {
    switch (op) {
        case HCCL_REDUCE_SUM: return T(a + b);
        case HCCL_REDUCE_PROD: return T(a * b);
        case HCCL_REDUCE_MAX: return a < b ? b : a;
        default: return b < a ? b : a;
    }
}
template <class T>
void accumulateAs(void* into, const void* from, uint64_t count, HcclReduceOp op) {
    for (uint64_t i = 0; i < count; i++) ((T*)into)[i] = combine(((T*)into)[i], ((const T*)from)[i], op);
}
template <float (*decode)(uint16_t), uint16_t (*encode)(float)>
void accumulateCoded(void* into, const void* from, uint64_t count, HcclReduceOp op) {
    auto result = (uint16_t*)into;
    for (uint64_t i = 0; i < count; i++)
        result[i] = encode(combine(decode(result[i]), decode(((const uint16_t*)from)[i]), op));
}
}  // namespace

int sizeOf(HcclDataType type) {
    switch (type) {
        case HCCL_DATA_TYPE_INT8:
        case HCCL_DATA_TYPE_UINT8:
        case HCCL_DATA_TYPE_FP8E4M3:
        case HCCL_DATA_TYPE_FP8E5M2:
        case HCCL_DATA_TYPE_FP8E8M0:
        case HCCL_DATA_TYPE_HIF8: return 1;
        case HCCL_DATA_TYPE_INT16:
        case HCCL_DATA_TYPE_UINT16:
        case HCCL_DATA_TYPE_FP16:
        case HCCL_DATA_TYPE_BFP16: return 2;
        case HCCL_DATA_TYPE_INT32:
        case HCCL_DATA_TYPE_UINT32:
        case HCCL_DATA_TYPE_FP32: return 4;
        case HCCL_DATA_TYPE_INT64:
        case HCCL_DATA_TYPE_UINT64:
        case HCCL_DATA_TYPE_FP64: return 8;
        default: return 0;
    }
}

// HCCL reduces neither float64 nor unsigned types wider than a byte.
bool isReducible(HcclDataType type) {
    switch (type) {
        case HCCL_DATA_TYPE_INT8:
        case HCCL_DATA_TYPE_UINT8:
        case HCCL_DATA_TYPE_INT16:
        case HCCL_DATA_TYPE_INT32:
        case HCCL_DATA_TYPE_INT64:
        case HCCL_DATA_TYPE_FP32:
        case HCCL_DATA_TYPE_FP16:
        case HCCL_DATA_TYPE_BFP16: return true;
        default: return false;
    }
}

void accumulate(void* into, const void* from, uint64_t count, HcclDataType type, HcclReduceOp op) {
    switch (type) {
        case HCCL_DATA_TYPE_INT8: return accumulateAs<int8_t>(into, from, count, op);
        case HCCL_DATA_TYPE_UINT8: return accumulateAs<uint8_t>(into, from, count, op);
        case HCCL_DATA_TYPE_INT16: return accumulateAs<int16_t>(into, from, count, op);
        case HCCL_DATA_TYPE_INT32: return accumulateAs<int32_t>(into, from, count, op);
        case HCCL_DATA_TYPE_INT64: return accumulateAs<int64_t>(into, from, count, op);
        case HCCL_DATA_TYPE_FP32: return accumulateAs<float>(into, from, count, op);
        case HCCL_DATA_TYPE_BFP16: return accumulateCoded<fromBfloat, toBfloat>(into, from, count, op);
        case HCCL_DATA_TYPE_FP16: return accumulateCoded<fromHalf, toHalf>(into, from, count, op);
        default: return;
    }
}
