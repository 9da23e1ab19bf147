// Emulated HCCL between local processes.
//
// A communicator is one shared-memory segment with a channel per ordered pair of
// ranks.  A channel is rendezvous: the receiver posts a descriptor, the sender
// waits for it, checks it, then streams the bytes through a small ring, so a send
// never completes before the matching receive is posted.  Every operation runs
// on the worker of the stream it was given, in stream order.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cann.h"

using Clock = std::chrono::steady_clock;
static const int kMaxRanks = 64, kDesc = 64;
static const size_t kRing = 64 << 10;
static const int kErrTimeout = 507048;  // what a notify-wait timeout surfaces as
static const int kErrMismatch = 507057;

static int envInt(const char* n, int d) {
    const char* v = getenv(n);
    return v && *v ? atoi(v) : d;
}

struct Desc {
    uint32_t kind, dtype;
    uint64_t bytes;
};
struct Chan {
    alignas(64) std::atomic<uint64_t> posted;   // receives posted          (receiver)
    alignas(64) std::atomic<uint64_t> started;  // sends matched            (sender)
    alignas(64) std::atomic<uint64_t> head;     // bytes written            (sender)
    alignas(64) std::atomic<uint64_t> tail;     // bytes read               (receiver)
    alignas(64) Desc desc[kDesc];
    char ring[kRing];
};
struct Seg {
    std::atomic<uint32_t> joined, nranks, failed;
    alignas(64) std::atomic<uint32_t> bell[kMaxRanks];
    alignas(4096) Chan ch[1];
};
static size_t segSize(int n) {
    return sizeof(Seg) + sizeof(Chan) * ((size_t)n * n - 1);
}

static void futexWait(std::atomic<uint32_t>* p, uint32_t v, int ms) {
    timespec t{ms / 1000, (ms % 1000) * 1000000L};
    syscall(SYS_futex, p, FUTEX_WAIT, v, &t, nullptr, 0);
}
static void ring(std::atomic<uint32_t>* p) {
    p->fetch_add(1);
    syscall(SYS_futex, p, FUTEX_WAKE, 64, nullptr, nullptr, 0);
}

struct Comm {
    Seg* seg = nullptr;
    int n = 0, rank = 0, execTimeout = 1836;
    std::string name, id;
    std::mutex mu;                     // operations of one communicator do not overlap
    std::vector<uint64_t> sIdx, rIdx;  // next index per peer, as destination / source
    std::atomic<int> err{0};
    std::atomic<bool> dead{false};
    Chan& chan(int s, int d) { return seg->ch[s * n + d]; }
};
using CommP = std::shared_ptr<Comm>;
static std::mutex gMu;
static std::vector<CommP>& comms() {
    static auto* v = new std::vector<CommP>;
    return *v;
}
static CommP getComm(HcclComm h) {
    std::lock_guard<std::mutex> l(gMu);
    for (auto& c : comms())
        if (c.get() == h)
            return c;
    return nullptr;
}

static void trace(Comm* c, const char* fmt, ...) {
    static int on = envInt("FAKE_HCCL_TRACE", 0);
    if (!on)
        return;
    char b[512];
    va_list a;
    va_start(a, fmt);
    vsnprintf(b, sizeof b, fmt, a);
    va_end(a);
    fprintf(stderr, "[hccl %s %d/%d] %s\n", c->name.c_str(), c->rank, c->n, b);
}

// ------------------------------------------------------------------ transfer engine
struct Item {
    bool send;
    int peer;
    char* p;
    uint64_t bytes;
    uint32_t kind, dtype;
    uint64_t k = 0, off = 0;
    int st = 0;
};
static const char* kindName(uint32_t k) {
    static const char* n[] = {"?",        "sendrecv", "broadcast", "allreduce", "allgather", "reducescatter",
                              "alltoall", "scatter",  "reduce",    "barrier"};
    return k < 10 ? n[k] : "?";
}
enum { K_P2P = 1, K_BCAST, K_ALLREDUCE, K_ALLGATHER, K_REDSCAT, K_A2A, K_SCATTER, K_REDUCE, K_BARRIER };

static int fail(Comm* c, int hccl, int acl, const std::string& msg) {
    c->err = hccl;
    fakeSetErrMsg(msg.c_str());
    fprintf(stderr, "[fake_hccl %s rank %d/%d] %s\n", c->name.c_str(), c->rank, c->n, msg.c_str());
    return acl;
}

static int progressAll(Comm* c, std::vector<Item>& it) {
    std::vector<uint64_t> sDone = c->sIdx, rDone = c->rIdx;
    for (auto& i : it)
        i.k = i.send ? c->sIdx[i.peer]++ : c->rIdx[i.peer]++;
    size_t left = it.size();
    auto t0 = Clock::now();
    auto& bell = c->seg->bell[c->rank];
    while (left) {
        uint32_t seen = bell.load();
        bool moved = false;
        for (auto& i : it) {
            if (i.st == 3)
                continue;
            if (i.send) {
                if (sDone[i.peer] != i.k)
                    continue;
                Chan& h = c->chan(c->rank, i.peer);
                if (i.st == 0) {
                    if (h.posted.load(std::memory_order_acquire) <= i.k)
                        continue;
                    Desc d = h.desc[i.k % kDesc];
                    if (d.kind != i.kind || d.bytes != i.bytes || d.dtype != i.dtype) {
                        char b[400];
                        snprintf(
                            b, sizeof b,
                            "EI0005: The arguments for collective communication are inconsistent between ranks: rank "
                            "%d issues %s of %llu bytes (dtype %u), rank %d expects %s of %llu bytes (dtype %u)",
                            c->rank, kindName(i.kind), (unsigned long long)i.bytes, i.dtype, i.peer, kindName(d.kind),
                            (unsigned long long)d.bytes, d.dtype);
                        c->seg->failed = 1;
                        for (int r = 0; r < c->n; r++)
                            ring(&c->seg->bell[r]);
                        return fail(c, HCCL_E_PARA, kErrMismatch, b);
                    }
                    h.started.store(i.k + 1, std::memory_order_release);
                    i.st = 1;
                    moved = true;
                    ring(&c->seg->bell[i.peer]);
                }
                uint64_t hd = h.head.load(), room = kRing - (hd - h.tail.load(std::memory_order_acquire));
                uint64_t n = std::min<uint64_t>(room, i.bytes - i.off);
                if (n) {
                    size_t o = hd % kRing, a = std::min<size_t>(n, kRing - o);
                    memcpy(h.ring + o, i.p + i.off, a);
                    memcpy(h.ring, i.p + i.off + a, n - a);
                    i.off += n;
                    h.head.store(hd + n, std::memory_order_release);
                    ring(&c->seg->bell[i.peer]);
                    moved = true;
                }
                if (i.off == i.bytes) {
                    i.st = 3;
                    sDone[i.peer]++;
                    left--;
                    moved = true;
                }
            } else {
                Chan& h = c->chan(i.peer, c->rank);
                if (i.st == 0) {
                    if (h.posted.load() != i.k || i.k - rDone[i.peer] >= (uint64_t)kDesc)
                        continue;
                    h.desc[i.k % kDesc] = {i.kind, i.dtype, i.bytes};
                    h.posted.store(i.k + 1, std::memory_order_release);
                    ring(&c->seg->bell[i.peer]);
                    i.st = 1;
                    moved = true;
                }
                if (rDone[i.peer] != i.k)
                    continue;
                if (h.started.load(std::memory_order_acquire) <= i.k)
                    continue;
                uint64_t tl = h.tail.load(),
                         n = std::min<uint64_t>(h.head.load(std::memory_order_acquire) - tl, i.bytes - i.off);
                if (n) {
                    size_t o = tl % kRing, a = std::min<size_t>(n, kRing - o);
                    memcpy(i.p + i.off, h.ring + o, a);
                    memcpy(i.p + i.off + a, h.ring, n - a);
                    i.off += n;
                    h.tail.store(tl + n, std::memory_order_release);
                    ring(&c->seg->bell[i.peer]);
                    moved = true;
                }
                if (i.off == i.bytes) {
                    i.st = 3;
                    rDone[i.peer]++;
                    left--;
                    moved = true;
                }
            }
        }
        if (moved)
            continue;
        if (c->dead)
            return fail(c, HCCL_E_SUSPENDING, kErrTimeout, "communicator destroyed with operations in flight");
        if (c->seg->failed)
            return fail(c, HCCL_E_REMOTE, kErrMismatch, "EI0005: another rank reported inconsistent arguments");
        if (c->execTimeout > 0 && Clock::now() - t0 > std::chrono::seconds(c->execTimeout)) {
            std::string w;
            for (auto& i : it)
                if (i.st != 3)
                    w += std::string(w.empty() ? "" : ", ") + kindName(i.kind) +
                         (i.send ? " send to " : " receive from ") + std::to_string(i.peer) + " (" +
                         std::to_string(i.bytes) + " bytes)";
            return fail(c, HCCL_E_TIMEOUT, kErrTimeout,
                        "EI0002: The wait execution of the Notify register times out. Group " + c->name + ", rank " +
                            std::to_string(c->rank) + " was waiting in: " + w);
        }
        futexWait(&bell, seen, 100);
    }
    return 0;
}

// ------------------------------------------------------------------ element types
static int esize(HcclDataType t) {
    switch (t) {
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
static float bf(uint16_t v) {
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static uint16_t tobf(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if (std::isnan(f))
        return 0x7fc0;
    return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
static float hf(uint16_t v) {
    int s = v >> 15, e = (v >> 10) & 31, m = v & 1023;
    float f = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf(1024 + m, e - 25) : ldexpf(m, -24);
    return s ? -f : f;
}
static uint16_t tohf(float f) {
    uint16_t s = std::signbit(f) ? 0x8000 : 0;
    f = fabsf(f);
    if (std::isnan(f))
        return 0x7e00;
    if (f >= 65520.f)
        return s | 0x7c00;
    if (f < ldexpf(1, -14))
        return s | (uint16_t)nearbyintf(ldexpf(f, 24));
    int e;
    float m = frexpf(f, &e);                           // m in [.5,1)
    uint32_t r = (uint32_t)nearbyintf(ldexpf(m, 11));  // 1024..2048
    return s | (uint16_t)(((e + 14) << 10) + (r - 1024));
}
template <class T>
static T comb(T a, T b, HcclReduceOp o) {
    return o == HCCL_REDUCE_SUM    ? T(a + b)
           : o == HCCL_REDUCE_PROD ? T(a * b)
           : o == HCCL_REDUCE_MAX  ? (a < b ? b : a)
                                   : (b < a ? b : a);
}
template <class T>
static void accT(void* d, const void* s, uint64_t n, HcclReduceOp o) {
    T* x = (T*)d;
    const T* y = (const T*)s;
    for (uint64_t i = 0; i < n; i++)
        x[i] = comb(x[i], y[i], o);
}
static void acc(void* d, const void* s, uint64_t n, HcclDataType t, HcclReduceOp o) {
    switch (t) {
        case HCCL_DATA_TYPE_INT8: return accT<int8_t>(d, s, n, o);
        case HCCL_DATA_TYPE_UINT8: return accT<uint8_t>(d, s, n, o);
        case HCCL_DATA_TYPE_INT16: return accT<int16_t>(d, s, n, o);
        case HCCL_DATA_TYPE_INT32: return accT<int32_t>(d, s, n, o);
        case HCCL_DATA_TYPE_INT64: return accT<int64_t>(d, s, n, o);
        case HCCL_DATA_TYPE_FP32: return accT<float>(d, s, n, o);
        case HCCL_DATA_TYPE_BFP16: {
            auto x = (uint16_t*)d;
            auto y = (const uint16_t*)s;
            for (uint64_t i = 0; i < n; i++)
                x[i] = tobf(comb(bf(x[i]), bf(y[i]), o));
            return;
        }
        case HCCL_DATA_TYPE_FP16: {
            auto x = (uint16_t*)d;
            auto y = (const uint16_t*)s;
            for (uint64_t i = 0; i < n; i++)
                x[i] = tohf(comb(hf(x[i]), hf(y[i]), o));
            return;
        }
        default: return;
    }
}
static bool reducible(HcclDataType t) {
    switch (t) {
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

// ------------------------------------------------------------------ submitting
using Fn = std::function<int(Comm*)>;
struct Job {
    CommP c;
    Fn f;
    std::string what;
};
static int runJob(void* p) {
    std::unique_ptr<Job> j((Job*)p);
    if (j->c->dead)
        return kErrTimeout;
    std::lock_guard<std::mutex> l(j->c->mu);
    trace(j->c.get(), "start %s", j->what.c_str());
    int e = j->f(j->c.get());
    trace(j->c.get(), "%s %s", e ? "FAIL" : "done", j->what.c_str());
    return e;
}
static HcclResult submit(HcclComm h, aclrtStream s, std::string what, Fn f) {
    CommP c = getComm(h);
    if (!c)
        return HCCL_E_PTR;
    if (c->err)
        return (HcclResult)c->err.load();
    trace(c.get(), "enqueue %s on stream %d", what.c_str(), fakeStreamId(s));
    fakeStreamPush(s, runJob, new Job{c, std::move(f), std::move(what)});
    return HCCL_SUCCESS;
}
static std::string lab(const char* n, uint64_t count, HcclDataType t, int peer = -1) {
    return std::string(n) + " count=" + std::to_string(count) + " dtype=" + std::to_string(t) +
           (peer >= 0 ? " peer=" + std::to_string(peer) : "");
}
static bool badPeer(HcclComm h, uint32_t r) {
    CommP c = getComm(h);
    return !c || r >= (uint32_t)c->n;
}

// root <-> everyone, the building blocks of the collectives
static int fanOut(Comm* c, int root, char* p, uint64_t bytes, uint32_t k, uint32_t dt) {
    std::vector<Item> it;
    if (c->rank == root) {
        for (int r = 0; r < c->n; r++)
            if (r != root)
                it.push_back({true, r, p, bytes, k, dt});
    } else
        it.push_back({false, root, p, bytes, k, dt});
    return progressAll(c, it);
}
static int reduceTo(Comm* c, int root, char* in, char* out, uint64_t n, HcclDataType t, HcclReduceOp o, uint32_t k) {
    uint64_t b = n * esize(t);
    std::vector<Item> it;
    if (c->rank != root) {
        it.push_back({true, root, in, b, k, (uint32_t)t});
        return progressAll(c, it);
    }
    std::vector<std::vector<char>> tmp(c->n);
    for (int r = 0; r < c->n; r++)
        if (r != root) {
            tmp[r].resize(b);
            it.push_back({false, r, tmp[r].data(), b, k, (uint32_t)t});
        }
    if (int e = progressAll(c, it))
        return e;
    tmp[root].assign(in, in + b);
    std::vector<char> a = tmp[0];  // always in rank order: deterministic
    for (int r = 1; r < c->n; r++)
        acc(a.data(), tmp[r].data(), n, t, o);
    memcpy(out, a.data(), b);
    return 0;
}

EXP HcclResult HcclSend(void* p, uint64_t n, HcclDataType t, uint32_t peer, HcclComm h, aclrtStream s) {
    if (badPeer(h, peer) || !esize(t))
        return HCCL_E_PARA;
    return submit(h, s, lab("send", n, t, peer), [=](Comm* c) {
        std::vector<Item> it{{true, (int)peer, (char*)p, n * esize(t), K_P2P, (uint32_t)t}};
        return progressAll(c, it);
    });
}
EXP HcclResult HcclRecv(void* p, uint64_t n, HcclDataType t, uint32_t peer, HcclComm h, aclrtStream s) {
    if (badPeer(h, peer) || !esize(t))
        return HCCL_E_PARA;
    return submit(h, s, lab("recv", n, t, peer), [=](Comm* c) {
        std::vector<Item> it{{false, (int)peer, (char*)p, n * esize(t), K_P2P, (uint32_t)t}};
        return progressAll(c, it);
    });
}
EXP HcclResult HcclBatchSendRecv(HcclSendRecvItem* x, uint32_t n, HcclComm h, aclrtStream s) {
    std::vector<Item> it;
    std::string w = "batchsendrecv [";
    for (uint32_t i = 0; i < n; i++) {
        if (badPeer(h, x[i].remoteRank) || !esize(x[i].dataType))
            return HCCL_E_PARA;
        it.push_back({x[i].sendRecvType == HCCL_SEND, (int)x[i].remoteRank, (char*)x[i].buf,
                      x[i].count * esize(x[i].dataType), K_P2P, (uint32_t)x[i].dataType});
        w += std::string(i ? " " : "") + (x[i].sendRecvType == HCCL_SEND ? "S" : "R") +
             std::to_string(x[i].remoteRank) + ":" + std::to_string(x[i].count);
    }
    return submit(h, s, w + "]", [it](Comm* c) {
        auto v = it;
        return progressAll(c, v);
    });
}
EXP HcclResult HcclBroadcast(void* p, uint64_t n, HcclDataType t, uint32_t root, HcclComm h, aclrtStream s) {
    if (badPeer(h, root) || !esize(t))
        return HCCL_E_PARA;
    return submit(h, s, lab("broadcast", n, t, root),
                  [=](Comm* c) { return fanOut(c, root, (char*)p, n * esize(t), K_BCAST, t); });
}
EXP HcclResult HcclAllReduce(void* in, void* out, uint64_t n, HcclDataType t, HcclReduceOp o, HcclComm h,
                             aclrtStream s) {
    if (!reducible(t))
        return HCCL_E_NOT_SUPPORT;
    return submit(h, s, lab("allreduce", n, t), [=](Comm* c) {
        if (int e = reduceTo(c, 0, (char*)in, (char*)out, n, t, o, K_ALLREDUCE))
            return e;
        return fanOut(c, 0, (char*)out, n * esize(t), K_ALLREDUCE, t);
    });
}
EXP HcclResult HcclReduce(void* in, void* out, uint64_t n, HcclDataType t, HcclReduceOp o, uint32_t root, HcclComm h,
                          aclrtStream s) {
    if (badPeer(h, root))
        return HCCL_E_PARA;
    if (!reducible(t))
        return HCCL_E_NOT_SUPPORT;
    return submit(h, s, lab("reduce", n, t, root),
                  [=](Comm* c) { return reduceTo(c, root, (char*)in, (char*)out, n, t, o, K_REDUCE); });
}
EXP HcclResult HcclAllGather(void* in, void* out, uint64_t n, HcclDataType t, HcclComm h, aclrtStream s) {
    if (!esize(t))
        return HCCL_E_PARA;
    return submit(h, s, lab("allgather", n, t), [=](Comm* c) {
        uint64_t b = n * esize(t);
        std::vector<char> mine((char*)in, (char*)in + b);
        std::vector<Item> it;
        for (int r = 0; r < c->n; r++)
            if (r != c->rank) {
                it.push_back({true, r, mine.data(), b, K_ALLGATHER, (uint32_t)t});
                it.push_back({false, r, (char*)out + r * b, b, K_ALLGATHER, (uint32_t)t});
            }
        if (int e = progressAll(c, it))
            return e;
        memcpy((char*)out + c->rank * b, mine.data(), b);
        return 0;
    });
}
EXP HcclResult HcclReduceScatter(void* in, void* out, uint64_t n, HcclDataType t, HcclReduceOp o, HcclComm h,
                                 aclrtStream s) {
    if (!reducible(t))
        return HCCL_E_NOT_SUPPORT;
    return submit(h, s, lab("reducescatter", n, t), [=](Comm* c) {
        uint64_t b = n * esize(t);
        std::vector<std::vector<char>> tmp(c->n);
        std::vector<Item> it;
        for (int r = 0; r < c->n; r++) {
            if (r == c->rank) {
                tmp[r].assign((char*)in + r * b, (char*)in + (r + 1) * b);
                continue;
            }
            tmp[r].resize(b);
            it.push_back({true, r, (char*)in + r * b, b, K_REDSCAT, (uint32_t)t});
            it.push_back({false, r, tmp[r].data(), b, K_REDSCAT, (uint32_t)t});
        }
        if (int e = progressAll(c, it))
            return e;
        std::vector<char> a = tmp[0];
        for (int r = 1; r < c->n; r++)
            acc(a.data(), tmp[r].data(), n, t, o);
        memcpy(out, a.data(), b);
        return 0;
    });
}
static HcclResult a2av(const char* in, std::vector<uint64_t> sb, std::vector<uint64_t> so, char* out,
                       std::vector<uint64_t> rb, std::vector<uint64_t> ro, HcclDataType st, HcclDataType rt, HcclComm h,
                       aclrtStream s) {
    return submit(h, s, "alltoall", [=](Comm* c) {
        std::vector<Item> it;
        for (int r = 0; r < c->n; r++) {
            if (r == c->rank) {
                memmove(out + ro[r], in + so[r], sb[r]);
                continue;
            }
            it.push_back({true, r, (char*)in + so[r], sb[r], K_A2A, (uint32_t)st});
            it.push_back({false, r, out + ro[r], rb[r], K_A2A, (uint32_t)rt});
        }
        return progressAll(c, it);
    });
}
EXP HcclResult HcclAlltoAll(const void* in, uint64_t sc, HcclDataType st, const void* out, uint64_t rc, HcclDataType rt,
                            HcclComm h, aclrtStream s) {
    CommP c = getComm(h);
    if (!c)
        return HCCL_E_PTR;
    std::vector<uint64_t> sb, so, rb, ro;
    for (int r = 0; r < c->n; r++) {
        sb.push_back(sc * esize(st));
        so.push_back(r * sc * esize(st));
        rb.push_back(rc * esize(rt));
        ro.push_back(r * rc * esize(rt));
    }
    return a2av((const char*)in, sb, so, (char*)out, rb, ro, st, rt, h, s);
}
EXP HcclResult HcclAlltoAllV(const void* in, const void* scnt, const void* sdis, HcclDataType st, const void* out,
                             const void* rcnt, const void* rdis, HcclDataType rt, HcclComm h, aclrtStream s) {
    CommP c = getComm(h);
    if (!c)
        return HCCL_E_PTR;
    std::vector<uint64_t> sb, so, rb, ro;
    for (int r = 0; r < c->n; r++) {
        sb.push_back(((uint64_t*)scnt)[r] * esize(st));
        so.push_back(((uint64_t*)sdis)[r] * esize(st));
        rb.push_back(((uint64_t*)rcnt)[r] * esize(rt));
        ro.push_back(((uint64_t*)rdis)[r] * esize(rt));
    }
    return a2av((const char*)in, sb, so, (char*)out, rb, ro, st, rt, h, s);
}
EXP HcclResult HcclScatter(void* in, void* out, uint64_t n, HcclDataType t, uint32_t root, HcclComm h, aclrtStream s) {
    if (badPeer(h, root) || !esize(t))
        return HCCL_E_PARA;
    return submit(h, s, lab("scatter", n, t, root), [=](Comm* c) {
        uint64_t b = n * esize(t);
        std::vector<Item> it;
        if (c->rank != (int)root)
            it.push_back({false, (int)root, (char*)out, b, K_SCATTER, (uint32_t)t});
        else
            for (int r = 0; r < c->n; r++) {
                if (r == c->rank)
                    memmove(out, (char*)in + r * b, b);
                else
                    it.push_back({true, r, (char*)in + r * b, b, K_SCATTER, (uint32_t)t});
            }
        return progressAll(c, it);
    });
}
EXP HcclResult HcclBarrier(HcclComm h, aclrtStream s) {
    return submit(h, s, "barrier", [=](Comm* c) {
        char x = 0;
        if (int e = reduceTo(c, 0, &x, &x, 1, HCCL_DATA_TYPE_INT8, HCCL_REDUCE_SUM, K_BARRIER))
            return e;
        return fanOut(c, 0, &x, 1, K_BARRIER, HCCL_DATA_TYPE_INT8);
    });
}

// ------------------------------------------------------------------ communicators
static std::string segDir() {
    const char* d = getenv("FAKE_HCCL_DIR");
    return d && *d ? d : "/dev/shm";
}
static void sweep();
EXP HcclResult HcclGetRootInfo(HcclRootInfo* r) {
    memset(r, 0, sizeof *r);
    sweep();
    std::random_device rd;
    snprintf(r->internal, sizeof r->internal, "fakehccl-%d-%08x%08x", (int)getpid(), rd(), rd());
    return HCCL_SUCCESS;
}
// A process killed while waiting in comm init leaves its segment behind: drop those of dead roots.
static void sweep() {
    DIR* d = opendir(segDir().c_str());
    if (!d)
        return;
    while (dirent* e = readdir(d)) {
        int pid = 0;
        if (sscanf(e->d_name, "fakehccl-%d-", &pid) == 1 && pid > 0 && kill(pid, 0) && errno == ESRCH)
            unlink((segDir() + "/" + e->d_name).c_str());
    }
    closedir(d);
}
static HcclResult initComm(uint32_t n, const HcclRootInfo* root, uint32_t rank, const HcclCommConfig* cfg,
                           HcclComm* out) {
    if (!root || !out)
        return HCCL_E_PTR;
    if (!n || n > (uint32_t)kMaxRanks || rank >= n)
        return HCCL_E_PARA;
    std::string id(root->internal), path = segDir() + "/" + id;
    int fd = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, segSize(n))) {
        if (fd >= 0)
            close(fd);
        return HCCL_E_SYSCALL;
    }
    void* m = mmap(nullptr, segSize(n), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (m == MAP_FAILED)
        return HCCL_E_MEMORY;
    auto c = std::make_shared<Comm>();
    c->seg = (Seg*)m;
    c->n = n;
    c->rank = rank;
    c->sIdx.assign(n, 0);
    c->rIdx.assign(n, 0);
    c->execTimeout = envInt("HCCL_EXEC_TIMEOUT", 1836);
    c->id = id;
    c->name = cfg && cfg->hcclCommName[0] ? cfg->hcclCommName : id;
    trace(c.get(), "comm init (blocks until all %u ranks join)", n);
    c->seg->joined.fetch_add(1);
    auto t0 = Clock::now();
    int limit = envInt("HCCL_CONNECT_TIMEOUT", 120);
    while (c->seg->joined.load() < n) {
        if (Clock::now() - t0 > std::chrono::seconds(limit)) {
            unlink(path.c_str());
            std::string msg = "EI0015: communicator " + c->name + ": rank " + std::to_string(rank) + " waited " +
                              std::to_string(limit) + " s, only " + std::to_string(c->seg->joined.load()) + " of " +
                              std::to_string(n) + " ranks joined (HCCL_CONNECT_TIMEOUT)";
            fakeSetErrMsg(msg.c_str());
            return HCCL_E_TIMEOUT;
        }
        usleep(500);
    }
    unlink(path.c_str());  // everyone is mapped: nothing can leak any more
    trace(c.get(), "comm ready");
    std::lock_guard<std::mutex> l(gMu);
    comms().push_back(c);
    *out = c.get();
    return HCCL_SUCCESS;
}
EXP HcclResult HcclCommInitRootInfo(uint32_t n, const HcclRootInfo* r, uint32_t rank, HcclComm* c) {
    return initComm(n, r, rank, nullptr, c);
}
EXP HcclResult HcclCommInitRootInfoConfig(uint32_t n, const HcclRootInfo* r, uint32_t rank, const HcclCommConfig* cfg,
                                          HcclComm* c) {
    return initComm(n, r, rank, cfg, c);
}
// A sub-communicator takes its name from its parent, so no root information travels.
EXP HcclResult HcclCreateSubCommConfig(HcclComm* parent, uint32_t n, uint32_t* ids, uint64_t sub, uint32_t rank,
                                       HcclCommConfig* cfg, HcclComm* out) {
    if (!parent || !ids)
        return HCCL_E_PTR;
    CommP p = getComm(*parent);
    if (!p)
        return HCCL_E_PTR;
    HcclRootInfo r{};
    snprintf(r.internal, sizeof r.internal, "%s-s%llx", p->id.c_str(), (unsigned long long)sub);
    return initComm(n, &r, rank, cfg, out);
}
EXP HcclResult HcclCommDestroy(HcclComm h) {
    CommP c = getComm(h);
    if (!c)
        return HCCL_E_PTR;
    trace(c.get(), "comm destroy");
    c->dead = true;
    ring(&c->seg->bell[c->rank]);
    std::lock_guard<std::mutex> l(gMu);
    for (size_t i = 0; i < comms().size(); i++)
        if (comms()[i] == c) {
            comms().erase(comms().begin() + i);
            break;
        }
    return HCCL_SUCCESS;  // the mapping is left to process exit: peers may still read it
}
EXP HcclResult HcclGetCommName(HcclComm h, char* o) {
    CommP c = getComm(h);
    if (!c)
        return HCCL_E_PTR;
    snprintf(o, COMM_NAME_MAX_LENGTH, "%s", c->name.c_str());
    return HCCL_SUCCESS;
}
EXP HcclResult HcclGetCommAsyncError(HcclComm h, HcclResult* e) {
    CommP c = getComm(h);
    if (!c)
        return HCCL_E_PTR;
    *e = (HcclResult)c->err.load();
    return HCCL_SUCCESS;
}
EXP HcclResult HcclGetRankSize(HcclComm h, uint32_t* n) {
    CommP c = getComm(h);
    if (!c)
        return HCCL_E_PTR;
    *n = c->n;
    return HCCL_SUCCESS;
}
EXP HcclResult HcclGetRankId(HcclComm h, uint32_t* r) {
    CommP c = getComm(h);
    if (!c)
        return HCCL_E_PTR;
    *r = c->rank;
    return HCCL_SUCCESS;
}
EXP uint32_t HcclGetCommConfigCapability() {
    return 4;
}
EXP HcclResult HcclCommResume(HcclComm) {
    return HCCL_SUCCESS;
}
EXP const char* HcclGetErrorString(HcclResult r) {
    return r == HCCL_SUCCESS ? "success" : r == HCCL_E_TIMEOUT ? "timeout" : "error";
}
EXP HcclResult HcclSetConfig(int, int) {
    return HCCL_SUCCESS;
}
EXP HcclResult HcclGetConfig(int, int32_t* value) {
    *value = 0;
    return HCCL_SUCCESS;
}
#define REFUSE(N)                                              \
    EXP HcclResult N() {                                       \
        fprintf(stderr, "[fake_hccl] unimplemented " #N "\n"); \
        fakeSetErrMsg("the emulated HCCL has no " #N);         \
        return HCCL_E_NOT_SUPPORT;                             \
    }
REFUSE(HcclAllGatherV)
REFUSE(HcclReduceScatterV) REFUSE(HcclAlltoAllVC) REFUSE(HcclCommInitClusterInfo) REFUSE(HcclCommInitClusterInfoConfig)
    REFUSE(HcclCommWorkingDevNicSet) REFUSE(HcclCommSetMemoryRange) REFUSE(HcclCommUnsetMemoryRange)
        REFUSE(HcclCommActivateCommMemory) REFUSE(HcclCommDeactivateCommMemory)
