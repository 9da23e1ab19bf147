// Communicators of the emulated HCCL: made, asked, destroyed.  Each is one file in memory that all its ranks map.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "hccl.h"

using Clock = std::chrono::steady_clock;

namespace {
std::mutex listLock;
// Never destroyed: streams may still run while the process ends.
std::vector<std::shared_ptr<Communicator>>& list() {
    static auto* all = new std::vector<std::shared_ptr<Communicator>>;
    return *all;
}

const std::string kFolder = "/dev/shm/";

// A process that was killed while it waited for others leaves its file behind: drop those of dead ones.
void sweep() {
    DIR* folder = opendir(kFolder.c_str());
    if (!folder)
        return;
    while (dirent* entry = readdir(folder)) {
        int owner = 0;
        if (sscanf(entry->d_name, "emulated-hccl-%d-", &owner) == 1 && owner > 0 && kill(owner, 0) && errno == ESRCH)
            unlink((kFolder + entry->d_name).c_str());
    }
    closedir(folder);
}

Segment* mapSegment(const std::string& path, int size, HcclResult* error) {
    size_t bytes = sizeof(Segment) + sizeof(Channel) * ((size_t)size * size - 1);
    int file = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    *error = HCCL_E_SYSCALL;
    if (file < 0)
        return nullptr;
    void* memory = MAP_FAILED;
    if (ftruncate(file, bytes) == 0) {
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        *error = HCCL_E_MEMORY;
    }
    close(file);
    return memory == MAP_FAILED ? nullptr : (Segment*)memory;
}

HcclResult make(uint32_t size, const std::string& id, uint32_t rank, const char* name, HcclComm* out) {
    if (!out)
        return HCCL_E_PTR;
    if (!size || size > (uint32_t)kMaxRanks || rank >= size)
        return HCCL_E_PARA;
    std::string path = kFolder + id;
    HcclResult error;
    auto comm = std::make_shared<Communicator>();
    comm->segment = mapSegment(path, size, &error);
    if (!comm->segment)
        return error;
    comm->size = size;
    comm->rank = rank;
    comm->nextSend.assign(size, 0);
    comm->nextReceive.assign(size, 0);
    comm->execTimeout = setting("HCCL_EXEC_TIMEOUT", 1836);
    comm->id = id;
    comm->name = name && *name ? name : id;
    trace(comm.get(), "is being made: waits until all %u ranks have joined", size);
    comm->segment->joined.fetch_add(1);
    auto start = Clock::now();
    int limit = setting("HCCL_CONNECT_TIMEOUT", 120);
    while (comm->segment->joined.load() < size) {
        if (Clock::now() - start > std::chrono::seconds(limit)) {
            unlink(path.c_str());
            std::string text = "EI0015: communicator " + comm->name + ": rank " + std::to_string(rank) + " waited " +
                               std::to_string(limit) + " s (HCCL_CONNECT_TIMEOUT), only " +
                               std::to_string(comm->segment->joined.load()) + " of " + std::to_string(size) +
                               " ranks joined";
            fakeSetErrMsg(text.c_str());
            return HCCL_E_TIMEOUT;
        }
        usleep(500);
    }
    unlink(path.c_str());  // all ranks have mapped it: nothing is left behind any more
    trace(comm.get(), "is ready");
    std::lock_guard<std::mutex> lock(listLock);
    list().push_back(comm);
    *out = comm.get();
    return HCCL_SUCCESS;
}
}  // namespace

int setting(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

void trace(Communicator* comm, const char* format, ...) {
    static bool wanted = setting("FAKE_HCCL_TRACE", 0);
    if (!wanted)
        return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "[hccl %s %d/%d] %s\n", comm->name.c_str(), comm->rank, comm->size, text);
}

std::shared_ptr<Communicator> find(HcclComm handle) {
    std::lock_guard<std::mutex> lock(listLock);
    for (auto& comm : list())
        if (comm.get() == handle)
            return comm;
    return nullptr;
}

EXP HcclResult HcclGetRootInfo(HcclRootInfo* root) {
    memset(root, 0, sizeof *root);
    sweep();
    std::random_device random;
    snprintf(root->internal, sizeof root->internal, "emulated-hccl-%d-%08x%08x", (int)getpid(), random(), random());
    return HCCL_SUCCESS;
}
EXP HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* root, uint32_t rank, HcclComm* out) {
    return root ? make(size, root->internal, rank, nullptr, out) : HCCL_E_PTR;
}
EXP HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo* root, uint32_t rank,
                                          const HcclCommConfig* config, HcclComm* out) {
    return root ? make(size, root->internal, rank, config ? config->hcclCommName : nullptr, out) : HCCL_E_PTR;
}
// A sub-communicator takes its id from its parent's, so no root information travels.
EXP HcclResult HcclCreateSubCommConfig(HcclComm* parent, uint32_t size, uint32_t* ranks, uint64_t id, uint32_t rank,
                                       HcclCommConfig* config, HcclComm* out) {
    auto comm = parent && ranks ? find(*parent) : nullptr;
    if (!comm)
        return HCCL_E_PTR;
    return make(size, comm->id + "-s" + std::to_string(id), rank, config ? config->hcclCommName : nullptr, out);
}
EXP HcclResult HcclCommDestroy(HcclComm handle) {
    auto comm = find(handle);
    if (!comm)
        return HCCL_E_PTR;
    trace(comm.get(), "is destroyed");
    comm->destroyed = true;
    ring(&comm->segment->bells[comm->rank]);
    std::lock_guard<std::mutex> lock(listLock);
    for (auto at = list().begin(); at != list().end(); ++at)
        if (*at == comm) {
            list().erase(at);
            break;
        }
    return HCCL_SUCCESS;  // the memory stays mapped until the process ends: peers may still read it
}
EXP HcclResult HcclGetCommName(HcclComm handle, char* out) {
    auto comm = find(handle);
    if (!comm)
        return HCCL_E_PTR;
    snprintf(out, COMM_NAME_MAX_LENGTH, "%s", comm->name.c_str());
    return HCCL_SUCCESS;
}
EXP HcclResult HcclGetCommAsyncError(HcclComm handle, HcclResult* out) {
    auto comm = find(handle);
    if (!comm)
        return HCCL_E_PTR;
    *out = (HcclResult)comm->error.load();
    return HCCL_SUCCESS;
}
EXP HcclResult HcclGetRankSize(HcclComm handle, uint32_t* out) {
    auto comm = find(handle);
    if (!comm)
        return HCCL_E_PTR;
    *out = comm->size;
    return HCCL_SUCCESS;
}
EXP HcclResult HcclGetRankId(HcclComm handle, uint32_t* out) {
    auto comm = find(handle);
    if (!comm)
        return HCCL_E_PTR;
    *out = comm->rank;
    return HCCL_SUCCESS;
}
EXP uint32_t HcclGetCommConfigCapability() {
    return 4;
}
EXP HcclResult HcclCommResume(HcclComm) {
    return HCCL_SUCCESS;
}
EXP const char* HcclGetErrorString(HcclResult result) {
    return result == HCCL_SUCCESS ? "success" : result == HCCL_E_TIMEOUT ? "timeout" : "error";
}
EXP HcclResult HcclSetConfig(int, int) {
    return HCCL_SUCCESS;
}
EXP HcclResult HcclGetConfig(int, int32_t* value) {
    *value = 0;
    return HCCL_SUCCESS;
}

// What neither framework calls in these tests is refused by name.
#define REFUSE(NAME)                                              \
    EXP HcclResult NAME() {                                       \
        fprintf(stderr, "the emulated HCCL has no " #NAME "\n");  \
        fakeSetErrMsg("EE9999: the emulated HCCL has no " #NAME); \
        return HCCL_E_NOT_SUPPORT;                                \
    }
REFUSE(HcclAllGatherV)
REFUSE(HcclReduceScatterV)
REFUSE(HcclAlltoAllVC)
REFUSE(HcclCommInitClusterInfo)
REFUSE(HcclCommInitClusterInfoConfig)
REFUSE(HcclCommWorkingDevNicSet)
REFUSE(HcclCommSetMemoryRange)
REFUSE(HcclCommUnsetMemoryRange)
REFUSE(HcclCommActivateCommMemory)
REFUSE(HcclCommDeactivateCommMemory)
