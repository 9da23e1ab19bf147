// What the parts of the emulated runtime share.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "cann.h"

// A worker thread with a queue.  After a task failed, those behind it are dropped, except the ones marked always, and
// every synchronisation returns the error.
class Stream {
  public:
    using Task = std::function<int()>;  // returns 0 or an error

    Stream(int device, int id) : device(device), id(id) {}
    void work();
    void push(Task task, bool always = false);
    void stop();
    bool isIdle();
    int error();
    aclError synchronize(int milliseconds);  // less than 0: no limit

    const int device, id;

  private:
    struct Entry {
        Task task;
        bool always;
    };
    std::mutex lock_;
    std::condition_variable hasWork_, isIdle_;
    std::deque<Entry> queue_;
    bool busy_ = false, stopped_ = false;
    int error_ = 0;
};

// Handles that are looked up, so that one that was destroyed is noticed.  Never destroyed itself: streams may still run
// while the process ends.
template <class T>
class Registry {
  public:
    void* add(std::shared_ptr<T> item) {
        std::lock_guard<std::mutex> lock(lock_);
        return (items_[item.get()] = item).get();
    }
    std::shared_ptr<T> find(void* handle) {
        std::lock_guard<std::mutex> lock(lock_);
        auto found = items_.find(handle);
        return found == items_.end() ? nullptr : found->second;
    }
    std::shared_ptr<T> remove(void* handle) {
        auto item = find(handle);
        std::lock_guard<std::mutex> lock(lock_);
        items_.erase(handle);
        return item;
    }
    template <class F>
    void forEach(F f) {
        std::lock_guard<std::mutex> lock(lock_);
        for (auto& item : items_) f(item.second);
    }

  private:
    std::mutex lock_;
    std::map<void*, std::shared_ptr<T>> items_;
};

// acl_devices.cpp
int setting(const char* name, int otherwise);  // of the environment, a whole number
bool isTraced();                               // FAKE_CANN_TRACE=1
int currentDevice();                           // of this thread
void setDeviceError(int error);                // the first one stays

// acl_streams.cpp
std::shared_ptr<Stream> findStream(aclrtStream handle);  // null handle: the current device's default stream
aclError synchronizeDevice(int milliseconds);            // less than 0: no limit
