// Embedding, gathering and scattering, sorting.
#include "operators.h"

OP(Embedding, V w, V ix, V o) {
    auto y = rd<int64_t>(ix);
    V r = o;
    r.sh = {(int64_t)y.size(), w.sh[1]};
    if (o.st != dense(o.sh))
        bad("embedding into a view");
    r.st = dense(r.sh);
    for (size_t i = 0; i < y.size(); i++) {
        if (y[i] < 0 || y[i] >= w.sh[0])
            bad("embedding index out of range");
        copyInto(part(r, 0, i, 1), part(w, 0, y[i], 1));
    }
}
OP(EmbeddingDenseBackward, V g, V ix, uint64_t, uint64_t pad, bool, V o) {
    auto d = rd<float>(g);
    auto y = rd<int64_t>(ix);
    int64_t n = o.sh[1];
    Vec<float> r(num(o), 0);
    for (size_t i = 0; i < y.size(); i++)
        if ((uint64_t)y[i] != pad)
            for (int64_t j = 0; j < n; j++)
                r[y[i] * n + j] += d[i * n + j];
    wr(o, r);
}
OP(IndexSelect, V a, int64_t d, V ix, V o) {
    auto y = rd<int64_t>(ix);
    for (size_t i = 0; i < y.size(); i++)
        copyInto(part(o, d, i, 1), part(a, d, y[i] < 0 ? y[i] + a.sh[d < 0 ? d + a.sh.size() : d] : y[i], 1));
}
static int64_t at(const Is& sh, const Is& st, int64_t lin, int64_t d, int64_t v) {
    int64_t o = 0;
    for (int k = (int)sh.size() - 1; k >= 0; k--) {
        int64_t c = lin % sh[k];
        lin /= sh[k];
        o += (k == d ? v : c) * st[k];
    }
    return o;
}
OP(Gather, V a, int64_t d, V ix, V o) {
    if (d < 0)
        d += a.sh.size();
    auto y = rd<int64_t>(ix);
    comp(ct(a), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        Is st = dense(a.sh);
        Vec<C> r(y.size());
        for (size_t i = 0; i < y.size(); i++) {
            int64_t k = y[i] < 0 ? y[i] + a.sh[d] : y[i];
            if (k < 0 || k >= a.sh[d])
                bad("gather index out of range");
            r[i] = x[at(ix.sh, st, i, d, k)];
        }
        wr(o, r);
    });
}
OP(ScatterAdd, V a, int64_t d, V ix, V s, V o) {
    if (d < 0)
        d += a.sh.size();
    auto y = rd<int64_t>(ix);
    comp(ct(a), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a), w = rd<C>(part(s, 0, 0, s.sh[0]), &ix.sh);
        Is st = dense(a.sh);
        for (size_t i = 0; i < y.size(); i++)
            x[at(ix.sh, st, i, d, y[i])] += w[i];
        wr(o, x);
    });
}
static void scatter(const V& a, int64_t d, const V& ix, const V& s, const Sc& val, int64_t red, const V& o) {
    if (d < 0)
        d += a.sh.size();
    auto y = rd<int64_t>(ix);
    comp(ct(a), [&](auto* z) {
        CT(z);
        V c = s;
        if (s)
            c.sh = ix.sh;
        auto x = rd<C>(a), w = s ? rd<C>(c) : Vec<C>(y.size(), val.as<C>());
        Is st = dense(a.sh);
        for (size_t i = 0; i < y.size(); i++) {
            int64_t k = y[i] < 0 ? y[i] + a.sh[d] : y[i];
            if (k < 0 || k >= a.sh[d])
                bad("scatter index out of range");
            C& e = x[at(ix.sh, st, i, d, k)];
            e = red == 1 ? e + w[i] : red == 2 ? e * w[i] : w[i];
        }
        wr(o, x);
    });
}
OP(InplaceScatter, V a, int64_t d, V ix, V s, int64_t red) {
    scatter(a, d, ix, s, Sc{}, red, a);
}
OP(InplaceScatterValue, V a, int64_t d, V ix, Sc s, int64_t red) {
    scatter(a, d, ix, V{}, s, red, a);
}
OP(Scatter, V a, int64_t d, V ix, V s, int64_t red, V o) {
    scatter(a, d, ix, s, Sc{}, red, o);
}
OP(ScatterValue, V a, int64_t d, V ix, Sc s, int64_t red, V o) {
    scatter(a, d, ix, V{}, s, red, o);
}
OP(IndexAdd, V a, int64_t d, V ix, V s, Sc al, V o) {
    if (d < 0)
        d += a.sh.size();
    auto y = rd<int64_t>(ix);
    if (o.p != a.p)
        copyInto(o, a);
    for (size_t i = 0; i < y.size(); i++)
        addInto(part(o, d, y[i] < 0 ? y[i] + a.sh[d] : y[i], 1), part(s, d, i, 1), al);
}
// x[i, j, ...]: index tensors for the leading dimensions, absent ones take the whole dimension
template <class F>
static void indexed(const V& a, const Ls& l, Is& osh, F f) {  // f(number of the element, offset in the dense a)
    Is ish;
    std::vector<Vec<int64_t>> y;
    std::vector<size_t> dims;
    for (auto& v : l)
        if (v) {
            if (v.dt == ACL_BOOL)
                bad("boolean index");
            if (v.sh.size() > ish.size())
                ish = v.sh;
        }
    for (auto& v : l)
        if (v)
            for (size_t i = 0; i < v.sh.size(); i++) {
                auto& e = ish[ish.size() - v.sh.size() + i];
                e = std::max(e, v.sh[i]);
            }
    for (size_t i = 0; i < l.size(); i++)
        if (l[i]) {
            dims.push_back(i);
            y.push_back(rd<int64_t>(l[i], &ish));
        }
    if (dims.empty())
        bad("index without indices");
    bool run = dims.back() - dims[0] + 1 == dims.size();
    size_t first = run ? dims[0] : 0;
    Is rest, rst, st = dense(a.sh);
    std::vector<char> isix(a.sh.size(), 0);
    for (auto d : dims)
        isix[d] = 1;
    size_t before = 0;
    for (size_t i = 0; i < a.sh.size(); i++)
        if (!isix[i]) {
            if (i < first)
                before++;
            rest.push_back(a.sh[i]);
            rst.push_back(st[i]);
        }
    Is lead(rest.begin(), rest.begin() + before), lst(rst.begin(), rst.begin() + before),
        tail(rest.begin() + before, rest.end()), tst(rst.begin() + before, rst.end());
    osh = lead;
    osh.insert(osh.end(), ish.begin(), ish.end());
    osh.insert(osh.end(), tail.begin(), tail.end());
    int64_t n = 0;
    walk(lead, lst, [&](int64_t, int64_t b) {
        for (int64_t i = 0; i < num(ish); i++) {
            int64_t o = b;
            for (size_t k = 0; k < dims.size(); k++) {
                int64_t e = y[k][i], m = a.sh[dims[k]];
                if (e < 0)
                    e += m;
                if (e < 0 || e >= m)
                    bad("index out of range");
                o += e * st[dims[k]];
            }
            walk(tail, tst, [&](int64_t, int64_t t) { f(n++, o + t); });
        }
    });
}
OP(Index, V a, Ls l, V o) {
    comp(ct(a), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        Vec<C> r(num(o));
        Is osh;
        indexed(a, l, osh, [&](int64_t i, int64_t k) { r.at(i) = x[k]; });
        wr(o, r);
    });
}
OP(IndexPutImpl, V a, Ls l, V v, bool acc, bool) {
    comp(ct(a), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        Is osh;
        indexed(a, l, osh, [](int64_t, int64_t) {});
        auto w = rd<C>(v, &osh);
        indexed(a, l, osh, [&](int64_t i, int64_t k) { x[k] = acc ? x[k] + w[i] : w[i]; });
        wr(a, x);
    });
}
static void sorted(const V& a, int64_t d, bool desc, int64_t k, const V& v, const V& ix) {
    comp(ct(a), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        if (d < 0)
            d += a.sh.size();
        Is osh = a.sh;
        osh[d] = k;
        Vec<C> ov(num(osh));
        Vec<int64_t> oi(ov.size());
        int64_t in = 1;
        for (size_t i = d + 1; i < a.sh.size(); i++)
            in *= a.sh[i];
        rows(x, a.sh, d, [&](C* p, int64_t s, int64_t n, int64_t r) {
            std::vector<int64_t> o(n);
            for (int64_t i = 0; i < n; i++)
                o[i] = i;
            std::stable_sort(o.begin(), o.end(),
                             [&](int64_t i, int64_t j) { return desc ? p[i * s] > p[j * s] : p[i * s] < p[j * s]; });
            for (int64_t i = 0; i < k; i++) {
                int64_t t = (r / in) * k * in + i * in + r % in;
                ov[t] = p[o[i] * s];
                oi[t] = o[i];
            }
        });
        wr(v, ov);
        wr(ix, oi);
    });
}
OP(Sort, V a, bool, int64_t d, bool desc, V v, V i) {
    sorted(a, d, desc, a.sh.empty() ? 1 : a.sh[d < 0 ? d + a.sh.size() : d], v, i);
}
OP(Topk, V a, int64_t k, int64_t d, bool largest, bool, V v, V i) {
    sorted(a, d, largest, k, v, i);
}
OP(OneHot, V ix, int n, V on, V off, int64_t, V o) {
    auto y = rd<int64_t>(ix);
    float a = rd<float>(on)[0], b = rd<float>(off)[0];
    Vec<float> r(num(o), b);
    for (size_t i = 0; i < y.size(); i++)
        if (y[i] >= 0 && y[i] < n)
            r[i * n + y[i]] = a;
    wr(o, r);
}
