// Casting, joining, cutting and repeating; ranges and triangles.
#include "operators.h"

OP(Cast, V a, int, V o) {
    comp(ct(a, o), [&](auto* z) {
        CT(z);
        wr(o, rd<C>(a));
    });
}
OP(Expand, V a, Is, V o) {
    copyInto(o, a);
}
OP(Permute, V a, Is d, V o) {
    V b = a;
    for (size_t i = 0; i < d.size(); i++) {
        int64_t k = d[i] < 0 ? d[i] + (int64_t)d.size() : d[i];
        b.sh[i] = a.sh[k];
        b.st[i] = a.st[k];
    }
    copyInto(o, b);
}
OP(Cat, Ls l, int64_t d, V o) {
    int64_t at = 0;
    if (d < 0)
        d += o.sh.size();
    for (auto& v : l) {
        if (v.sh.size() != o.sh.size())
            continue;
        copyInto(part(o, d, at, v.sh[d]), v);
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
        copyInto(p, l[i]);
    }
}
static void split(const V& a, int64_t d, const Ls& l) {
    int64_t at = 0;
    if (d < 0)
        d += a.sh.size();
    for (auto& v : l) {
        copyInto(v, part(a, d, at, v.sh[d]));
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
    copyInto(o, v);
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
    copyInto(v, b);
}
OP(ConstantPadNd, V a, Is p, Sc s, V o) {  // a negative amount crops
    fillWith(o, s);
    V d = o, x = a;
    for (size_t i = 0; i < p.size() / 2; i++) {
        size_t k = a.sh.size() - 1 - i;
        int64_t b = p[2 * i], e = p[2 * i + 1];
        x = part(x, k, std::max<int64_t>(0, -b), a.sh[k] + std::min<int64_t>(0, b) + std::min<int64_t>(0, e));
        d = part(d, k, std::max<int64_t>(0, b), x.sh[k]);
    }
    copyInto(d, x);
}
OP(Flip, V a, Is d, V o) {
    for (auto k : d) {
        if (k < 0)
            k += a.sh.size();
        a.off += (a.sh[k] - 1) * a.st[k];
        a.st[k] = -a.st[k];
    }
    copyInto(o, a);
}
OP(Roll, V a, Is sh, Is d, V o) {
    V x = a;
    if (d.size() != 1)
        bad("roll over several dimensions");
    int64_t k = d[0] < 0 ? d[0] + a.sh.size() : d[0], n = a.sh[k], s = ((sh[0] % n) + n) % n;
    copyInto(part(o, k, s, n - s), part(a, k, 0, n - s));
    copyInto(part(o, k, 0, s), part(a, k, n - s, s));
}
