// Streams of the emulated runtime.
#include "acl.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

using HostFunction = void (*)(void*);

void Stream::work() {
    std::unique_lock<std::mutex> lock(lock_);
    for (;;) {
        hasWork_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
        if (queue_.empty())
            return;
        Entry entry = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        bool isDropped = error_ && !entry.always;
        lock.unlock();
        int error = isDropped ? 0 : entry.task();
        entry.task = nullptr;  // what it holds is let go of outside the lock
        lock.lock();
        if (error && !error_) {
            error_ = error;
            setDeviceError(error);
        }
        busy_ = false;
        if (queue_.empty())
            isIdle_.notify_all();
    }
}
void Stream::push(Task task, bool always) {
    {
        std::lock_guard<std::mutex> lock(lock_);
        queue_.push_back({std::move(task), always});
    }
    hasWork_.notify_one();
}
void Stream::stop() {
    {
        std::lock_guard<std::mutex> lock(lock_);
        stopped_ = true;
    }
    hasWork_.notify_all();
}
bool Stream::isIdle() {
    std::lock_guard<std::mutex> lock(lock_);
    return queue_.empty() && !busy_;
}
int Stream::error() {
    std::lock_guard<std::mutex> lock(lock_);
    return error_;
}
aclError Stream::synchronize(int milliseconds) {
    std::unique_lock<std::mutex> lock(lock_);
    auto isDone = [this] {
        return queue_.empty() && !busy_;
    };
    if (milliseconds < 0)
        isIdle_.wait(lock, isDone);
    else if (!isIdle_.wait_for(lock, std::chrono::milliseconds(milliseconds), isDone))
        return ACL_ERROR_RT_STREAM_SYNC_TIMEOUT;
    return error_;
}

namespace {
auto& streams = *new Registry<Stream>;
std::mutex defaultsLock;
auto& defaults = *new std::map<int, std::shared_ptr<Stream>>;  // by device

std::shared_ptr<Stream> start(int device) {
    static std::atomic<int> nextId{0};
    auto stream = std::make_shared<Stream>(device, nextId++);
    std::thread([stream] { stream->work(); }).detach();
    return stream;
}
aclError create(aclrtStream* out) {
    auto stream = start(currentDevice());
    *out = streams.add(stream);
    return 0;
}
aclError destroy(aclrtStream handle, bool waits) {
    auto stream = handle ? streams.find(handle) : nullptr;
    if (!stream)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    if (waits)
        stream->synchronize(-1);
    streams.remove(handle);
    stream->stop();
    return 0;
}
}  // namespace

aclError synchronizeDevice(int milliseconds) {
    std::vector<std::shared_ptr<Stream>> own;
    auto take = [&own](std::shared_ptr<Stream>& stream) {
        if (stream->device == currentDevice())
            own.push_back(stream);
    };
    streams.forEach(take);
    {
        std::lock_guard<std::mutex> lock(defaultsLock);
        for (auto& item : defaults) take(item.second);
    }
    aclError first = 0;
    for (auto& stream : own) {
        aclError error = stream->synchronize(milliseconds);
        first = first ? first : error;
    }
    return first;
}

std::shared_ptr<Stream> findStream(aclrtStream handle) {
    if (handle)
        return streams.find(handle);
    std::lock_guard<std::mutex> lock(defaultsLock);
    auto& stream = defaults[currentDevice()];
    if (!stream)
        stream = start(currentDevice());
    return stream;
}

EXP void fakeStreamPush(void* handle, int (*task)(void*), void* argument) {
    auto stream = findStream(handle);
    if (!stream) {
        fprintf(stderr, "the emulated runtime has no stream %p\n", handle);
        abort();
    }
    stream->push([task, argument] { return task(argument); });
}
EXP int fakeStreamId(void* handle) {
    auto stream = findStream(handle);
    return stream ? stream->id : -1;
}

EXP aclError aclrtCreateStream(aclrtStream* out) {
    return create(out);
}
EXP aclError aclrtCreateStreamWithConfig(aclrtStream* out, uint32_t, uint32_t) {
    return create(out);
}
EXP aclError aclrtDestroyStream(aclrtStream handle) {
    return destroy(handle, true);
}
EXP aclError aclrtDestroyStreamForce(aclrtStream handle) {
    return destroy(handle, false);
}
EXP aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t milliseconds) {
    auto stream = findStream(handle);
    return stream ? stream->synchronize(milliseconds) : ACL_ERROR_INVALID_RESOURCE_HANDLE;
}
EXP aclError aclrtSynchronizeStream(aclrtStream handle) {
    return aclrtSynchronizeStreamWithTimeout(handle, -1);
}
EXP aclError aclrtStreamQuery(aclrtStream handle, int* out) {
    auto stream = findStream(handle);
    if (!stream)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    *out = stream->isIdle() ? 0 : 1;  // complete, or not ready
    return 0;
}
EXP aclError aclrtStreamGetId(aclrtStream handle, int32_t* out) {
    auto stream = findStream(handle);
    if (!stream)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    *out = stream->id;
    return 0;
}
EXP aclError aclrtSynchronizeDevice() {
    return synchronizeDevice(-1);
}
EXP aclError aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds) {
    return synchronizeDevice(milliseconds);
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
EXP aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* out) {
    *out = 0;
    return 0;
}
EXP aclError aclrtDeviceGetStreamPriorityRange(int32_t* least, int32_t* greatest) {
    if (least)
        *least = 7;
    if (greatest)
        *greatest = 0;
    return 0;
}

// Functions of the host run on the stream's own worker, so nothing ever has to be reported.
EXP aclError aclrtLaunchHostFunc(aclrtStream handle, HostFunction function, void* argument) {
    auto stream = findStream(handle);
    if (!stream)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    auto task = [function, argument] {
        function(argument);
        return 0;
    };
    stream->push(task, true);
    return 0;
}
EXP aclError aclrtLaunchCallback(HostFunction function, void* argument, int, aclrtStream handle) {
    return aclrtLaunchHostFunc(handle, function, argument);
}
EXP aclError aclrtSubscribeReport(uint64_t, aclrtStream) {
    return 0;
}
EXP aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) {
    return 0;
}
EXP aclError aclrtProcessReport(int32_t milliseconds) {
    usleep((milliseconds > 0 ? milliseconds : 100) * 1000);
    return ACL_ERROR_RT_REPORT_TIMEOUT;
}
