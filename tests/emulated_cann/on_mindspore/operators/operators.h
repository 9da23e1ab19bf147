// Emulated operator library (libopapi): aclnn operators on host memory, strided views honoured.
// Computation is done in float (also for half types), double or int64, on contiguous copies.
// This is the binding of such an operator to its C interface.
#pragma once
#include "tensors.h"

template <class R>
struct Raw {
    using T = R;
    static R get(R r) { return r; }
};
template <>
struct Raw<V> {
    using T = const aclTensor*;
    static V get(T t) { return t ? t->v : V{}; }
};
template <>
struct Raw<Sc> {
    using T = const aclScalar*;
    static Sc get(T t) { return t ? Sc{true, t->dt, t->d, t->i} : Sc{}; }
};
template <>
struct Raw<Is> {
    using T = const aclIntArray*;
    static Is get(T t) { return t ? t->v : Is{}; }
};
template <>
struct Raw<Bs> {
    using T = const aclBoolArray*;
    static Bs get(T t) { return t ? Bs{t->v} : Bs{}; }
};
template <>
struct Raw<Ls> {
    using T = const aclTensorList*;
    static Ls get(T t) {
        Ls r;
        if (t)
            for (auto e : t->v)
                r.push_back(e ? e->v : V{});
        return r;
    }
};
template <>
struct Raw<std::string> {
    using T = const char*;
    static std::string get(T t) { return t ? t : ""; }
};
static int envInt(const char* n) {
    const char* v = getenv(n);
    return v && *v ? atoi(v) : 0;
}
static void describe(std::string& s, const V& v) {
    s += " " + str(v);
}
template <class T>
static void describe(std::string&, const T&) {}
template <auto F>
struct Op;
template <class... R, void (*F)(R...)>
struct Op<F> {
    static const char*& name() {
        static const char* n;
        return n;
    }
    static int ws(typename Raw<R>::T... a, uint64_t* w, Exec** e) {
        auto t = std::make_tuple(Raw<R>::get(a)...);
        *w = 0;
        *e = new Exec{name(), [t] {
                          try {
                              std::apply(F, t);
                          } catch (std::exception& x) {
                              std::string s = x.what();
                              std::apply([&](auto&... v) { (describe(s, v), ...); }, t);
                              throw std::runtime_error(s);
                          }
                      }};
        return 0;
    }
};
// OP(Name, parameters) { body }: exports aclnnNameGetWorkspaceSize and aclnnName.
#define OP(N, ...)                                                                                             \
    static void N(__VA_ARGS__);                                                                                \
    extern "C" {                                                                                               \
    __attribute__((visibility("hidden"))) void* fslot_##N = (void*)&Op<&N>::ws;                                \
    }                                                                                                          \
    static const char* fname_##N = Op<&N>::name() = #N;                                                        \
    asm(".text\n.globl aclnn" #N "GetWorkspaceSize\n.type aclnn" #N "GetWorkspaceSize,@function\naclnn" #N     \
        "GetWorkspaceSize: jmp *fslot_" #N "(%rip)\n.globl aclnn" #N "\n.type aclnn" #N ",@function\naclnn" #N \
        ": jmp fakeLaunch@PLT\n");                                                                             \
    static void N(__VA_ARGS__)
#pragma GCC diagnostic ignored "-Wunused-variable"

EXP aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t rank, int type, const int64_t* strides, int64_t offset,
                               int, const int64_t*, uint64_t, void* data);
EXP int fakeLaunch(void*, uint64_t, Exec* e, void* stream);
EXP int fakeUnimplemented(const char* name);
