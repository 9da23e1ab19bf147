// What the parts of the emulated HCCL share: segments in shared memory, communicators, transfers.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cann.h"

constexpr int kMaxRanks = 64;
constexpr int kMaxPosted = 64;             // receives that may be posted ahead of their senders, per channel
constexpr size_t kRingBytes = 64 << 10;    // what a sender may be ahead of its receiver
constexpr int kStreamTimedOut = 507048;    // the stream errors that a failed transfer ends in
constexpr int kStreamMismatched = 507057;

// What a transfer belongs to: both ends must agree.
enum Kind : uint32_t { kPointToPoint = 1, kBroadcast, kAllReduce, kAllGather, kReduceScatter, kAllToAll, kScatter,
                       kReduce, kBarrier };

// What a receiver has posted.
struct Posted {
    uint32_t kind, dtype;
    uint64_t bytes;
};

// One direction between two ranks.  Each counter is written by one side only.
struct Channel {
    alignas(64) std::atomic<uint64_t> posted;   // receives posted; by the receiver
    alignas(64) std::atomic<uint64_t> started;  // sends that found theirs; by the sender
    alignas(64) std::atomic<uint64_t> written;  // bytes; by the sender
    alignas(64) std::atomic<uint64_t> read;     // bytes; by the receiver
    alignas(64) Posted receives[kMaxPosted];
    char ring[kRingBytes];
};

// The memory of one communicator, mapped by all its ranks; zero when it is made.
struct Segment {
    std::atomic<uint32_t> joined, failed;
    alignas(64) std::atomic<uint32_t> bells[kMaxRanks];  // rung when a rank may have something to do
    alignas(4096) Channel channels[1];                   // in truth one per ordered pair
};

struct Communicator {
    Segment* segment = nullptr;
    int size = 0, rank = 0, execTimeout = 0;  // the last in seconds, 0: none
    std::string name, id;
    std::mutex running;                         // its operations don't overlap
    std::vector<uint64_t> nextSend, nextReceive;  // by peer: index of the next transfer
    std::atomic<int> error{0};
    std::atomic<bool> destroyed{false};
    Channel& channel(int from, int to) { return segment->channels[from * size + to]; }
};

struct Transfer {
    bool isSend;
    int peer;
    char* data;
    uint64_t bytes;
    Kind kind;
    uint32_t dtype;
    uint64_t index = 0, done = 0;
    enum { kWaiting, kMatched, kFinished } state = kWaiting;
};

int setting(const char* name, int otherwise);  // of the environment, a whole number
void trace(Communicator* comm, const char* format, ...);
std::shared_ptr<Communicator> find(HcclComm handle);  // null if there is none

// hccl_transfers.cpp
void ring(std::atomic<uint32_t>* bell);
// Run transfers side by side, those with one peer in order; 0 or a stream error.
int run(Communicator* comm, std::vector<Transfer>& transfers);

// hccl_elements.cpp
int sizeOf(HcclDataType type);  // bytes; 0 for types that aren't carried
bool isReducible(HcclDataType type);
void accumulate(void* into, const void* from, uint64_t count, HcclDataType type, HcclReduceOp op);
