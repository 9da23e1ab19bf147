// Tensors of the emulated operator library: descriptors, element types, strided views, loops over them.
#pragma once
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "cann.h"
using Is = std::vector<int64_t>;

// ---------------------------------------------------------------- descriptors
struct V {
    bool ok = false;
    int dt = 0;
    Is sh, st;
    int64_t off = 0;
    char* p = nullptr;
    explicit operator bool() const { return ok; }
};
struct aclTensor {
    V v;
};
struct aclScalar {
    int dt;
    double d;
    int64_t i;
};
struct aclTensorList {
    std::vector<aclTensor*> v;
};
struct aclIntArray {
    Is v;
};
struct aclBoolArray {
    std::vector<char> v;
};
struct aclFloatArray {
    std::vector<float> v;
};
struct Exec {
    const char* name;
    std::function<void()> f;
};
struct Sc {
    bool ok = false;
    int dt = ACL_INT64;
    double d = 1;
    int64_t i = 1;  // a missing factor counts as 1
    bool fl() const { return dt == ACL_FLOAT || dt == ACL_DOUBLE || dt == ACL_FLOAT16 || dt == ACL_BF16; }
    template <class C>
    C as() const {
        return fl() ? (C)d : (C)i;
    }
};
using Ls = std::vector<V>;
struct Bs {
    std::vector<char> v;
    bool operator[](size_t i) const { return i < v.size() && v[i]; }
};

static std::string str(const V& v) {
    if (!v)
        return "none";
    std::string s = std::to_string(v.dt) + "[";
    for (auto d : v.sh)
        s += std::to_string(d) + ",";
    return s + "]";
}
[[noreturn]] static void bad(const std::string& s) {
    throw std::runtime_error(s);
}

// ---------------------------------------------------------------- element types
struct F16 {
    uint16_t u;
};
struct B16 {
    uint16_t u;
};
struct B8 {
    uint8_t u;
};
template <class C>
static inline C cv(B16 v) {
    uint32_t u = (uint32_t)v.u << 16;
    float f;
    memcpy(&f, &u, 4);
    return (C)f;
}
template <class C>
static inline C cv(F16 v) {
    int s = v.u >> 15, e = (v.u >> 10) & 31, m = v.u & 1023;
    float f = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf(1024 + m, e - 25) : ldexpf(m, -24);
    return (C)(s ? -f : f);
}
template <class C>
static inline C cv(B8 v) {
    return (C)(v.u != 0);
}
template <class C, class E>
static inline std::enable_if_t<std::is_arithmetic<E>::value, C> cv(E v) {
    return (C)v;
}
template <class C>
static inline void put(B16& o, C c) {
    float f = (float)c;
    uint32_t u;
    memcpy(&u, &f, 4);
    o.u = std::isnan(f) ? 0x7fc0 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
template <class C>
static inline void put(F16& o, C c) {
    float f = (float)c;
    uint16_t s = std::signbit(f) ? 0x8000 : 0;
    f = fabsf(f);
    if (std::isnan(f)) {
        o.u = 0x7e00;
        return;
    }
    if (f >= 65520.f) {
        o.u = s | 0x7c00;
        return;
    }
    if (f < ldexpf(1, -14)) {
        o.u = s | (uint16_t)nearbyintf(ldexpf(f, 24));
        return;
    }
    int e;
    float m = frexpf(f, &e);
    uint32_t r = (uint32_t)nearbyintf(ldexpf(m, 11));
    o.u = s | (uint16_t)(((e + 14) << 10) + (r - 1024));
}
template <class C>
static inline void put(B8& o, C c) {
    o.u = c != 0;
}
template <class C, class E>
static inline std::enable_if_t<std::is_arithmetic<E>::value> put(E& o, C c) {
    o = (E)c;
}
template <class F>
static void withType(int t, F f) {
    switch (t) {
        case ACL_FLOAT: return f((float*)0);
        case ACL_DOUBLE: return f((double*)0);
        case ACL_FLOAT16: return f((F16*)0);
        case ACL_BF16: return f((B16*)0);
        case ACL_INT64: return f((int64_t*)0);
        case ACL_INT32: return f((int32_t*)0);
        case ACL_INT16: return f((int16_t*)0);
        case ACL_INT8: return f((int8_t*)0);
        case ACL_UINT8: return f((uint8_t*)0);
        case ACL_BOOL: return f((B8*)0);
        case ACL_UINT16: return f((uint16_t*)0);
        case ACL_UINT32: return f((uint32_t*)0);
        case ACL_UINT64: return f((uint64_t*)0);
        default: bad("element type " + std::to_string(t));
    }
}
static bool isF(int t) {
    return t == ACL_FLOAT || t == ACL_DOUBLE || t == ACL_FLOAT16 || t == ACL_BF16;
}

// ---------------------------------------------------------------- views
static int64_t num(const Is& s) {
    int64_t n = 1;
    for (auto d : s)
        n *= d;
    return n;
}
static int64_t num(const V& v) {
    return num(v.sh);
}
static Is dense(const Is& s) {
    Is r(s.size(), 1);
    for (int i = (int)s.size() - 2; i >= 0; i--)
        r[i] = r[i + 1] * s[i + 1];
    return r;
}
template <class F>
static void walk(const Is& sh, const Is& st, F f) {  // f(linear index, offset)
    int64_t n = num(sh);
    int r = (int)sh.size();
    if (!n)
        return;
    if (!r) {
        f((int64_t)0, (int64_t)0);
        return;
    }
    Is c(r, 0);
    int64_t off = 0, in = sh[r - 1], is = st[r - 1];
    for (int64_t i = 0; i < n;) {
        for (int64_t j = 0; j < in; j++)
            f(i + j, off + j * is);
        i += in;
        for (int d = r - 2; d >= 0; d--) {
            off += st[d];
            if (++c[d] < sh[d])
                break;
            off -= st[d] * sh[d];
            c[d] = 0;
        }
    }
}
static Is bstr(const Is& sh, const Is& st, const Is& to) {  // strides of a view broadcast to a shape
    Is r(to.size(), 0);
    if (sh.size() > to.size()) {
        if (num(sh) == num(to))
            return dense(to);
        bad("broadcast to fewer dimensions");
    }
    for (size_t i = 0; i < sh.size(); i++) {
        size_t j = to.size() - sh.size() + i;
        if (sh[i] == to[j])
            r[j] = st[i];
        else if (sh[i] != 1)
            bad("shapes do not broadcast");
    }
    return r;
}
template <class C>
using Vec = std::vector<C>;
template <class C>
static Vec<C> rd(const V& t, const Is* to = nullptr) {
    const Is& sh = to ? *to : t.sh;
    Is st = to ? bstr(t.sh, t.st, *to) : t.st;
    Vec<C> o(num(sh));
    withType(t.dt, [&](auto* z) {
        auto p = (const std::remove_pointer_t<decltype(z)>*)t.p + t.off;
        C* q = o.data();
        walk(sh, st, [&](int64_t i, int64_t k) { q[i] = cv<C>(p[k]); });
    });
    return o;
}
template <class C>
static void wr(const V& t, const Vec<C>& v) {
    if ((int64_t)v.size() != num(t))
        bad("result has another size than the output " + str(t));
    withType(t.dt, [&](auto* z) {
        auto p = (std::remove_pointer_t<decltype(z)>*)t.p + t.off;
        const C* q = v.data();
        walk(t.sh, t.st, [&](int64_t i, int64_t k) { put(p[k], q[i]); });
    });
}
template <class F>
static void comp(int ct, F f) {
    if (ct == 2)
        f((double*)0);
    else if (ct == 1)
        f((float*)0);
    else
        f((int64_t*)0);
}
static int ctOf(int dt) {
    return dt == ACL_DOUBLE ? 2 : isF(dt) ? 1 : 0;
}
static int ct(const V& a) {
    return a ? ctOf(a.dt) : 0;
}
template <class... R>
static int ct(const V& a, const R&... r) {
    return std::max(ct(a), ct(r...));
}
static int ct(const Sc& s) {
    return s.ok && s.fl() ? 1 : 0;
}
#define CT(X) using C = std::remove_pointer_t<decltype(X)>
template <class F>
static void un(const V& a, const V& o, F f) {
    comp(ct(a, o), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a, &o.sh);
        for (auto& e : x)
            e = (C)f(e);
        wr(o, x);
    });
}
template <class F>
static void bin(const V& a, const V& b, const V& o, F f) {
    comp(ct(a, b), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a, &o.sh), y = rd<C>(b, &o.sh);
        for (size_t i = 0; i < x.size(); i++)
            x[i] = (C)f(x[i], y[i]);
        wr(o, x);
    });
}
template <class F>
static void bins(const V& a, const Sc& b, const V& o, F f) {
    comp(std::max(ct(a), ct(b)), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a, &o.sh);
        C y = b.as<C>();
        for (auto& e : x)
            e = (C)f(e, y);
        wr(o, x);
    });
}
// an operator that only makes sense on floats
template <class F>
static void unf(const V& a, const V& o, F f) {
    comp(std::max(1, ct(a, o)), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a, &o.sh);
        for (auto& e : x)
            e = (C)f(e);
        wr(o, x);
    });
}
template <class F>
static void binf(const V& a, const V& b, const V& o, F f) {
    comp(std::max(1, ct(a, b, o)), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a, &o.sh), y = rd<C>(b, &o.sh);
        for (size_t i = 0; i < x.size(); i++)
            x[i] = (C)f(x[i], y[i]);
        wr(o, x);
    });
}

static V part(V v, int64_t d, int64_t from, int64_t n) {
    if (d < 0)
        d += v.sh.size();
    v.off += from * v.st[d];
    v.sh[d] = n;
    return v;
}
template <class C, class F>
static void rows(Vec<C>& x, const Is& sh, int64_t d, F f) {
    if (sh.empty()) {
        f(x.data(), (int64_t)1, (int64_t)1, (int64_t)0);
        return;
    }
    if (d < 0)
        d += sh.size();
    int64_t n = sh[d], in = 1;
    for (size_t i = d + 1; i < sh.size(); i++)
        in *= sh[i];
    int64_t out = n && in ? (int64_t)x.size() / (n * in) : 0;
    for (int64_t i = 0; i < out; i++)
        for (int64_t j = 0; j < in; j++)
            f(x.data() + i * n * in + j, in, n, i * in + j);
}

// Implemented in elementwise.cpp, used by other families.
void copyInto(const V& to, const V& from);
void fillWith(const V& to, const Sc& value);
void addInto(const V& to, const V& from, const Sc& factor);
