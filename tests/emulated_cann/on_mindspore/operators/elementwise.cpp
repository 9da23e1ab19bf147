// Element-wise operators, filling and moving, and the legacy path that a few of them still take.
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
template <class T>
static T gelu(T x, bool tanh_) {
    return tanh_ ? x / 2 * (1 + std::tanh((T)0.7978845608028654 * (x + (T)0.044715 * x * x * x)))
                 : x / 2 * (1 + std::erf(x * (T)0.7071067811865476));
}
template <class T>
static T dgelu(T x, bool tanh_) {
    if (!tanh_)
        return (1 + std::erf(x * (T)0.7071067811865476)) / 2 + x * (T)0.3989422804014327 * std::exp(-x * x / 2);
    T k = (T)0.7978845608028654, t = std::tanh(k * (x + (T)0.044715 * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * k * (1 + 3 * (T)0.044715 * x * x);
}
OP(Gelu, V a, V o) {
    unf(a, o, [](auto x) { return gelu(x, false); });
}
OP(GeluBackward, V g, V a, V o) {
    binf(g, a, o, [](auto d, auto x) { return d * dgelu(x, false); });
}
OP(GeluV2, V a, int64_t m, V o) {
    unf(a, o, [=](auto x) { return gelu(x, m == 1); });
}
OP(GeluBackwardV2, V g, V a, std::string m, V o) {
    binf(g, a, o, [&](auto d, auto x) { return d * dgelu(x, m == "tanh"); });
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

// ---------------------------------------------------------------- filling and moving
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
OP(Cast, V a, int, V o) {
    comp(ct(a, o), [&](auto* z) {
        CT(z);
        wr(o, rd<C>(a));
    });
}
OP(Expand, V a, Is, V o) {
    InplaceCopy(o, a);
}
OP(Permute, V a, Is d, V o) {
    V b = a;
    for (size_t i = 0; i < d.size(); i++) {
        int64_t k = d[i] < 0 ? d[i] + (int64_t)d.size() : d[i];
        b.sh[i] = a.sh[k];
        b.st[i] = a.st[k];
    }
    InplaceCopy(o, b);
}
OP(Cat, Ls l, int64_t d, V o) {
    int64_t at = 0;
    if (d < 0)
        d += o.sh.size();
    for (auto& v : l) {
        if (v.sh.size() != o.sh.size())
            continue;
        InplaceCopy(part(o, d, at, v.sh[d]), v);
        at += v.sh[d];
    }
}
OP(Stack, Ls l, int64_t d, V o) {
    if (d < 0)
        d += o.sh.size();
    for (size_t i = 0; i < l.size(); i++) {
        V p = part(o, d, i, 1);
        p.sh.erase(p.sh.begin() + d);
        p.st.erase(p.st.begin() + d);
        InplaceCopy(p, l[i]);
    }
}
static void split(const V& a, int64_t d, const Ls& l) {
    int64_t at = 0;
    if (d < 0)
        d += a.sh.size();
    for (auto& v : l) {
        InplaceCopy(v, part(a, d, at, v.sh[d]));
        at += v.sh[d];
    }
}
OP(SplitTensor, V a, uint64_t, int64_t d, Ls l) {
    split(a, d, l);
}
OP(SplitWithSize, V a, Is, int64_t d, Ls l) {
    split(a, d, l);
}
OP(Slice, V a, int64_t d, int64_t b, int64_t, int64_t s, V o) {
    V v = part(a, d, b, o.sh[d < 0 ? d + o.sh.size() : d]);
    v.st[d < 0 ? d + v.st.size() : d] *= s;
    InplaceCopy(o, v);
}
OP(Arange, Sc b, Sc, Sc s, V o) {
    comp(ct(o), [&](auto* z) {
        CT(z);
        Vec<C> x(num(o));
        for (size_t i = 0; i < x.size(); i++)
            x[i] = b.as<C>() + (C)i * s.as<C>();
        wr(o, x);
    });
}
OP(Eye, int64_t n, int64_t m, V o) {
    Vec<int64_t> x(num(o), 0);
    for (int64_t i = 0; i < n && i < m; i++)
        x[i * m + i] = 1;
    wr(o, x);
}
static void tri(const V& a, int64_t k, const V& o, bool lower) {
    comp(ct(a), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        int64_t r = a.sh[a.sh.size() - 2], c = a.sh.back();
        for (size_t i = 0; i < x.size(); i++) {
            int64_t row = (int64_t)(i / c) % r, col = i % c;
            if (lower ? col - row > k : col - row < k)
                x[i] = 0;
        }
        wr(o, x);
    });
}
OP(Tril, V a, int64_t k, V o) {
    tri(a, k, o, true);
}
OP(Triu, V a, int64_t k, V o) {
    tri(a, k, o, false);
}
OP(Repeat, V a, Is r, V o) {
    V v = o;  // o viewed as [r0,a0,r1,a1,...]
    Is sh, st, as;
    V b = a;
    while (b.sh.size() < r.size()) {
        b.sh.insert(b.sh.begin(), 1);
        b.st.insert(b.st.begin(), 0);
    }
    for (size_t i = 0; i < r.size(); i++) {
        sh.push_back(r[i]);
        sh.push_back(b.sh[i]);
        st.push_back(o.st[i] * b.sh[i]);
        st.push_back(o.st[i]);
        as.push_back(0);
        as.push_back(b.st[i]);
    }
    v.sh = sh;
    v.st = st;
    b.sh = sh;
    b.st = as;
    InplaceCopy(v, b);
}
OP(ConstantPadNd, V a, Is p, Sc s, V o) {  // a negative amount crops
    InplaceFillScalar(o, s);
    V d = o, x = a;
    for (size_t i = 0; i < p.size() / 2; i++) {
        size_t k = a.sh.size() - 1 - i;
        int64_t b = p[2 * i], e = p[2 * i + 1];
        x = part(x, k, std::max<int64_t>(0, -b), a.sh[k] + std::min<int64_t>(0, b) + std::min<int64_t>(0, e));
        d = part(d, k, std::max<int64_t>(0, b), x.sh[k]);
    }
    InplaceCopy(d, x);
}
OP(Flip, V a, Is d, V o) {
    for (auto k : d) {
        if (k < 0)
            k += a.sh.size();
        a.off += (a.sh[k] - 1) * a.st[k];
        a.st[k] = -a.st[k];
    }
    InplaceCopy(o, a);
}
OP(Roll, V a, Is sh, Is d, V o) {
    V x = a;
    if (d.size() != 1)
        bad("roll over several dimensions");
    int64_t k = d[0] < 0 ? d[0] + a.sh.size() : d[0], n = a.sh[k], s = ((sh[0] % n) + n) % n;
    InplaceCopy(part(o, k, s, n - s), part(a, k, 0, n - s));
    InplaceCopy(part(o, k, 0, s), part(a, k, n - s, s));
}

void copyInto(const V& to, const V& from) {
    InplaceCopy(to, from);
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
