// Memory of the emulated device, which is host memory, and copies.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "acl.h"

namespace {
class Blocks {
  public:
    void add(const void* start, size_t bytes) { sizes_[(uintptr_t)start] = bytes; }
    // Bytes of the block that starts there; 0 if there is none.
    size_t remove(const void* start) {
        auto found = sizes_.find((uintptr_t)start);
        if (found == sizes_.end())
            return 0;
        size_t bytes = found->second;
        sizes_.erase(found);
        return bytes;
    }
    bool contains(const void* pointer) const {
        auto next = sizes_.upper_bound((uintptr_t)pointer);
        return next != sizes_.begin() && (uintptr_t)pointer < std::prev(next)->first + std::prev(next)->second;
    }

  private:
    std::map<uintptr_t, size_t> sizes_;
};

std::mutex lock;  // of all below
auto& deviceBlocks = *new Blocks;
auto& hostBlocks = *new Blocks;
size_t used = 0;

const size_t kTotal = (size_t)64 << 30;

// Every byte 0xFF is NaN in all float types.
void poison(void* memory, size_t bytes) {
    static bool wanted = setting("FAKE_NPU_POISON", 0);
    if (wanted)
        memset(memory, 0xFF, bytes);
}
void* reserve(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}
aclError allocate(void** out, size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    void* memory = bytes && used + bytes <= kTotal ? reserve(bytes) : nullptr;
    if (!memory)
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    poison(memory, bytes);
    deviceBlocks.add(memory, bytes);
    used += bytes;
    *out = memory;
    return 0;
}
}  // namespace

EXP int fakeMemoryKind(const void* pointer) {
    std::lock_guard<std::mutex> guard(lock);
    return deviceBlocks.contains(pointer) ? 2 : hostBlocks.contains(pointer) ? 1 : 0;
}

EXP aclError aclrtMalloc(void** out, size_t bytes, int) {
    return allocate(out, bytes);
}
EXP aclError aclrtMallocAlign32(void** out, size_t bytes, int) {
    return allocate(out, bytes);
}
EXP aclError aclrtFree(void* memory) {
    synchronizeDevice(-1);  // as on the device, nothing is freed under running work
    std::lock_guard<std::mutex> guard(lock);
    size_t bytes = deviceBlocks.remove(memory);
    if (!bytes)
        return ACL_ERROR_INVALID_PARAM;
    munmap(memory, bytes);
    used -= bytes;
    return 0;
}
EXP aclError aclrtMallocHost(void** out, size_t bytes) {
    if (posix_memalign(out, 64, bytes ? bytes : 64))
        return ACL_ERROR_BAD_ALLOC;
    std::lock_guard<std::mutex> guard(lock);
    hostBlocks.add(*out, bytes);
    return 0;
}
EXP aclError aclrtFreeHost(void* memory) {
    {
        std::lock_guard<std::mutex> guard(lock);
        hostBlocks.remove(memory);
    }
    free(memory);
    return 0;
}
EXP aclError aclrtHostRegister(void* memory, uint64_t bytes, int, void** onDevice) {
    std::lock_guard<std::mutex> guard(lock);
    hostBlocks.add(memory, bytes);
    if (onDevice)
        *onDevice = memory;
    return 0;
}
EXP aclError aclrtHostUnregister(void* memory) {
    std::lock_guard<std::mutex> guard(lock);
    hostBlocks.remove(memory);
    return 0;
}
EXP aclError aclrtGetMemInfo(int, size_t* free, size_t* total) {
    std::lock_guard<std::mutex> guard(lock);
    *total = kTotal;
    *free = kTotal - used;
    return 0;
}

// Virtual memory, as MindSpore's pool and torch_npu's expandable segments take it: an address range is real memory from
// the start, and physical memory is only counted.
EXP aclError aclrtReserveMemAddress(void** out, size_t bytes, size_t, void*, uint64_t) {
    void* memory = reserve(bytes);
    if (!memory)
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    std::lock_guard<std::mutex> guard(lock);
    deviceBlocks.add(memory, bytes);
    *out = memory;
    return 0;
}
EXP aclError aclrtReleaseMemAddress(void* memory) {
    std::lock_guard<std::mutex> guard(lock);
    size_t bytes = deviceBlocks.remove(memory);
    if (!bytes)
        return ACL_ERROR_INVALID_PARAM;
    munmap(memory, bytes);
    return 0;
}
EXP aclError aclrtMallocPhysical(aclrtDrvMemHandle* out, size_t bytes, const void*, uint64_t) {
    std::lock_guard<std::mutex> guard(lock);
    if (used + bytes > kTotal)
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    used += bytes;
    *out = new size_t(bytes);
    return 0;
}
EXP aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
    std::unique_ptr<size_t> bytes((size_t*)handle);
    std::lock_guard<std::mutex> guard(lock);
    used -= *bytes;
    return 0;
}
EXP aclError aclrtMapMem(void* memory, size_t bytes, size_t, aclrtDrvMemHandle, uint64_t) {
    poison(memory, bytes);
    return 0;
}
EXP aclError aclrtUnmapMem(void*) {
    return 0;
}

EXP aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, int) {
    if (bytes > room)
        return ACL_ERROR_INVALID_PARAM;
    if (isTraced())
        fprintf(stderr, "[acl] copy %zu bytes from %p to %p\n", bytes, from, to);
    memmove(to, from, bytes);
    return fakeDeviceError();
}
EXP aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, int kind, aclrtStream handle) {
    auto stream = findStream(handle);
    if (bytes > room)
        return ACL_ERROR_INVALID_PARAM;
    if (!stream)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    if (isTraced())
        fprintf(stderr, "[acl] copy %zu bytes from %p to %p on stream %d\n", bytes, from, to, stream->id);
    if (kind == ACL_MEMCPY_HOST_TO_DEVICE && fakeMemoryKind(from) != 1) {
        // A driver has read memory that isn't pinned before it returns.
        auto copy = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
        stream->push([=] {
            memcpy(to, copy->data(), bytes);
            return 0;
        });
    } else {
        stream->push([=] {
            memmove(to, from, bytes);
            return 0;
        });
    }
    return 0;
}
EXP aclError aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t bytes, int kind,
                                           aclrtStream handle) {
    return aclrtMemcpyAsync(to, room, from, bytes, kind, handle);
}
EXP aclError aclrtMemset(void* to, size_t room, int32_t value, size_t bytes) {
    if (bytes > room)
        return ACL_ERROR_INVALID_PARAM;
    memset(to, value, bytes);
    return 0;
}
EXP aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t bytes, aclrtStream handle) {
    auto stream = findStream(handle);
    if (bytes > room)
        return ACL_ERROR_INVALID_PARAM;
    if (!stream)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    stream->push([=] {
        memset(to, value, bytes);
        return 0;
    });
    return 0;
}
