// Softmax, losses, normalisation, embedding.
#include "operators.h"

// ---------------------------------------------------------------- softmax, losses, normalisation, embedding
static void softmax(const V& a, int64_t d, const V& o, bool lg) {
    comp(std::max(1, ct(a)), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        rows(x, a.sh, d, [&](C* p, int64_t s, int64_t n, int64_t) {
            C m = p[0];
            for (int64_t i = 1; i < n; i++)
                m = std::max(m, p[i * s]);
            C t = 0;
            for (int64_t i = 0; i < n; i++)
                t += std::exp(p[i * s] - m);
            C l = std::log(t);
            for (int64_t i = 0; i < n; i++)
                p[i * s] = lg ? p[i * s] - m - l : std::exp(p[i * s] - m) / t;
        });
        wr(o, x);
    });
}
OP(Softmax, V a, int64_t d, V o) {
    softmax(a, d, o, false);
}
OP(LogSoftmax, V a, int64_t d, V o) {
    softmax(a, d, o, true);
}
static void softmaxBack(const V& g, const V& y, int64_t d, const V& o, bool lg) {
    comp(std::max(1, ct(g, y)), [&](auto* z) {
        CT(z);
        auto x = rd<C>(g), w = rd<C>(y);
        rows(x, g.sh, d, [&](C* p, int64_t s, int64_t n, int64_t) {
            C *q = w.data() + (p - x.data()), t = 0;
            for (int64_t i = 0; i < n; i++)
                t += lg ? p[i * s] : p[i * s] * q[i * s];
            for (int64_t i = 0; i < n; i++)
                p[i * s] = lg ? p[i * s] - std::exp(q[i * s]) * t : (p[i * s] - t) * q[i * s];
        });
        wr(o, x);
    });
}
OP(SoftmaxBackward, V g, V y, int64_t d, V o) {
    softmaxBack(g, y, d, o, false);
}
OP(LogSoftmaxBackward, V g, V y, int64_t d, V o) {
    softmaxBack(g, y, d, o, true);
}
OP(NLLLoss, V x, V t, V w, int64_t red, int64_t ign, V o, V tw) {
    auto a = rd<float>(x), k = w ? rd<float>(w) : Vec<float>(x.sh.back(), 1.f);
    auto y = rd<int64_t>(t);
    int64_t c = x.sh.back();
    Vec<float> each(y.size(), 0);
    double s = 0, n = 0;
    for (size_t i = 0; i < y.size(); i++)
        if (y[i] != ign) {
            if (y[i] < 0 || y[i] >= c)
                bad("target out of range");
            each[i] = -a[i * c + y[i]] * k[y[i]];
            s += each[i];
            n += k[y[i]];
        }
    if (red == 0)
        wr(o, each);
    else
        wr(o, Vec<float>(1, (float)(red == 1 ? s / n : s)));
    if (tw)
        wr(tw, Vec<float>(num(tw), (float)n));
}
OP(NLLLossBackward, V g, V x, V t, V w, int64_t red, int64_t ign, V tw, V o) {
    auto d = rd<float>(g), k = w ? rd<float>(w) : Vec<float>(x.sh.back(), 1.f);
    auto y = rd<int64_t>(t);
    double n = red == 1 ? rd<float>(tw)[0] : 1;
    int64_t c = x.sh.back();
    Vec<float> r(num(o), 0);
    for (size_t i = 0; i < y.size(); i++)
        if (y[i] != ign)
            r[i * c + y[i]] = (float)(-(red == 0 ? d[i] : d[0]) * k[y[i]] / n);
    wr(o, r);
}
OP(MseLoss, V a, V b, int64_t red, V o) {
    auto x = rd<float>(a), y = rd<float>(b, &a.sh);
    double s = 0;
    for (size_t i = 0; i < x.size(); i++) {
        float e = x[i] - y[i];
        x[i] = e * e;
        s += x[i];
    }
    if (red == 0)
        wr(o, x);
    else
        wr(o, Vec<float>(1, (float)(red == 1 ? s / x.size() : s)));
}
OP(MseLossBackward, V g, V a, V b, int64_t red, V o) {
    auto d = rd<float>(g, &o.sh), x = rd<float>(a, &o.sh), y = rd<float>(b, &o.sh);
    float n = red == 1 ? (float)x.size() : 1.f;
    for (size_t i = 0; i < x.size(); i++)
        x[i] = 2 * (x[i] - y[i]) * d[i] / n;
    wr(o, x);
}
OP(L1Loss, V a, V b, int64_t red, V o) {
    auto x = rd<float>(a), y = rd<float>(b, &a.sh);
    double s = 0;
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = std::fabs(x[i] - y[i]);
        s += x[i];
    }
    if (red == 0)
        wr(o, x);
    else
        wr(o, Vec<float>(1, (float)(red == 1 ? s / x.size() : s)));
}
OP(L1LossBackward, V g, V a, V b, int64_t red, V o) {
    auto d = rd<float>(g, &o.sh), x = rd<float>(a, &o.sh), y = rd<float>(b, &o.sh);
    float n = red == 1 ? (float)x.size() : 1.f;
    for (size_t i = 0; i < x.size(); i++)
        x[i] = ((x[i] > y[i]) - (x[i] < y[i])) * d[i] / n;
    wr(o, x);
}
static void bce(const V& g, const V& x, const V& t, const V& w, const V& pw, int64_t red,
                const V& o) {  // g present: backward
    auto a = rd<float>(x), y = rd<float>(t), k = w ? rd<float>(w, &x.sh) : Vec<float>(a.size(), 1.f),
         p = pw ? rd<float>(pw, &x.sh) : Vec<float>(a.size(), 1.f), d = g ? rd<float>(g, &x.sh) : a;
    double s = 0;
    float n = red == 1 ? (float)a.size() : 1.f;
    for (size_t i = 0; i < a.size(); i++) {
        float q = 1 + (p[i] - 1) * y[i], sp = std::log1p(std::exp(-std::fabs(a[i]))) + std::max(-a[i], 0.f);
        a[i] = g ? ((q * (1 / (1 + std::exp(-a[i]))) - y[i] * p[i])) * k[i] * d[i] / n
                 : ((1 - y[i]) * a[i] + q * sp) * k[i];
        s += a[i];
    }
    if (g || red == 0)
        wr(o, a);
    else
        wr(o, Vec<float>(1, (float)(s / n)));
}
OP(BinaryCrossEntropyWithLogits, V x, V t, V w, V p, int64_t red, V o) {
    bce(V{}, x, t, w, p, red, o);
}
OP(BinaryCrossEntropyWithLogitsBackward, V g, V x, V t, V w, V p, int64_t red, V o) {
    bce(g, x, t, w, p, red, o);
}
OP(SwiGlu, V a, int64_t d, V o) {
    if (d < 0)
        d += a.sh.size();
    int64_t n = a.sh[d] / 2;
    binf(part(a, d, 0, n), part(a, d, n, n), o, [](auto x, auto y) { return x / (1 + std::exp(-x)) * y; });
}
OP(SwiGluGrad, V g, V a, int64_t d, V o) {
    if (d < 0)
        d += a.sh.size();
    int64_t n = a.sh[d] / 2;
    auto x = rd<float>(part(a, d, 0, n)), y = rd<float>(part(a, d, n, n)), e = rd<float>(g);
    for (size_t i = 0; i < x.size(); i++) {
        float s = 1 / (1 + std::exp(-x[i])), u = e[i] * y[i] * s * (1 + x[i] * (1 - s));
        y[i] = e[i] * x[i] * s;
        x[i] = u;
    }
    wr(part(o, d, 0, n), x);
    wr(part(o, d, n, n), y);
}
OP(LayerNorm, V x, Is ns, V w, V b, double eps, V o, V mo, V ro) {
    auto a = rd<float>(x);
    int64_t n = num(ns), r = n ? (int64_t)a.size() / n : 0;
    Vec<float> m(r), s(r);
    auto g = w ? rd<float>(w) : Vec<float>(n, 1.f), h = b ? rd<float>(b) : Vec<float>(n, 0.f);
    for (int64_t i = 0; i < r; i++) {
        float* p = &a[i * n];
        double u = 0, v = 0;
        for (int64_t j = 0; j < n; j++)
            u += p[j];
        u /= n;
        for (int64_t j = 0; j < n; j++)
            v += (p[j] - u) * (p[j] - u);
        m[i] = (float)u;
        s[i] = (float)(1 / std::sqrt(v / n + eps));
        for (int64_t j = 0; j < n; j++)
            p[j] = (p[j] - m[i]) * s[i] * g[j] + h[j];
    }
    wr(o, a);
    if (mo)
        wr(mo, m);
    if (ro)
        wr(ro, s);
}
OP(LayerNormBackward, V dy, V x, Is ns, V mo, V ro, V w, V, Bs mask, V dx, V dw, V db) {
    auto a = rd<float>(x), d = rd<float>(dy), m = rd<float>(mo), s = rd<float>(ro);
    int64_t n = num(ns), r = n ? (int64_t)a.size() / n : 0;
    auto g = w ? rd<float>(w) : Vec<float>(n, 1.f);
    Vec<double> gw(n, 0), gb(n, 0);
    Vec<float> out(a.size());
    for (int64_t i = 0; i < r; i++) {
        double p = 0, q = 0;
        for (int64_t j = 0; j < n; j++) {
            double xh = (a[i * n + j] - m[i]) * s[i], e = d[i * n + j];
            gw[j] += e * xh;
            gb[j] += e;
            p += e * g[j];
            q += e * g[j] * xh;
        }
        for (int64_t j = 0; j < n; j++) {
            double xh = (a[i * n + j] - m[i]) * s[i];
            out[i * n + j] = (float)(s[i] * (d[i * n + j] * g[j] - p / n - xh * q / n));
        }
    }
    if (mask[0] && dx)
        wr(dx, out);
    if (mask[1] && dw)
        wr(dw, gw);
    if (mask[2] && db)
        wr(db, gb);
}
OP(RmsNorm, V x, V w, double eps, V o, V ro) {
    auto a = rd<float>(x), g = rd<float>(w);
    int64_t n = g.size(), r = (int64_t)a.size() / n;
    Vec<float> s(r);
    for (int64_t i = 0; i < r; i++) {
        double v = 0;
        for (int64_t j = 0; j < n; j++)
            v += a[i * n + j] * a[i * n + j];
        s[i] = (float)(1 / std::sqrt(v / n + eps));
        for (int64_t j = 0; j < n; j++)
            a[i * n + j] *= s[i] * g[j];
    }
    wr(o, a);
    wr(ro, s);
}
OP(RmsNormGrad, V dy, V x, V ro, V w, V dx, V dw) {
    auto a = rd<float>(x), d = rd<float>(dy), s = rd<float>(ro), g = rd<float>(w);
    int64_t n = g.size(), r = (int64_t)a.size() / n;
    Vec<double> gw(n, 0);
    Vec<float> out(a.size());
    for (int64_t i = 0; i < r; i++) {
        double q = 0;
        for (int64_t j = 0; j < n; j++) {
            gw[j] += d[i * n + j] * a[i * n + j] * s[i];
            q += d[i * n + j] * g[j] * a[i * n + j];
        }
        for (int64_t j = 0; j < n; j++)
            out[i * n + j] = (float)(s[i] * (d[i * n + j] * g[j] - a[i * n + j] * q * s[i] * s[i] / n));
    }
    wr(dx, out);
    wr(dw, gw);
}
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
