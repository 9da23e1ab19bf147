// Events of the emulated runtime: each counts how often it was recorded, and how far the streams have come.
#include "acl.h"

#include <algorithm>
#include <chrono>

using Clock = std::chrono::steady_clock;

namespace {
struct Event {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;
    int error = 0;  // of the stream that recorded it
    Clock::time_point when;
};
auto& events = *new Registry<Event>;

aclError create(aclrtEvent* out) {
    *out = events.add(std::make_shared<Event>());
    return 0;
}
}  // namespace

EXP aclError aclrtCreateEvent(aclrtEvent* out) {
    return create(out);
}
EXP aclError aclrtCreateEventWithFlag(aclrtEvent* out, uint32_t) {
    return create(out);
}
EXP aclError aclrtCreateEventExWithFlag(aclrtEvent* out, uint32_t) {
    return create(out);
}
EXP aclError aclrtDestroyEvent(aclrtEvent handle) {
    return events.remove(handle) ? 0 : ACL_ERROR_INVALID_RESOURCE_HANDLE;
}
EXP aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream streamHandle) {
    auto event = events.find(handle);
    auto stream = findStream(streamHandle);
    if (!event || !stream)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    uint64_t turn;
    {
        std::lock_guard<std::mutex> lock(event->lock);
        turn = ++event->recorded;
    }
    Stream* raw = stream.get();  // runs the task, so it is there
    auto reach = [event, turn, raw] {
        int error = raw->error();
        std::lock_guard<std::mutex> lock(event->lock);
        event->reached = std::max(event->reached, turn);
        event->error = error;
        event->when = Clock::now();
        event->changed.notify_all();
        return 0;
    };
    stream->push(reach, true);
    return 0;
}
EXP aclError aclrtStreamWaitEvent(aclrtStream streamHandle, aclrtEvent handle) {
    auto event = events.find(handle);
    auto stream = findStream(streamHandle);
    if (!event || !stream)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    uint64_t turn;
    {
        std::lock_guard<std::mutex> lock(event->lock);
        turn = event->recorded;
    }
    stream->push([event, turn] {
        std::unique_lock<std::mutex> lock(event->lock);
        event->changed.wait(lock, [&] { return event->reached >= turn; });
        return event->error;  // who waits for what failed fails as well
    });
    return 0;
}
EXP aclError aclrtSynchronizeEventWithTimeout(aclrtEvent handle, int32_t milliseconds) {
    auto event = events.find(handle);
    if (!event)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    std::unique_lock<std::mutex> lock(event->lock);
    auto isReached = [&event, turn = event->recorded] {
        return event->reached >= turn;
    };
    if (milliseconds < 0)
        event->changed.wait(lock, isReached);
    else if (!event->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), isReached))
        return ACL_ERROR_RT_EVENT_SYNC_TIMEOUT;
    return event->error;
}
EXP aclError aclrtSynchronizeEvent(aclrtEvent handle) {
    return aclrtSynchronizeEventWithTimeout(handle, -1);
}
EXP aclError aclrtQueryEventStatus(aclrtEvent handle, int* out) {
    auto event = events.find(handle);
    if (!event)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    std::lock_guard<std::mutex> lock(event->lock);
    bool isReached = event->reached >= event->recorded;
    if (isReached && event->error)
        return event->error;
    *out = isReached;
    return 0;
}
EXP aclError aclrtQueryEventWaitStatus(aclrtEvent, int* out) {
    *out = 1;
    return 0;
}
EXP aclError aclrtResetEvent(aclrtEvent handle, aclrtStream) {
    return events.find(handle) ? 0 : ACL_ERROR_INVALID_RESOURCE_HANDLE;
}
EXP aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent first, aclrtEvent second) {
    auto from = events.find(first), to = events.find(second);
    if (!from || !to)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    if (from == to) {
        *milliseconds = 0;
        return 0;
    }
    std::scoped_lock lock(from->lock, to->lock);
    *milliseconds = std::chrono::duration<float, std::milli>(to->when - from->when).count();
    return 0;
}
EXP aclError aclrtEventGetTimestamp(aclrtEvent handle, uint64_t* microseconds) {
    auto event = events.find(handle);
    if (!event)
        return ACL_ERROR_INVALID_RESOURCE_HANDLE;
    std::lock_guard<std::mutex> lock(event->lock);
    *microseconds = std::chrono::duration_cast<std::chrono::microseconds>(event->when.time_since_epoch()).count();
    return 0;
}
