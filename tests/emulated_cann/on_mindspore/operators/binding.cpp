// The C interface that operators are called through: descriptors, launching, and refusing what isn't there.
#include "operators.h"

static int runExec(void* p) {
    Exec* e = (Exec*)p;
    int r = 0;
    try {
        e->f();
    } catch (std::exception& x) {
        std::string m = std::string("EZ9999: emulated aclnn") + e->name + ": " + x.what();
        fprintf(stderr, "[fake_nn %d] %s\n", (int)getpid(), m.c_str());
        fakeSetErrMsg(m.c_str());
        r = 507015;
    }
    delete e;  // executors are not repeatable: used once
    return r;
}
EXP int fakeLaunch(void*, uint64_t, Exec* e, void* stream) {
    static int tr = envInt("FAKE_NN_TRACE");
    if (tr)
        fprintf(stderr, "[nn %d] %s on stream %d\n", (int)getpid(), e->name, fakeStreamId(stream));
    fakeStreamPush(stream, runExec, e);
    return 0;
}
EXP int fakeUnimplemented(const char* n) {
    fprintf(stderr, "[fake_nn %d] unimplemented %s\n", (int)getpid(), n);
    fakeSetErrMsg((std::string("EZ9999: the emulated CANN has no ") + n).c_str());
    return 561103;
}

EXP aclTensor* aclCreateTensor(const int64_t* d, uint64_t n, int dt, const int64_t* st, int64_t off, int,
                               const int64_t*, uint64_t, void* p) {
    auto t = new aclTensor;
    t->v.ok = true;
    t->v.dt = dt;
    t->v.off = off;
    t->v.p = (char*)p;
    if (n)
        t->v.sh.assign(d, d + n);
    if (st && n)
        t->v.st.assign(st, st + n);
    else
        t->v.st = dense(t->v.sh);
    return t;
}
EXP aclScalar* aclCreateScalar(void* v, int dt) {
    auto s = new aclScalar{dt, 0, 0};
    withType(dt, [&](auto* z) {
        auto e = *(decltype(z))v;
        s->d = cv<double>(e);
        s->i = cv<int64_t>(e);
    });
    return s;
}
EXP aclIntArray* aclCreateIntArray(const int64_t* v, uint64_t n) {
    return new aclIntArray{Is(v, v + n)};
}
EXP aclFloatArray* aclCreateFloatArray(const float* v, uint64_t n) {
    return new aclFloatArray{std::vector<float>(v, v + n)};
}
EXP aclBoolArray* aclCreateBoolArray(const bool* v, uint64_t n) {
    return new aclBoolArray{std::vector<char>(v, v + n)};
}
EXP aclTensorList* aclCreateTensorList(aclTensor* const* v, uint64_t n) {
    return new aclTensorList{std::vector<aclTensor*>(v, v + n)};
}
EXP int aclDestroyTensor(const aclTensor* t) {
    delete t;
    return 0;
}
EXP int aclDestroyScalar(const aclScalar* t) {
    delete t;
    return 0;
}
EXP int aclDestroyIntArray(const aclIntArray* t) {
    delete t;
    return 0;
}
EXP int aclDestroyFloatArray(const aclFloatArray* t) {
    delete t;
    return 0;
}
EXP int aclDestroyBoolArray(const aclBoolArray* t) {
    delete t;
    return 0;
}
EXP int aclDestroyTensorList(const aclTensorList* t) {
    if (t)
        for (auto e : t->v)
            delete e;
    delete t;
    return 0;
}
EXP int aclDestroyAclOpExecutor(Exec*) {
    return 0;
}
EXP int aclSetAclOpExecutorRepeatable(Exec*) {
    return 561101;
}  // makes MindSpore build a fresh executor for every launch
EXP int aclGetViewShape(const aclTensor* t, int64_t** d, uint64_t* n) {
    *n = t->v.sh.size();
    *d = new int64_t[*n + 1];
    std::copy(t->v.sh.begin(), t->v.sh.end(), *d);
    return 0;
}
