// Emulated Ascend runtime (libascendcl): "device memory" is host memory, a stream is
// one worker thread with a FIFO of tasks, an event is a generation counter.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cann.h"

using Clock = std::chrono::steady_clock;
typedef void (*fakeHostFunc)(void*);

static int envInt(const char* n, int d) {
    const char* v = getenv(n);
    return v && *v ? atoi(v) : d;
}
static bool traceOn() {
    static int t = envInt("FAKE_CANN_TRACE", 0);
    return t;
}
#define TRACE(...)                                       \
    do {                                                 \
        if (traceOn()) {                                 \
            fprintf(stderr, "[acl %d] ", (int)getpid()); \
            fprintf(stderr, __VA_ARGS__);                \
            fputc('\n', stderr);                         \
        }                                                \
    } while (0)

// ---------------------------------------------------------------- error text
static std::mutex gErrMu;
static std::string& errText() {
    static auto* s = new std::string;
    return *s;
}
static std::atomic<int> gDevErr{0};
EXP void fakeSetErrMsg(const char* m) {
    std::lock_guard<std::mutex> l(gErrMu);
    errText() = m;
}
EXP int fakeDeviceError(void) {
    return gDevErr.load();
}
EXP const char* aclGetRecentErrMsg() {
    std::lock_guard<std::mutex> l(gErrMu);
    static thread_local std::string out;
    out = errText();
    return out.empty() ? nullptr : out.c_str();
}

// ---------------------------------------------------------------- streams
struct Task {
    std::function<int()> run;
    bool always;
};
struct Stream {
    std::mutex mu;
    std::condition_variable cvWork, cvIdle;
    std::deque<Task> q;
    bool busy = false, stop = false;
    int err = 0, dev = 0, id = 0;
    void loop() {
        std::unique_lock<std::mutex> l(mu);
        for (;;) {
            cvWork.wait(l, [&] { return stop || !q.empty(); });
            if (q.empty())
                return;
            Task t = std::move(q.front());
            q.pop_front();
            busy = true;
            int skip = err && !t.always;
            l.unlock();
            int e = skip ? 0 : t.run();
            t.run = nullptr;  // drop captures outside the lock
            l.lock();
            if (e && !err) {
                err = e;
                gDevErr = e;
            }
            busy = false;
            if (q.empty())
                cvIdle.notify_all();
        }
    }
    void push(std::function<int()> f, bool always = false) {
        {
            std::lock_guard<std::mutex> l(mu);
            q.push_back({std::move(f), always});
        }
        cvWork.notify_one();
    }
    bool idle() {
        std::lock_guard<std::mutex> l(mu);
        return q.empty() && !busy;
    }
    aclError sync(int ms) {
        std::unique_lock<std::mutex> l(mu);
        auto ok = [&] {
            return q.empty() && !busy;
        };
        if (ms < 0)
            cvIdle.wait(l, ok);
        else if (!cvIdle.wait_for(l, std::chrono::milliseconds(ms), ok))
            return ACL_ERROR_RT_STREAM_SYNC_TIMEOUT;
        return err;
    }
};
using StreamP = std::shared_ptr<Stream>;
static std::mutex gMu;
static std::map<void*, StreamP>& streams() {
    static auto* m = new std::map<void*, StreamP>;
    return *m;
}
static std::map<int, StreamP>& defStreams() {
    static auto* m = new std::map<int, StreamP>;
    return *m;
}
static thread_local int tDev = -1;
static int curDev() {
    return tDev < 0 ? 0 : tDev;
}
static std::atomic<int> gStreamId{0};

static StreamP newStream(int dev) {
    auto s = std::make_shared<Stream>();
    s->dev = dev;
    s->id = gStreamId++;
    std::thread([s] { s->loop(); }).detach();
    return s;
}
static StreamP getStream(void* h) {
    std::lock_guard<std::mutex> l(gMu);
    if (!h) {
        auto& d = defStreams()[curDev()];
        if (!d)
            d = newStream(curDev());
        return d;
    }
    auto it = streams().find(h);
    return it == streams().end() ? nullptr : it->second;
}
EXP void fakeStreamPush(void* h, int (*fn)(void*), void* arg) {
    auto s = getStream(h);
    if (!s) {
        fprintf(stderr, "[fake_acl] push on unknown stream %p\n", h);
        abort();
    }
    s->push([fn, arg] { return fn(arg); });
}
EXP int fakeStreamId(void* h) {
    auto s = getStream(h);
    return s ? s->id : -1;
}
static aclError makeStream(aclrtStream* out) {
    auto s = newStream(curDev());
    std::lock_guard<std::mutex> l(gMu);
    streams()[s.get()] = s;
    *out = s.get();
    TRACE("create stream %p dev %d", (void*)s.get(), s->dev);
    return 0;
}
EXP aclError aclrtCreateStream(aclrtStream* s) {
    return makeStream(s);
}
EXP aclError aclrtCreateStreamWithConfig(aclrtStream* s, uint32_t, uint32_t) {
    return makeStream(s);
}
static aclError killStream(aclrtStream h, bool wait) {
    StreamP s = getStream(h);
    if (!s || !h)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    if (wait)
        s->sync(-1);
    {
        std::lock_guard<std::mutex> l(gMu);
        streams().erase(h);
    }
    {
        std::lock_guard<std::mutex> l(s->mu);
        s->stop = true;
    }
    s->cvWork.notify_all();
    return 0;
}
EXP aclError aclrtDestroyStream(aclrtStream h) {
    return killStream(h, true);
}
EXP aclError aclrtDestroyStreamForce(aclrtStream h) {
    return killStream(h, false);
}
EXP aclError aclrtSynchronizeStreamWithTimeout(aclrtStream h, int32_t ms) {
    auto s = getStream(h);
    if (!s)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    return s->sync(ms);
}
EXP aclError aclrtSynchronizeStream(aclrtStream h) {
    return aclrtSynchronizeStreamWithTimeout(h, -1);
}
EXP aclError aclrtStreamQuery(aclrtStream h, int* st) {
    auto s = getStream(h);
    if (!s)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    *st = s->idle() ? 0 : 1;
    return 0;
}
EXP aclError aclrtStreamGetId(aclrtStream h, int32_t* id) {
    auto s = getStream(h);
    if (!s)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    *id = s->id;
    return 0;
}
static aclError syncDevice(int ms) {
    std::vector<StreamP> v;
    {
        std::lock_guard<std::mutex> l(gMu);
        for (auto& p : streams())
            if (p.second->dev == curDev())
                v.push_back(p.second);
        auto it = defStreams().find(curDev());
        if (it != defStreams().end())
            v.push_back(it->second);
    }
    aclError r = 0;
    for (auto& s : v) {
        aclError e = s->sync(ms);
        if (e && !r)
            r = e;
    }
    return r;
}
EXP aclError aclrtSynchronizeDevice() {
    return syncDevice(-1);
}
EXP aclError aclrtSynchronizeDeviceWithTimeout(int32_t ms) {
    return syncDevice(ms);
}
EXP aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) {
    return 0;
}
EXP aclError aclrtSetStreamAttribute(aclrtStream, int, void*) {
    return 0;
}
EXP aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) {
    return 0;
}
EXP aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* f) {
    *f = 0;
    return 0;
}
EXP aclError aclrtLaunchHostFunc(aclrtStream h, fakeHostFunc fn, void* a) {
    auto s = getStream(h);
    if (!s)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    s->push(
        [fn, a] {
            fn(a);
            return 0;
        },
        true);
    return 0;
}
EXP aclError aclrtLaunchCallback(fakeHostFunc fn, void* a, int, aclrtStream h) {
    return aclrtLaunchHostFunc(h, (fakeHostFunc)fn, a);
}
EXP aclError aclrtSubscribeReport(uint64_t, aclrtStream) {
    return 0;
}
EXP aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) {
    return 0;
}
EXP aclError aclrtProcessReport(int32_t ms) {
    usleep((ms > 0 ? ms : 100) * 1000);
    return ACL_ERROR_RT_REPORT_TIMEOUT;
}

// ---------------------------------------------------------------- events
struct Event {
    std::mutex mu;
    std::condition_variable cv;
    uint64_t recorded = 0, done = 0;
    int err = 0;
    Clock::time_point when;
};
using EventP = std::shared_ptr<Event>;
static std::map<void*, EventP>& events() {
    static auto* m = new std::map<void*, EventP>;
    return *m;
}
static EventP getEvent(void* h) {
    std::lock_guard<std::mutex> l(gMu);
    auto it = events().find(h);
    return it == events().end() ? nullptr : it->second;
}
static aclError makeEvent(aclrtEvent* out) {
    auto e = std::make_shared<Event>();
    std::lock_guard<std::mutex> l(gMu);
    events()[e.get()] = e;
    *out = e.get();
    return 0;
}
EXP aclError aclrtCreateEvent(aclrtEvent* e) {
    return makeEvent(e);
}
EXP aclError aclrtCreateEventWithFlag(aclrtEvent* e, uint32_t) {
    return makeEvent(e);
}
EXP aclError aclrtCreateEventExWithFlag(aclrtEvent* e, uint32_t) {
    return makeEvent(e);
}
EXP aclError aclrtDestroyEvent(aclrtEvent h) {
    std::lock_guard<std::mutex> l(gMu);
    return events().erase(h) ? 0 : ACL_ERROR_INVALID_RESOURCE_HANDLE;
}
EXP aclError aclrtRecordEvent(aclrtEvent h, aclrtStream sh) {
    auto e = getEvent(h);
    auto s = getStream(sh);
    if (!e || !s)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    uint64_t gen;
    {
        std::lock_guard<std::mutex> l(e->mu);
        gen = ++e->recorded;
    }
    Stream* raw = s.get();
    s->push(
        [e, gen, raw] {
            int serr;
            {
                std::lock_guard<std::mutex> l(raw->mu);
                serr = raw->err;
            }
            std::lock_guard<std::mutex> l(e->mu);
            if (gen > e->done)
                e->done = gen;
            e->err = serr;
            e->when = Clock::now();
            e->cv.notify_all();
            return 0;
        },
        true);
    return 0;
}
EXP aclError aclrtResetEvent(aclrtEvent h, aclrtStream) {
    return getEvent(h) ? 0 : ACL_ERROR_INVALID_RESOURCE_HANDLE;
}
EXP aclError aclrtStreamWaitEvent(aclrtStream sh, aclrtEvent h) {
    auto e = getEvent(h);
    auto s = getStream(sh);
    if (!e || !s)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    uint64_t gen;
    {
        std::lock_guard<std::mutex> l(e->mu);
        gen = e->recorded;
    }
    s->push([e, gen] {
        std::unique_lock<std::mutex> l(e->mu);
        e->cv.wait(l, [&] { return e->done >= gen; });
        return e->err;  // a failed producer poisons its consumers
    });
    return 0;
}
EXP aclError aclrtSynchronizeEventWithTimeout(aclrtEvent h, int32_t ms) {
    auto e = getEvent(h);
    if (!e)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    std::unique_lock<std::mutex> l(e->mu);
    uint64_t gen = e->recorded;
    auto ok = [&] {
        return e->done >= gen;
    };
    if (ms < 0)
        e->cv.wait(l, ok);
    else if (!e->cv.wait_for(l, std::chrono::milliseconds(ms), ok))
        return ACL_ERROR_RT_EVENT_SYNC_TIMEOUT;
    return e->err;
}
EXP aclError aclrtSynchronizeEvent(aclrtEvent h) {
    return aclrtSynchronizeEventWithTimeout(h, -1);
}
EXP aclError aclrtQueryEventStatus(aclrtEvent h, int* st) {
    auto e = getEvent(h);
    if (!e)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    std::lock_guard<std::mutex> l(e->mu);
    if (e->done >= e->recorded && e->err)
        return e->err;
    *st = e->done >= e->recorded ? 1 : 0;
    return 0;
}
EXP aclError aclrtQueryEventWaitStatus(aclrtEvent, int* st) {
    *st = 1;
    return 0;
}
EXP aclError aclrtEventElapsedTime(float* ms, aclrtEvent a, aclrtEvent b) {
    auto x = getEvent(a), y = getEvent(b);
    if (!x || !y)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    std::scoped_lock l(x->mu, y->mu);
    *ms = std::chrono::duration<float, std::milli>(y->when - x->when).count();
    return 0;
}
EXP aclError aclrtEventGetTimestamp(aclrtEvent h, uint64_t* t) {
    auto e = getEvent(h);
    if (!e)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    std::lock_guard<std::mutex> l(e->mu);
    *t = std::chrono::duration_cast<std::chrono::microseconds>(e->when.time_since_epoch()).count();
    return 0;
}

// ---------------------------------------------------------------- devices
static int nDev() {
    static int n = envInt("FAKE_NPU_COUNT", 8);
    return n;
}
EXP aclError aclInit(const char*) {
    TRACE("aclInit");
    return 0;
}
EXP aclError aclFinalize() {
    TRACE("aclFinalize");
    return 0;
}
EXP aclError aclrtGetDeviceCount(uint32_t* n) {
    *n = nDev();
    return 0;
}
EXP aclError aclrtSetDevice(int32_t d) {
    if (d < 0 || d >= nDev())
        return ACL_ERROR_INVALID_DEVICE;
    tDev = d;
    return 0;
}
EXP aclError aclrtResetDevice(int32_t) {
    return 0;
}
EXP aclError aclrtResetDeviceForce(int32_t) {
    return 0;
}
EXP aclError aclrtGetDevice(int32_t* d) {
    if (tDev < 0)
        return ACL_ERROR_RT_CONTEXT_NULL;
    *d = tDev;
    return 0;
}
static char gCtx[64];
EXP aclError aclrtGetCurrentContext(aclrtContext* c) {
    if (tDev < 0)
        return ACL_ERROR_RT_CONTEXT_NULL;
    *c = &gCtx[tDev];
    return 0;
}
EXP aclError aclrtSetCurrentContext(aclrtContext c) {
    long d = (char*)c - gCtx;
    if (d < 0 || d >= 64)
        return ACL_ERROR_INVALID_PARAM;
    tDev = (int)d;
    return 0;
}
EXP aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* f, int32_t* a) {
    if (f)
        *f = 0;
    if (a)
        *a = 1;
    return 0;
}
EXP const char* aclrtGetSocName() {
    static const char* v = getenv("FAKE_NPU_SOC");
    return v && *v ? v : "Ascend910B2";
}
EXP aclError aclGetDeviceCapability(uint32_t, int k, int64_t* v) {
    *v = k == 0 ? 24 : k == 1 ? 48 : 192LL << 20;
    return 0;
}
EXP aclError aclrtGetDeviceInfo(uint32_t, int k, int64_t* v) {
    switch ((int)k) {
        case 101:
        case 102: *v = 24; break;
        case 201: *v = 48; break;
        case 301: *v = 64LL << 30; break;
        case 302: *v = 192LL << 20; break;
        default: *v = 0;
    }
    return 0;
}
EXP aclError aclrtDeviceCanAccessPeer(int32_t* c, int32_t, int32_t) {
    *c = 1;
    return 0;
}
EXP aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) {
    return 0;
}
EXP aclError aclrtDeviceGetBareTgid(int32_t* p) {
    *p = (int32_t)getpid();
    return 0;
}
EXP aclError aclrtSetOpExecuteTimeOut(uint32_t) {
    return 0;
}
EXP aclError aclrtSetOpExecuteTimeOutV2(uint64_t t, uint64_t* a) {
    if (a)
        *a = t;
    return 0;
}
EXP aclError aclrtSetOpWaitTimeout(uint32_t) {
    return 0;
}
EXP aclError aclrtSetDeviceSatMode(int) {
    return 0;
}
EXP aclError aclrtGetLastError(int) {
    return gDevErr;
}
EXP aclError aclrtPeekAtLastError(int) {
    return gDevErr;
}
EXP aclError aclrtGetSysParamOpt(int, int64_t* v) {
    *v = 0;
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
EXP aclError aclGetCompileopt(int, char* v, size_t n) {
    snprintf(v, n, "disable");
    return 0;
}
EXP aclError aclSetCompileopt(int, const char*) {
    return 0;
}
static const char* cannVer() {
    static const char* v = getenv("FAKE_CANN_VERSION");
    return v && *v ? v : "8.5.0";
}
struct CannVersion {
    char version[128], majorVersion[64], minorVersion[64], releaseVersion[64], patchVersion[64], reserved[128];
};
EXP aclError aclsysGetCANNVersion(int, CannVersion* v) {
    int a = 0, b = 0, c = 0;
    sscanf(cannVer(), "%d.%d.%d", &a, &b, &c);
    snprintf(v->version, sizeof v->version, "%s", cannVer());
    snprintf(v->majorVersion, sizeof v->majorVersion, "%d", a);
    snprintf(v->minorVersion, sizeof v->minorVersion, "%d", b);
    snprintf(v->releaseVersion, sizeof v->releaseVersion, "%d", c);
    v->patchVersion[0] = 0;
    return 0;
}
EXP aclError aclsysGetVersionStr(char*, char* out) {
    strcpy(out, cannVer());
    return 0;
}
EXP void aclAppLog(int lvl, const char* fn, const char*, uint32_t line, const char* fmt, ...) {
    static int min = envInt("FAKE_CANN_LOG", 9);
    if ((int)lvl < min)
        return;
    va_list a;
    va_start(a, fmt);
    flockfile(stderr);
    fprintf(stderr, "[applog %d] %s:%u ", (int)lvl, fn, line);
    vfprintf(stderr, fmt, a);
    fputc('\n', stderr);
    funlockfile(stderr);
    va_end(a);
}

// ---------------------------------------------------------------- memory
static std::mutex gMemMu;
static std::map<uintptr_t, size_t>& devBlocks() {
    static auto* m = new std::map<uintptr_t, size_t>;
    return *m;
}
static std::map<uintptr_t, size_t>& hostBlocks() {
    static auto* m = new std::map<uintptr_t, size_t>;
    return *m;
}
static size_t gUsed = 0;
static size_t totalMem() {
    static size_t t = (size_t)envInt("FAKE_NPU_MEM_MB", 65536) << 20;
    return t;
}
static bool inside(std::map<uintptr_t, size_t>& m, const void* p) {
    auto it = m.upper_bound((uintptr_t)p);
    if (it == m.begin())
        return false;
    --it;
    return (uintptr_t)p < it->first + it->second;
}
// With FAKE_NPU_POISON=1 fresh memory is NaN in every float type: shows reads of unwritten memory.
EXP int fakeMemoryKind(const void* p) {
    std::lock_guard<std::mutex> l(gMemMu);
    return inside(devBlocks(), p) ? 2 : inside(hostBlocks(), p) ? 1 : 0;
}
static void poisonFresh(void* p, size_t n) {
    static int poison = envInt("FAKE_NPU_POISON", 0);
    if (poison)
        memset(p, 0xFF, n);
}
static aclError devAlloc(void** p, size_t n) {
    std::lock_guard<std::mutex> l(gMemMu);
    if (n == 0 || gUsed + n > totalMem())
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    void* q = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (q == MAP_FAILED)
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    poisonFresh(q, n);
    devBlocks()[(uintptr_t)q] = n;
    gUsed += n;
    *p = q;
    return 0;
}
EXP aclError aclrtMalloc(void** p, size_t n, int) {
    return devAlloc(p, n);
}
EXP aclError aclrtMallocAlign32(void** p, size_t n, int) {
    return devAlloc(p, n);
}
EXP aclError aclrtFree(void* p) {
    aclrtSynchronizeDevice();  // freeing is a device-wide barrier
    std::lock_guard<std::mutex> l(gMemMu);
    auto it = devBlocks().find((uintptr_t)p);
    if (it == devBlocks().end())
        return ACL_ERROR_INVALID_PARAM;
    munmap(p, it->second);
    gUsed -= it->second;
    devBlocks().erase(it);
    return 0;
}
EXP aclError aclrtMallocHost(void** p, size_t n) {
    if (posix_memalign(p, 64, n ? n : 64))
        return ACL_ERROR_BAD_ALLOC;
    std::lock_guard<std::mutex> l(gMemMu);
    hostBlocks()[(uintptr_t)*p] = n;
    return 0;
}
EXP aclError aclrtFreeHost(void* p) {
    {
        std::lock_guard<std::mutex> l(gMemMu);
        hostBlocks().erase((uintptr_t)p);
    }
    free(p);
    return 0;
}
EXP aclError aclrtHostRegister(void* p, uint64_t n, int, void** d) {
    std::lock_guard<std::mutex> l(gMemMu);
    hostBlocks()[(uintptr_t)p] = n;
    if (d)
        *d = p;
    return 0;
}
EXP aclError aclrtHostUnregister(void* p) {
    std::lock_guard<std::mutex> l(gMemMu);
    hostBlocks().erase((uintptr_t)p);
    return 0;
}
EXP aclError aclrtGetMemInfo(int, size_t* f, size_t* t) {
    std::lock_guard<std::mutex> l(gMemMu);
    *t = totalMem();
    *f = totalMem() - gUsed;
    return 0;
}
// virtual memory (expandable segments): reserve = real mapping, map/unmap only account
EXP aclError aclrtReserveMemAddress(void** p, size_t n, size_t, void*, uint64_t) {
    void* q = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (q == MAP_FAILED)
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    std::lock_guard<std::mutex> l(gMemMu);
    devBlocks()[(uintptr_t)q] = n;
    *p = q;
    return 0;
}
EXP aclError aclrtReleaseMemAddress(void* p) {
    std::lock_guard<std::mutex> l(gMemMu);
    auto it = devBlocks().find((uintptr_t)p);
    if (it == devBlocks().end())
        return ACL_ERROR_INVALID_PARAM;
    munmap(p, it->second);
    devBlocks().erase(it);
    return 0;
}
EXP aclError aclrtMallocPhysical(aclrtDrvMemHandle* h, size_t n, const void*, uint64_t) {
    std::lock_guard<std::mutex> l(gMemMu);
    if (gUsed + n > totalMem())
        return ACL_ERROR_RT_MEMORY_ALLOCATION;
    gUsed += n;
    *h = (aclrtDrvMemHandle) new size_t(n);
    return 0;
}
EXP aclError aclrtFreePhysical(aclrtDrvMemHandle h) {
    std::lock_guard<std::mutex> l(gMemMu);
    gUsed -= *(size_t*)h;
    delete (size_t*)h;
    return 0;
}
// MindSpore's memory pool takes its memory this way, not by aclrtMalloc.
EXP aclError aclrtMapMem(void* p, size_t n, size_t, aclrtDrvMemHandle, uint64_t) {
    TRACE("map %p %zu bytes", p, n);
    poisonFresh(p, n);
    return 0;
}
EXP aclError aclrtUnmapMem(void*) {
    return 0;
}

static bool overlapOk(size_t max, size_t n) {
    return n <= max;
}
EXP aclError aclrtMemcpy(void* d, size_t max, const void* s, size_t n, int) {
    if (!overlapOk(max, n))
        return ACL_ERROR_INVALID_PARAM;
    TRACE("memcpy %p <- %p %zu bytes", d, s, n);
    memmove(d, s, n);
    return gDevErr;
}
EXP aclError aclrtMemcpyAsync(void* d, size_t max, const void* s, size_t n, int k, aclrtStream h) {
    if (!overlapOk(max, n))
        return ACL_ERROR_INVALID_PARAM;
    auto st = getStream(h);
    if (!st)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    TRACE("memcpyAsync %p <- %p %zu bytes kind %d on stream %d", d, s, n, k, st->id);
    bool pageable = false;
    if (k == ACL_MEMCPY_HOST_TO_DEVICE) {
        std::lock_guard<std::mutex> l(gMemMu);
        pageable = !inside(hostBlocks(), s);
    }
    if (pageable) {  // staged copy, as a driver does for unpinned memory
        auto buf = std::make_shared<std::vector<char>>((const char*)s, (const char*)s + n);
        st->push([=] {
            memcpy(d, buf->data(), n);
            return 0;
        });
    } else {
        st->push([=] {
            memmove(d, s, n);
            return 0;
        });
    }
    return 0;
}
EXP aclError aclrtMemcpyAsyncWithCondition(void* d, size_t m, const void* s, size_t n, int k, aclrtStream h) {
    return aclrtMemcpyAsync(d, m, s, n, k, h);
}
EXP aclError aclrtMemset(void* d, size_t max, int32_t v, size_t n) {
    if (n > max)
        return ACL_ERROR_INVALID_PARAM;
    memset(d, v, n);
    return 0;
}
EXP aclError aclrtMemsetAsync(void* d, size_t max, int32_t v, size_t n, aclrtStream h) {
    if (n > max)
        return ACL_ERROR_INVALID_PARAM;
    auto st = getStream(h);
    if (!st)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    st->push([=] {
        memset(d, v, n);
        return 0;
    });
    return 0;
}

// ---------------------------------------------------------------- what MindSpore asks for besides
EXP aclError aclrtCreateContext(aclrtContext* c, int32_t d) {
    tDev = d;
    *c = &gCtx[d];
    return 0;
}
EXP aclError aclrtDestroyContext(aclrtContext) {
    return 0;
}
EXP aclError aclrtGetRunMode(int* m) {
    *m = 1;
    return 0;
}  // host process
EXP aclError aclrtDeviceGetStreamPriorityRange(int32_t* lo, int32_t* hi) {
    if (lo)
        *lo = 7;
    if (hi)
        *hi = 0;
    return 0;
}
EXP aclError aclrtGetDeviceResLimit(int32_t, int, uint32_t* v) {
    *v = 24;
    return 0;
}
EXP aclError aclrtGetStreamResLimit(aclrtStream, int, uint32_t* v) {
    *v = 24;
    return 0;
}
EXP aclError aclrtGetResInCurrentThread(int, uint32_t* v) {
    *v = 24;
    return 0;
}
EXP void* aclrtAllocatorCreateDesc() {
    return malloc(64);
}
EXP aclError aclrtAllocatorDestroyDesc(void* d) {
    free(d);
    return 0;
}
EXP size_t aclDataTypeSize(int t) {
    switch (t) {
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
// dump/summary channels: nothing ever arrives
struct Channel {
    std::atomic<bool> stop{false};
};
EXP void* acltdtCreateChannel(uint32_t, const char*) {
    return new Channel;
}
EXP void* acltdtCreateChannelWithCapacity(uint32_t, const char*, size_t) {
    return new Channel;
}
EXP aclError acltdtStopChannel(Channel* c) {
    if (c)
        c->stop = true;
    return 0;
}
EXP aclError acltdtCleanChannel(Channel*) {
    return 0;
}
EXP aclError acltdtDestroyChannel(Channel* c) {
    if (c)
        c->stop = true;
    return 0;
}  // never freed: a receiver may still look at it
EXP void* acltdtCreateDataset() {
    return malloc(64);
}
EXP aclError acltdtDestroyDataset(void* d) {
    free(d);
    return 0;
}
EXP aclError acltdtReceiveTensor(Channel* c, void*, int32_t ms) {
    auto end = Clock::now() + std::chrono::milliseconds(ms < 0 ? 1000 : ms);
    while (c && !c->stop && Clock::now() < end)
        usleep(20000);
    return ACL_ERROR_RT_QUEUE_EMPTY;
}
