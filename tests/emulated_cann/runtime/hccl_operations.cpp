// The operations of the emulated HCCL.  Each runs on the worker of the stream it was given, in stream order.
// Collectives are made of transfers, and reduce in rank order, so that their results are always the same.
#include <cstdio>
#include <cstring>

#include "hccl.h"

namespace {
using Operation = std::function<int(Communicator*)>;
using Bytes = std::vector<char>;

struct Job {
    std::shared_ptr<Communicator> comm;
    Operation operation;
    std::string text;
};
int runJob(void* argument) {
    std::unique_ptr<Job> job((Job*)argument);
    if (job->comm->destroyed)
        return kStreamTimedOut;
    std::lock_guard<std::mutex> lock(job->comm->running);
    trace(job->comm.get(), "start %s", job->text.c_str());
    int error = job->operation(job->comm.get());
    trace(job->comm.get(), "%s %s", error ? "FAIL" : "done", job->text.c_str());
    return error;
}
HcclResult submit(HcclComm handle, aclrtStream stream, std::string text, Operation operation) {
    auto comm = find(handle);
    if (!comm)
        return HCCL_E_PTR;
    if (comm->error)
        return (HcclResult)comm->error.load();
    trace(comm.get(), "enqueue %s on stream %d", text.c_str(), fakeStreamId(stream));
    fakeStreamPush(stream, runJob, new Job{comm, std::move(operation), std::move(text)});
    return HCCL_SUCCESS;
}

std::string describe(const char* name, uint64_t count, HcclDataType type, int peer = -1) {
    return std::string(name) + " count=" + std::to_string(count) + " dtype=" + std::to_string(type) +
           (peer >= 0 ? " peer=" + std::to_string(peer) : "");
}
bool isRank(HcclComm handle, uint32_t rank) {
    auto comm = find(handle);
    return comm && rank < (uint32_t)comm->size;
}

// From the root to everyone else.
int fanOut(Communicator* comm, int root, char* data, uint64_t bytes, Kind kind, uint32_t type) {
    std::vector<Transfer> transfers;
    if (comm->rank != root)
        transfers.push_back({false, root, data, bytes, kind, type});
    else
        for (int rank = 0; rank < comm->size; rank++)
            if (rank != root)
                transfers.push_back({true, rank, data, bytes, kind, type});
    return run(comm, transfers);
}
void reduceAll(const std::vector<Bytes>& parts, void* out, uint64_t count, HcclDataType type, HcclReduceOp op) {
    Bytes sum = parts[0];
    for (size_t rank = 1; rank < parts.size(); rank++) accumulate(sum.data(), parts[rank].data(), count, type, op);
    memcpy(out, sum.data(), sum.size());
}
// From everyone to the root, reduced there.
int reduceTo(Communicator* comm, int root, char* in, char* out, uint64_t count, HcclDataType type, HcclReduceOp op,
             Kind kind) {
    uint64_t bytes = count * sizeOf(type);
    std::vector<Transfer> transfers;
    if (comm->rank != root) {
        transfers.push_back({true, root, in, bytes, kind, (uint32_t)type});
        return run(comm, transfers);
    }
    std::vector<Bytes> parts(comm->size, Bytes(bytes));
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != root)
            transfers.push_back({false, rank, parts[rank].data(), bytes, kind, (uint32_t)type});
    if (int error = run(comm, transfers))
        return error;
    parts[root].assign(in, in + bytes);
    reduceAll(parts, out, count, type, op);
    return 0;
}

// What goes to, or comes from, each rank.
struct Shares {
    std::vector<uint64_t> offsets, bytes;
};
HcclResult allToAll(char* in, Shares sent, char* out, Shares received, HcclDataType inType, HcclDataType outType,
                    HcclComm handle, aclrtStream stream) {
    return submit(handle, stream, "alltoall", [=](Communicator* comm) {
        std::vector<Transfer> transfers;
        for (int rank = 0; rank < comm->size; rank++) {
            char *from = in + sent.offsets[rank], *to = out + received.offsets[rank];
            if (rank == comm->rank) {
                memmove(to, from, sent.bytes[rank]);
                continue;
            }
            transfers.push_back({true, rank, from, sent.bytes[rank], kAllToAll, (uint32_t)inType});
            transfers.push_back({false, rank, to, received.bytes[rank], kAllToAll, (uint32_t)outType});
        }
        return run(comm, transfers);
    });
}

HcclResult pointToPoint(bool isSend, void* data, uint64_t count, HcclDataType type, uint32_t peer, HcclComm handle,
                        aclrtStream stream) {
    if (!isRank(handle, peer) || !sizeOf(type))
        return HCCL_E_PARA;
    return submit(handle, stream, describe(isSend ? "send" : "recv", count, type, peer), [=](Communicator* comm) {
        std::vector<Transfer> transfers{
            {isSend, (int)peer, (char*)data, count * sizeOf(type), kPointToPoint, (uint32_t)type}};
        return run(comm, transfers);
    });
}
}  // namespace

EXP HcclResult HcclSend(void* data, uint64_t count, HcclDataType type, uint32_t peer, HcclComm handle,
                        aclrtStream stream) {
    return pointToPoint(true, data, count, type, peer, handle, stream);
}
EXP HcclResult HcclRecv(void* data, uint64_t count, HcclDataType type, uint32_t peer, HcclComm handle,
                        aclrtStream stream) {
    return pointToPoint(false, data, count, type, peer, handle, stream);
}
EXP HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm handle, aclrtStream stream) {
    std::vector<Transfer> transfers;
    std::string text = "batchsendrecv";
    for (auto item = items; item != items + count; item++) {
        if (!isRank(handle, item->remoteRank) || !sizeOf(item->dataType))
            return HCCL_E_PARA;
        bool isSend = item->sendRecvType == HCCL_SEND;
        transfers.push_back({isSend, (int)item->remoteRank, (char*)item->buf, item->count * sizeOf(item->dataType),
                             kPointToPoint, (uint32_t)item->dataType});
        text += (isSend ? " S" : " R") + std::to_string(item->remoteRank) + ":" + std::to_string(item->count);
    }
    return submit(handle, stream, text, [transfers](Communicator* comm) {
        auto own = transfers;
        return run(comm, own);
    });
}
EXP HcclResult HcclBroadcast(void* data, uint64_t count, HcclDataType type, uint32_t root, HcclComm handle,
                             aclrtStream stream) {
    if (!isRank(handle, root) || !sizeOf(type))
        return HCCL_E_PARA;
    return submit(handle, stream, describe("broadcast", count, type, root), [=](Communicator* comm) {
        return fanOut(comm, root, (char*)data, count * sizeOf(type), kBroadcast, type);
    });
}
EXP HcclResult HcclAllReduce(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm handle,
                             aclrtStream stream) {
    if (!isReducible(type))
        return HCCL_E_NOT_SUPPORT;
    return submit(handle, stream, describe("allreduce", count, type), [=](Communicator* comm) {
        if (int error = reduceTo(comm, 0, (char*)in, (char*)out, count, type, op, kAllReduce))
            return error;
        return fanOut(comm, 0, (char*)out, count * sizeOf(type), kAllReduce, type);
    });
}
EXP HcclResult HcclReduce(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp op, uint32_t root,
                          HcclComm handle, aclrtStream stream) {
    if (!isRank(handle, root))
        return HCCL_E_PARA;
    if (!isReducible(type))
        return HCCL_E_NOT_SUPPORT;
    return submit(handle, stream, describe("reduce", count, type, root), [=](Communicator* comm) {
        return reduceTo(comm, root, (char*)in, (char*)out, count, type, op, kReduce);
    });
}
EXP HcclResult HcclAllGather(void* in, void* out, uint64_t count, HcclDataType type, HcclComm handle,
                             aclrtStream stream) {
    if (!sizeOf(type))
        return HCCL_E_PARA;
    return submit(handle, stream, describe("allgather", count, type), [=](Communicator* comm) {
        uint64_t bytes = count * sizeOf(type);
        Bytes mine((char*)in, (char*)in + bytes);  // in may lie inside out
        std::vector<Transfer> transfers;
        for (int rank = 0; rank < comm->size; rank++)
            if (rank != comm->rank) {
                transfers.push_back({true, rank, mine.data(), bytes, kAllGather, (uint32_t)type});
                transfers.push_back({false, rank, (char*)out + rank * bytes, bytes, kAllGather, (uint32_t)type});
            }
        if (int error = run(comm, transfers))
            return error;
        memcpy((char*)out + comm->rank * bytes, mine.data(), bytes);
        return 0;
    });
}
EXP HcclResult HcclReduceScatter(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp op,
                                 HcclComm handle, aclrtStream stream) {
    if (!isReducible(type))
        return HCCL_E_NOT_SUPPORT;
    return submit(handle, stream, describe("reducescatter", count, type), [=](Communicator* comm) {
        uint64_t bytes = count * sizeOf(type);
        std::vector<Bytes> parts(comm->size, Bytes(bytes));
        std::vector<Transfer> transfers;
        for (int rank = 0; rank < comm->size; rank++) {
            char* share = (char*)in + rank * bytes;
            if (rank == comm->rank) {
                parts[rank].assign(share, share + bytes);
                continue;
            }
            transfers.push_back({true, rank, share, bytes, kReduceScatter, (uint32_t)type});
            transfers.push_back({false, rank, parts[rank].data(), bytes, kReduceScatter, (uint32_t)type});
        }
        if (int error = run(comm, transfers))
            return error;
        reduceAll(parts, out, count, type, op);
        return 0;
    });
}
EXP HcclResult HcclAlltoAll(const void* in, uint64_t inCount, HcclDataType inType, const void* out, uint64_t outCount,
                            HcclDataType outType, HcclComm handle, aclrtStream stream) {
    auto comm = find(handle);
    if (!comm)
        return HCCL_E_PTR;
    Shares sent, received;
    for (int rank = 0; rank < comm->size; rank++) {
        sent.bytes.push_back(inCount * sizeOf(inType));
        sent.offsets.push_back(rank * sent.bytes.back());
        received.bytes.push_back(outCount * sizeOf(outType));
        received.offsets.push_back(rank * received.bytes.back());
    }
    return allToAll((char*)in, sent, (char*)out, received, inType, outType, handle, stream);
}
EXP HcclResult HcclAlltoAllV(const void* in, const void* inCounts, const void* inOffsets, HcclDataType inType,
                             const void* out, const void* outCounts, const void* outOffsets, HcclDataType outType,
                             HcclComm handle, aclrtStream stream) {
    auto comm = find(handle);
    if (!comm)
        return HCCL_E_PTR;
    auto inBytes = [](const void* counts, int rank, HcclDataType type) {
        return ((const uint64_t*)counts)[rank] * sizeOf(type);
    };
    Shares sent, received;
    for (int rank = 0; rank < comm->size; rank++) {
        sent.bytes.push_back(inBytes(inCounts, rank, inType));
        sent.offsets.push_back(inBytes(inOffsets, rank, inType));
        received.bytes.push_back(inBytes(outCounts, rank, outType));
        received.offsets.push_back(inBytes(outOffsets, rank, outType));
    }
    return allToAll((char*)in, sent, (char*)out, received, inType, outType, handle, stream);
}
EXP HcclResult HcclScatter(void* in, void* out, uint64_t count, HcclDataType type, uint32_t root, HcclComm handle,
                           aclrtStream stream) {
    if (!isRank(handle, root) || !sizeOf(type))
        return HCCL_E_PARA;
    return submit(handle, stream, describe("scatter", count, type, root), [=](Communicator* comm) {
        uint64_t bytes = count * sizeOf(type);
        std::vector<Transfer> transfers;
        if (comm->rank != (int)root)
            transfers.push_back({false, (int)root, (char*)out, bytes, kScatter, (uint32_t)type});
        else
            for (int rank = 0; rank < comm->size; rank++) {
                char* share = (char*)in + rank * bytes;
                if (rank == comm->rank)
                    memmove(out, share, bytes);
                else
                    transfers.push_back({true, rank, share, bytes, kScatter, (uint32_t)type});
            }
        return run(comm, transfers);
    });
}
EXP HcclResult HcclBarrier(HcclComm handle, aclrtStream stream) {
    return submit(handle, stream, "barrier", [](Communicator* comm) {
        char nothing = 0;
        if (int error = reduceTo(comm, 0, &nothing, &nothing, 1, HCCL_DATA_TYPE_INT8, HCCL_REDUCE_SUM, kBarrier))
            return error;
        return fanOut(comm, 0, &nothing, 1, kBarrier, HCCL_DATA_TYPE_INT8);
    });
}
