// Random numbers and the optimizer step.
#include "operators.h"

// ---------------------------------------------------------------- random numbers and optimiser
static std::mt19937_64 gen(int64_t seed, int64_t off) {
    return std::mt19937_64((uint64_t)seed * 0x9e3779b97f4a7c15ull + (uint64_t)off);
}
OP(InplaceNormal, V a, float m, float s, int64_t seed, int64_t off) {
    auto g = gen(seed, off);
    std::normal_distribution<float> d(0, 1);
    Vec<float> x(num(a));
    for (auto& e : x)
        e = m + s * d(g);
    wr(a, x);
}
OP(InplaceUniform, V a, double lo, double hi, uint64_t seed, uint64_t off) {
    auto g = gen(seed, off);
    std::uniform_real_distribution<float> d(0, 1);
    Vec<float> x(num(a));
    for (auto& e : x)
        e = (float)(lo + (hi - lo) * d(g));
    wr(a, x);
}
OP(NormalFloatFloat, float m, float s, int64_t seed, int64_t off, V a) {
    InplaceNormal(a, m, s, seed, off);
}
OP(InplaceRandom, V a, int64_t lo, int64_t hi, int64_t seed, int64_t off) {
    auto g = gen(seed, off);
    std::uniform_int_distribution<int64_t> d(lo, hi - 1);
    Vec<int64_t> x(num(a));
    for (auto& e : x)
        e = d(g);
    wr(a, x);
}
OP(Randperm, int64_t n, int64_t seed, int64_t off, V o) {
    auto g = gen(seed, off);
    Vec<int64_t> x(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = i;
    std::shuffle(x.begin(), x.end(), g);
    wr(o, x);
}
OP(DropoutGenMaskV2, Is sh, double p, int64_t seed, int64_t off, int, V o) {
    auto g = gen(seed, off);
    std::uniform_real_distribution<double> d(0, 1);
    Vec<int64_t> x(num(o), 0);
    for (int64_t i = 0; i < num(sh); i++)
        if (d(g) >= p)
            x[i / 8] |= 1 << (i % 8);
    wr(o, x);
}
OP(DropoutDoMask, V a, V m, double p, V o) {
    auto x = rd<float>(a);
    auto k = rd<int64_t>(m);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = k[i / 8] >> (i % 8) & 1 ? (float)(x[i] / (1 - p)) : 0;
    wr(o, x);
}
OP(ApplyAdamWV2, V w, V m, V v, V mx, V g, V step, float lr, float b1, float b2, float wd, float eps, bool ams,
   bool maxi) {
    auto p = rd<float>(w), a = rd<float>(m), b = rd<float>(v), d = rd<float>(g);
    double t = rd<double>(step)[0] + 1;
    Vec<float> q = ams && mx ? rd<float>(mx) : Vec<float>();
    double c1 = 1 - std::pow((double)b1, t), c2 = 1 - std::pow((double)b2, t);
    for (size_t i = 0; i < p.size(); i++) {
        float e = maxi ? -d[i] : d[i];
        p[i] -= lr * wd * p[i];
        a[i] = b1 * a[i] + (1 - b1) * e;
        b[i] = b2 * b[i] + (1 - b2) * e * e;
        float s = b[i];
        if (!q.empty())
            s = q[i] = std::max(q[i], b[i]);
        p[i] -= (float)(lr / c1 * a[i] / (std::sqrt(s) / std::sqrt(c2) + eps));
    }
    wr(w, p);
    wr(m, a);
    wr(v, b);
    if (!q.empty())
        wr(mx, q);
}
