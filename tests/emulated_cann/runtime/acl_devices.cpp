// Devices of the emulated runtime: contexts, errors, what they say of themselves.  Settings are taken and ignored.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "acl.h"

namespace {
const int kNumDevices = 8;
char contexts[kNumDevices];  // one address per device
thread_local int device = -1;  // of this thread; -1: none was set

std::mutex textLock;
auto& text = *new std::string;  // of the last error
std::atomic<int> deviceError{0};
}  // namespace

int setting(const char* name, int otherwise) {
    const char* found = getenv(name);
    return found && *found ? atoi(found) : otherwise;
}
bool isTraced() {
    static bool wanted = setting("FAKE_CANN_TRACE", 0);
    return wanted;
}
int currentDevice() {
    return device < 0 ? 0 : device;
}
void setDeviceError(int error) {
    deviceError = error;
}

EXP void fakeSetErrMsg(const char* message) {
    std::lock_guard<std::mutex> lock(textLock);
    text = message;
}
EXP int fakeDeviceError(void) {
    return deviceError;
}
EXP const char* aclGetRecentErrMsg() {
    static thread_local std::string copy;
    std::lock_guard<std::mutex> lock(textLock);
    copy = text;
    return copy.empty() ? nullptr : copy.c_str();
}
EXP aclError aclrtGetLastError(int) {
    return deviceError;
}
EXP aclError aclrtPeekAtLastError(int) {
    return deviceError;
}

EXP aclError aclInit(const char*) {
    return 0;
}
EXP aclError aclFinalize() {
    return 0;
}
EXP aclError aclrtGetDeviceCount(uint32_t* out) {
    *out = kNumDevices;
    return 0;
}
EXP aclError aclrtSetDevice(int32_t index) {
    if (index < 0 || index >= kNumDevices)
        return ACL_ERROR_INVALID_DEVICE;
    device = index;
    return 0;
}
EXP aclError aclrtResetDevice(int32_t) {
    return 0;
}
EXP aclError aclrtResetDeviceForce(int32_t) {
    return 0;
}
EXP aclError aclrtGetDevice(int32_t* out) {
    if (device < 0)
        return ACL_ERROR_RT_CONTEXT_NULL;
    *out = device;
    return 0;
}
EXP aclError aclrtCreateContext(aclrtContext* out, int32_t index) {
    if (aclError error = aclrtSetDevice(index))
        return error;
    *out = &contexts[index];
    return 0;
}
EXP aclError aclrtDestroyContext(aclrtContext) {
    return 0;
}
EXP aclError aclrtGetCurrentContext(aclrtContext* out) {
    if (device < 0)
        return ACL_ERROR_RT_CONTEXT_NULL;
    *out = &contexts[device];
    return 0;
}
EXP aclError aclrtSetCurrentContext(aclrtContext context) {
    auto index = (char*)context - contexts;
    if (index < 0 || index >= kNumDevices)
        return ACL_ERROR_INVALID_PARAM;
    device = (int)index;
    return 0;
}
EXP aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* isActive) {
    if (flags)
        *flags = 0;
    if (isActive)
        *isActive = 1;
    return 0;
}
EXP aclError aclrtGetRunMode(int* out) {
    *out = 1;  // the process runs on the host
    return 0;
}

EXP const char* aclrtGetSocName() {
    return "Ascend910B2";
}
EXP aclError aclGetDeviceCapability(uint32_t, int what, int64_t* out) {
    *out = what == 0 ? 24 : what == 1 ? 48 : 192LL << 20;  // matrix cores, vector cores, second-level cache
    return 0;
}
EXP aclError aclrtGetDeviceInfo(uint32_t, int what, int64_t* out) {
    switch (what) {
        case 101:  // cores
        case 102: *out = 24; break;
        case 201: *out = 48; break;
        case 301: *out = 64LL << 30; break;  // memory
        case 302: *out = 192LL << 20; break;
        default: *out = 0;
    }
    return 0;
}
EXP aclError aclrtGetDeviceResLimit(int32_t, int, uint32_t* out) {
    *out = 24;
    return 0;
}
EXP aclError aclrtGetStreamResLimit(aclrtStream, int, uint32_t* out) {
    *out = 24;
    return 0;
}
EXP aclError aclrtGetResInCurrentThread(int, uint32_t* out) {
    *out = 24;
    return 0;
}
EXP aclError aclrtDeviceCanAccessPeer(int32_t* out, int32_t, int32_t) {
    *out = 1;
    return 0;
}
EXP aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) {
    return 0;
}
EXP aclError aclrtDeviceGetBareTgid(int32_t* out) {
    *out = (int32_t)getpid();
    return 0;
}
EXP aclError aclrtSetOpExecuteTimeOut(uint32_t) {
    return 0;
}
EXP aclError aclrtSetOpExecuteTimeOutV2(uint64_t wanted, uint64_t* got) {
    if (got)
        *got = wanted;
    return 0;
}
EXP aclError aclrtSetOpWaitTimeout(uint32_t) {
    return 0;
}
EXP aclError aclrtSetDeviceSatMode(int) {
    return 0;
}
EXP aclError aclrtGetSysParamOpt(int, int64_t* out) {
    *out = 0;
    return 0;
}
EXP aclError aclrtSetSysParamOpt(int, int64_t) {
    return 0;
}
EXP aclError aclrtCtxSetSysParamOpt(int, int64_t) {
    return 0;
}
EXP size_t aclGetCompileoptSize(int) {
    return 16;
}
EXP aclError aclGetCompileopt(int, char* out, size_t room) {
    snprintf(out, room, "disable");
    return 0;
}
EXP aclError aclSetCompileopt(int, const char*) {
    return 0;
}
EXP size_t aclDataTypeSize(int type) {
    switch (type) {
        case ACL_INT8:
        case ACL_UINT8:
        case ACL_BOOL: return 1;
        case ACL_FLOAT16:
        case ACL_INT16:
        case ACL_UINT16:
        case ACL_BF16: return 2;
        case ACL_FLOAT:
        case ACL_INT32:
        case ACL_UINT32: return 4;
        case ACL_DOUBLE:
        case ACL_INT64:
        case ACL_UINT64: return 8;
        default: return 0;
    }
}
EXP void* aclrtAllocatorCreateDesc() {
    return malloc(64);
}
EXP aclError aclrtAllocatorDestroyDesc(void* description) {
    free(description);
    return 0;
}

struct CannVersion {
    char version[128], majorVersion[64], minorVersion[64], releaseVersion[64], patchVersion[64], reserved[128];
};
EXP aclError aclsysGetCANNVersion(int, CannVersion* out) {
    *out = {"8.5.0", "8", "5", "0", "", ""};
    return 0;
}
EXP aclError aclsysGetVersionStr(char*, char* out) {
    strcpy(out, "8.5.0");
    return 0;
}
EXP void aclAppLog(int level, const char* function, const char*, uint32_t line, const char* format, ...) {
    static int least = setting("FAKE_CANN_LOG", 9);  // 0: all; 9: nothing
    if (level < least)
        return;
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fprintf(stderr, "[acl log %d] %s:%u %s\n", level, function, line, message);
}

// Channels through which MindSpore's device prints and dumps: nothing ever arrives.
struct Channel {
    std::atomic<bool> isStopped{false};
};
EXP void* acltdtCreateChannel(uint32_t, const char*) {
    return new Channel;
}
EXP void* acltdtCreateChannelWithCapacity(uint32_t, const char*, size_t) {
    return new Channel;
}
EXP aclError acltdtStopChannel(Channel* channel) {
    if (channel)
        channel->isStopped = true;
    return 0;
}
EXP aclError acltdtCleanChannel(Channel*) {
    return 0;
}
EXP aclError acltdtDestroyChannel(Channel* channel) {
    return acltdtStopChannel(channel);  // never freed: a receiver may still look at it
}
EXP void* acltdtCreateDataset() {
    return malloc(64);
}
EXP aclError acltdtDestroyDataset(void* dataset) {
    free(dataset);
    return 0;
}
EXP aclError acltdtReceiveTensor(Channel* channel, void*, int32_t milliseconds) {
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds < 0 ? 1000 : milliseconds);
    while (channel && !channel->isStopped && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return ACL_ERROR_RT_QUEUE_EMPTY;
}
