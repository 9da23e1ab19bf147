// How bytes travel.  A channel is a rendezvous: the receiver posts what it expects, the sender waits for that, compares
// and streams the bytes through a small ring.  So no send completes before its receive is posted.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "hccl.h"

using Clock = std::chrono::steady_clock;

namespace {
const char* nameOf(uint32_t kind) {
    static const char* names[] = {"?",        "sendrecv", "broadcast", "allreduce", "allgather", "reducescatter",
                                  "alltoall", "scatter",  "reduce",    "barrier"};
    return kind < sizeof names / sizeof *names ? names[kind] : "?";
}

void waitForBell(std::atomic<uint32_t>* bell, uint32_t seen) {
    timespec limit{0, 100'000'000};  // the time-out and a destroyed communicator ring no bell
    syscall(SYS_futex, bell, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

int fail(Communicator* comm, HcclResult error, int streamError, const std::string& text) {
    comm->error = error;
    fakeSetErrMsg(text.c_str());
    fprintf(stderr, "[emulated HCCL, %s, rank %d of %d] %s\n", comm->name.c_str(), comm->rank, comm->size,
            text.c_str());
    return streamError;
}

class Progress {
  public:
    Progress(Communicator* comm, std::vector<Transfer>& transfers)
        : comm_(comm), transfers_(transfers), sent_(comm->nextSend), received_(comm->nextReceive) {
        for (auto& transfer : transfers)
            transfer.index = (transfer.isSend ? comm->nextSend : comm->nextReceive)[transfer.peer]++;
    }

    int toTheEnd() {
        auto start = Clock::now();
        auto& bell = comm_->segment->bells[comm_->rank];
        while (!allFinished()) {
            uint32_t seen = bell.load();
            moved_ = false;
            for (auto& transfer : transfers_) {
                if (transfer.state == Transfer::kFinished)
                    continue;
                if (int error = transfer.isSend ? advanceSend(transfer) : advanceReceive(transfer))
                    return error;
            }
            if (moved_)
                continue;
            if (comm_->destroyed)
                return fail(comm_, HCCL_E_SUSPENDING, kStreamTimedOut,
                            "communicator destroyed with operations in flight");
            if (comm_->segment->failed)
                return fail(comm_, HCCL_E_REMOTE, kStreamMismatched,
                            "EI0005: another rank reported inconsistent arguments");
            if (comm_->execTimeout > 0 && Clock::now() - start > std::chrono::seconds(comm_->execTimeout))
                return fail(comm_, HCCL_E_TIMEOUT, kStreamTimedOut, whatIsWaitedFor());
            waitForBell(&bell, seen);
        }
        return 0;
    }

  private:
    bool allFinished() const {
        return std::all_of(transfers_.begin(), transfers_.end(),
                           [](auto& transfer) { return transfer.state == Transfer::kFinished; });
    }

    int advanceSend(Transfer& send) {
        if (sent_[send.peer] != send.index)
            return 0;  // after the sends in front of it
        Channel& channel = comm_->channel(comm_->rank, send.peer);
        if (send.state == Transfer::kWaiting) {
            if (channel.posted.load(std::memory_order_acquire) <= send.index)
                return 0;
            const Posted& expected = channel.receives[send.index % kMaxPosted];
            if (expected.kind != send.kind || expected.bytes != send.bytes || expected.dtype != send.dtype)
                return refuse(send, expected);
            channel.started.store(send.index + 1, std::memory_order_release);
            send.state = Transfer::kMatched;
            moved(send.peer);
        }
        uint64_t written = channel.written.load();
        uint64_t room = kRingBytes - (written - channel.read.load(std::memory_order_acquire));
        if (uint64_t count = std::min(room, send.bytes - send.done)) {
            size_t at = written % kRingBytes, first = std::min<size_t>(count, kRingBytes - at);
            memcpy(channel.ring + at, send.data + send.done, first);
            memcpy(channel.ring, send.data + send.done + first, count - first);
            send.done += count;
            channel.written.store(written + count, std::memory_order_release);
            moved(send.peer);
        }
        finishIfDone(send, sent_);
        return 0;
    }

    int advanceReceive(Transfer& receive) {
        Channel& channel = comm_->channel(receive.peer, comm_->rank);
        if (receive.state == Transfer::kWaiting) {
            if (channel.posted.load() != receive.index || receive.index - received_[receive.peer] >= kMaxPosted)
                return 0;
            channel.receives[receive.index % kMaxPosted] = {receive.kind, receive.dtype, receive.bytes};
            channel.posted.store(receive.index + 1, std::memory_order_release);
            receive.state = Transfer::kMatched;
            moved(receive.peer);
        }
        if (received_[receive.peer] != receive.index ||
            channel.started.load(std::memory_order_acquire) <= receive.index)
            return 0;
        uint64_t read = channel.read.load();
        uint64_t ready = channel.written.load(std::memory_order_acquire) - read;
        if (uint64_t count = std::min(ready, receive.bytes - receive.done)) {
            size_t at = read % kRingBytes, first = std::min<size_t>(count, kRingBytes - at);
            memcpy(receive.data + receive.done, channel.ring + at, first);
            memcpy(receive.data + receive.done + first, channel.ring, count - first);
            receive.done += count;
            channel.read.store(read + count, std::memory_order_release);
            moved(receive.peer);
        }
        finishIfDone(receive, received_);
        return 0;
    }

    void moved(int peer) {
        moved_ = true;
        ring(&comm_->segment->bells[peer]);
    }

    void finishIfDone(Transfer& transfer, std::vector<uint64_t>& counts) {
        if (transfer.done != transfer.bytes)
            return;
        transfer.state = Transfer::kFinished;
        counts[transfer.peer]++;
        moved_ = true;
    }

    int refuse(const Transfer& send, const Posted& expected) {
        char text[400];
        snprintf(text, sizeof text,
                 "EI0005: The arguments for collective communication are inconsistent between ranks: rank %d issues "
                 "%s of %llu bytes (dtype %u), rank %d expects %s of %llu bytes (dtype %u)",
                 comm_->rank, nameOf(send.kind), (unsigned long long)send.bytes, send.dtype, send.peer,
                 nameOf(expected.kind), (unsigned long long)expected.bytes, expected.dtype);
        comm_->segment->failed = 1;
        for (int rank = 0; rank < comm_->size; rank++) ring(&comm_->segment->bells[rank]);
        return fail(comm_, HCCL_E_PARA, kStreamMismatched, text);
    }

    std::string whatIsWaitedFor() const {
        std::string text = "EI0002: The wait execution of the Notify register times out. Group " + comm_->name +
                           ", rank " + std::to_string(comm_->rank) + " was waiting in:";
        for (auto& transfer : transfers_)
            if (transfer.state != Transfer::kFinished)
                text += std::string(" ") + nameOf(transfer.kind) + (transfer.isSend ? " send to " : " receive from ") +
                        std::to_string(transfer.peer) + " (" + std::to_string(transfer.bytes) + " bytes)";
        return text;
    }

    Communicator* comm_;
    std::vector<Transfer>& transfers_;
    std::vector<uint64_t> sent_, received_;  // by peer: how many are finished
    bool moved_ = false;
};
}  // namespace

void ring(std::atomic<uint32_t>* bell) {
    bell->fetch_add(1);
    syscall(SYS_futex, bell, FUTEX_WAKE, kMaxRanks, nullptr, nullptr, 0);
}

int run(Communicator* comm, std::vector<Transfer>& transfers) {
    return Progress(comm, transfers).toTheEnd();
}
