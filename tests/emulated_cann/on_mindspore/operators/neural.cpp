// Softmax, losses, activations, normalisation.
#include "operators.h"

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
