// Element-wise operators, filling and copying, and the legacy path that a few of them still take.
#include "operators.h"

// ---------------------------------------------------------------- element-wise
OP(Add, V a, V b, Sc s, V o) {
    comp(ct(a, b), [&](auto* z) {
        CT(z);
        C k = s.ok ? s.as<C>() : (C)1;
        bin(a, b, o, [=](auto x, auto y) { return x + (decltype(x))k * y; });
    });
}
OP(Adds, V a, Sc b, Sc s, V o) {
    bins(a, b, o, [&](auto x, auto y) { return x + s.as<decltype(x)>() * y; });
}
OP(InplaceAdd, V a, V b, Sc s) {
    Add(a, b, s, a);
}
OP(InplaceAdds, V a, Sc b, Sc s) {
    Adds(a, b, s, a);
}
OP(Sub, V a, V b, Sc s, V o) {
    bin(a, b, o, [&](auto x, auto y) { return x - s.as<decltype(x)>() * y; });
}
OP(Subs, V a, Sc b, Sc s, V o) {
    bins(a, b, o, [&](auto x, auto y) { return x - s.as<decltype(x)>() * y; });
}
OP(InplaceSub, V a, V b, Sc s) {
    Sub(a, b, s, a);
}
OP(InplaceSubs, V a, Sc b, Sc s) {
    Subs(a, b, s, a);
}
OP(Mul, V a, V b, V o) {
    bin(a, b, o, [](auto x, auto y) { return x * y; });
}
OP(Muls, V a, Sc b, V o) {
    bins(a, b, o, [](auto x, auto y) { return x * y; });
}
OP(InplaceMul, V a, V b) {
    Mul(a, b, a);
}
OP(InplaceMuls, V a, Sc b) {
    Muls(a, b, a);
}
OP(Div, V a, V b, V o) {
    binf(a, b, o, [](auto x, auto y) { return x / y; });
}
OP(Divs, V a, Sc b, V o) {
    unf(a, o, [&](auto x) { return x / b.as<decltype(x)>(); });
}
OP(InplaceDiv, V a, V b) {
    Div(a, b, a);
}
OP(InplaceDivs, V a, Sc b) {
    Divs(a, b, a);
}
template <class T>
static T dm(T x, T y, int mode) {
    auto q = (double)x / (double)y;
    if (std::is_same<T, float>::value)
        q = (float)x / (float)y;
    return mode == 1 ? (T)std::trunc(q) : mode == 2 ? (T)std::floor(q) : (T)q;
}
OP(DivMod, V a, V b, int m, V o) {
    bin(a, b, o, [=](auto x, auto y) { return dm(x, y, m); });
}
OP(DivMods, V a, Sc b, int m, V o) {
    bins(a, b, o, [=](auto x, auto y) { return dm(x, y, m); });
}
OP(FloorDivide, V a, V b, V o) {
    DivMod(a, b, 2, o);
}
OP(FloorDivides, V a, Sc b, V o) {
    DivMods(a, b, 2, o);
}
template <class T>
static T rem(T x, T y) {
    if constexpr (std::is_integral<T>::value) {
        T r = x % y;
        return r && ((r < 0) != (y < 0)) ? r + y : r;
    } else {
        T r = std::fmod(x, y);
        return r != 0 && ((r < 0) != (y < 0)) ? r + y : r;
    }
}
OP(RemainderTensorTensor, V a, V b, V o) {
    bin(a, b, o, [](auto x, auto y) { return rem(x, y); });
}
OP(RemainderTensorScalar, V a, Sc b, V o) {
    bins(a, b, o, [](auto x, auto y) { return rem(x, y); });
}
OP(Maximum, V a, V b, V o) {
    bin(a, b, o, [](auto x, auto y) { return x < y ? y : x; });
}
OP(Minimum, V a, V b, V o) {
    bin(a, b, o, [](auto x, auto y) { return y < x ? y : x; });
}
template <class T>
static T pw(T x, T y) {
    if constexpr (std::is_integral<T>::value)
        return (T)std::llround(std::pow((double)x, (double)y));
    else
        return y == 2 ? x * x : std::pow(x, y);
}
OP(PowTensorScalar, V a, Sc b, V o) {
    if (isF(o.dt))
        unf(a, o, [&](auto x) { return pw(x, b.as<decltype(x)>()); });
    else
        bins(a, b, o, [](auto x, auto y) { return pw(x, y); });
}
OP(PowTensorTensor, V a, V b, V o) {
    bin(a, b, o, [](auto x, auto y) { return pw(x, y); });
}
OP(PowScalarTensor, Sc b, V a, V o) {
    bins(a, b, o, [](auto x, auto y) { return pw(y, x); });
}
OP(Neg, V a, V o) {
    un(a, o, [](auto x) { return -x; });
}
OP(Abs, V a, V o) {
    un(a, o, [](auto x) { return x < 0 ? -x : x; });
}
OP(Sign, V a, V o) {
    un(a, o, [](auto x) { return (x > 0) - (x < 0); });
}
OP(Relu, V a, V o) {
    un(a, o, [](auto x) { return x > 0 ? x : 0; });
}
OP(InplaceRelu, V a) {
    Relu(a, a);
}
#define UNF(N, E)                            \
    OP(N, V a, V o) {                        \
        unf(a, o, [](auto x) { return E; }); \
    }
UNF(Sqrt, std::sqrt(x))
UNF(Rsqrt, 1 / std::sqrt(x))
UNF(Exp, std::exp(x)) UNF(Log, std::log(x)) UNF(Log1p, std::log1p(x)) UNF(Reciprocal, 1 / x) UNF(Tanh, std::tanh(x))
    UNF(Sigmoid, 1 / (1 + std::exp(-x))) UNF(Silu, x / (1 + std::exp(-x))) UNF(Sin, std::sin(x)) UNF(Cos, std::cos(x))
        UNF(Erf, std::erf(x)) UNF(Floor, std::floor(x)) UNF(Ceil, std::ceil(x)) UNF(Trunc, std::trunc(x))
            UNF(Expm1, std::expm1(x)) UNF(Log2, std::log2(x)) OP(InplaceTanh, V a) {
    Tanh(a, a);
}
OP(InplaceSigmoid, V a) {
    Sigmoid(a, a);
}
OP(InplaceExp, V a) {
    Exp(a, a);
}
OP(InplaceLog, V a) {
    Log(a, a);
}
OP(TanhBackward, V g, V y, V o) {
    binf(g, y, o, [](auto d, auto t) { return d * (1 - t * t); });
}
OP(SigmoidBackward, V g, V y, V o) {
    binf(g, y, o, [](auto d, auto t) { return d * t * (1 - t); });
}
OP(SiluBackward, V g, V x, V o) {
    binf(g, x, o, [](auto d, auto t) {
        auto s = 1 / (1 + std::exp(-t));
        return d * s * (1 + t * (1 - s));
    });
}
OP(ThresholdBackward, V g, V x, Sc s, V o) {
    binf(g, x, o, [&](auto d, auto t) { return t > s.as<decltype(t)>() ? d : 0; });
}
#define CMP(N, E)                                        \
    OP(N##Tensor, V a, V b, V o) {                       \
        bin(a, b, o, [](auto x, auto y) { return E; });  \
    }                                                    \
    OP(N##Scalar, V a, Sc b, V o) {                      \
        bins(a, b, o, [](auto x, auto y) { return E; }); \
    }
CMP(Eq, x == y) CMP(Ne, x != y) CMP(Lt, x < y) CMP(Le, x <= y) CMP(Gt, x > y) CMP(Ge, x >= y) OP(LogicalNot, V a, V o) {
    un(a, o, [](auto x) { return x == 0; });
}
OP(LogicalAnd, V a, V b, V o) {
    bin(a, b, o, [](auto x, auto y) { return x != 0 && y != 0; });
}
OP(LogicalOr, V a, V b, V o) {
    bin(a, b, o, [](auto x, auto y) { return x != 0 || y != 0; });
}
OP(IsFinite, V a, V o) {
    unf(a, o, [](auto x) { return std::isfinite(x); });
}
OP(IsInf, V a, V o) {
    unf(a, o, [](auto x) { return std::isinf(x); });
}
OP(Clamp, V a, Sc lo, Sc hi, V o) {
    un(a, o, [&](auto x) {
        using T = decltype(x);
        if (lo.ok && x < lo.as<T>())
            x = lo.as<T>();
        if (hi.ok && x > hi.as<T>())
            x = hi.as<T>();
        return x;
    });
}
OP(SWhere, V c, V a, V b, V o) {
    comp(ct(a, b), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a, &o.sh), y = rd<C>(b, &o.sh);
        auto m = rd<int64_t>(c, &o.sh);
        for (size_t i = 0; i < x.size(); i++)
            if (!m[i])
                x[i] = y[i];
        wr(o, x);
    });
}
OP(InplaceMaskedFillScalar, V a, V m, Sc s) {
    comp(std::max(ct(a), 0), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        auto k = rd<int64_t>(m, &a.sh);
        for (size_t i = 0; i < x.size(); i++)
            if (k[i])
                x[i] = s.as<C>();
        wr(a, x);
    });
}
OP(InplaceMaskedFillTensor, V a, V m, V s) {
    comp(ct(a), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        auto k = rd<int64_t>(m, &a.sh);
        C v = rd<C>(s)[0];
        for (size_t i = 0; i < x.size(); i++)
            if (k[i])
                x[i] = v;
        wr(a, x);
    });
}
OP(Addcmul, V a, V b, V c, Sc s, V o) {
    comp(ct(a, b, c), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a, &o.sh), y = rd<C>(b, &o.sh), w = rd<C>(c, &o.sh);
        for (size_t i = 0; i < x.size(); i++)
            x[i] += s.as<C>() * y[i] * w[i];
        wr(o, x);
    });
}
OP(Addcdiv, V a, V b, V c, Sc s, V o) {
    comp(std::max(1, ct(a, b, c)), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a, &o.sh), y = rd<C>(b, &o.sh), w = rd<C>(c, &o.sh);
        for (size_t i = 0; i < x.size(); i++)
            x[i] += s.as<C>() * y[i] / w[i];
        wr(o, x);
    });
}
OP(Lerps, V a, V b, Sc s, V o) {
    binf(a, b, o, [&](auto x, auto y) { return x + s.as<decltype(x)>() * (y - x); });
}

// ---------------------------------------------------------------- filling and copying
OP(InplaceFillScalar, V a, Sc s) {
    comp(ct(a), [&](auto* z) {
        CT(z);
        wr(a, Vec<C>(num(a), s.as<C>()));
    });
}
OP(InplaceFillTensor, V a, V s) {
    comp(ct(a), [&](auto* z) {
        CT(z);
        wr(a, Vec<C>(num(a), rd<C>(s)[0]));
    });
}
OP(InplaceZero, V a) {
    wr(a, Vec<int64_t>(num(a), 0));
}
OP(InplaceOne, V a) {
    wr(a, Vec<int64_t>(num(a), 1));
}
OP(InplaceCopy, V a, V b) {
    comp(ct(a, b), [&](auto* z) {
        CT(z);
        wr(a, rd<C>(b, &a.sh));
    });
}
void copyInto(const V& to, const V& from) {
    InplaceCopy(to, from);
}
void fillWith(const V& to, const Sc& value) {
    InplaceFillScalar(to, value);
}
void addInto(const V& to, const V& from, const Sc& factor) {
    InplaceAdd(to, from, factor);
}

// ---------------------------------------------------------------- legacy "aclop" path, for the few operators MindSpore
// still sends there
struct Attr {
    int unused;
};
struct Buf {
    void* p;
    size_t n;
};
EXP aclTensor* aclCreateTensorDesc(int dt, int n, const int64_t* d, int f) {
    return aclCreateTensor(d, n, dt, nullptr, 0, f, nullptr, 0, nullptr);
}
EXP void aclDestroyTensorDesc(const aclTensor* t) {
    delete t;
}
EXP int aclGetTensorDescType(const aclTensor* t) {
    return t->v.dt;
}
EXP size_t aclGetTensorDescNumDims(const aclTensor* t) {
    return t->v.sh.size();
}
EXP int aclGetTensorDescDimV2(const aclTensor* t, size_t i, int64_t* d) {
    if (i >= t->v.sh.size())
        return ACL_ERROR_INVALID_PARAM;
    *d = t->v.sh[i];
    return 0;
}
EXP Buf* aclCreateDataBuffer(void* p, size_t n) {
    return new Buf{p, n};
}
EXP int aclDestroyDataBuffer(const Buf* b) {
    delete b;
    return 0;
}
EXP int aclUpdateDataBuffer(Buf* b, void* p, size_t n) {
    *b = {p, n};
    return 0;
}
EXP void* aclGetDataBufferAddr(const Buf* b) {
    return b ? b->p : nullptr;
}
EXP Attr* aclopCreateAttr() {
    return new Attr;
}
EXP void aclopDestroyAttr(const Attr* a) {
    delete a;
}
static std::function<void(Ls, Ls)> legacy(const std::string& n) {
    using F = std::function<void(Ls, Ls)>;
    if (n == "SqrtGrad")
        return F([](Ls i, Ls o) { binf(i[0], i[1], o[0], [](auto y, auto d) { return d / (2 * y); }); });
    if (n == "RsqrtGrad")
        return F([](Ls i, Ls o) { binf(i[0], i[1], o[0], [](auto y, auto d) { return d * y * y * y / -2; }); });
    if (n == "ReciprocalGrad")
        return F([](Ls i, Ls o) { binf(i[0], i[1], o[0], [](auto y, auto d) { return -d * y * y; }); });
    if (n == "Cast" || n == "Identity" || n == "TensorMove")
        return F([](Ls i, Ls o) { InplaceCopy(o[0], i[0]); });
    if (n == "ZerosLike")
        return F([](Ls, Ls o) { InplaceZero(o[0]); });
    if (n == "OnesLike")
        return F([](Ls, Ls o) { InplaceOne(o[0]); });
    if (n == "BiasAdd")
        return F([](Ls i, Ls o) { Add(i[0], i[1], Sc{}, o[0]); });
    return nullptr;
}
static int runLegacy(const char* op, int ni, const aclTensor* const* id, const Buf* const* in, int no,
                     const aclTensor* const* od, Buf* const* out, void* stream) {
    auto f = legacy(op);
    if (!f)
        return fakeUnimplemented((std::string("aclop ") + op).c_str());
    Ls a, b;
    for (int i = 0; i < ni; i++) {
        a.push_back(id[i]->v);
        a.back().p = (char*)in[i]->p;
    }
    for (int i = 0; i < no; i++) {
        b.push_back(od[i]->v);
        b.back().p = (char*)out[i]->p;
    }
    return fakeLaunch(nullptr, 0, new Exec{"(legacy)", [=] { f(a, b); }}, stream);
}
EXP int aclopCompileAndExecute(const char* op, int ni, const aclTensor* const* id, const Buf* const* in, int no,
                               const aclTensor* const* od, Buf* const* out, const Attr*, int, int, const char*,
                               void* s) {
    return runLegacy(op, ni, id, in, no, od, out, s);
}
EXP int aclopCompileAndExecuteV2(const char* op, int ni, aclTensor** id, Buf** in, int no, aclTensor** od, Buf** out,
                                 Attr*, int, int, const char*, void* s) {
    return runLegacy(op, ni, id, in, no, od, out, s);
}
