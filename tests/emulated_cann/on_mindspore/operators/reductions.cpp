// Reductions and matrix products.
#include "operators.h"

// ---------------------------------------------------------------- reductions
static Is keepStr(const V& a, Is dims, Is& osh) {  // dense strides of the kept shape, 0 where reduced
    int r = (int)a.sh.size();
    std::vector<char> red(r, dims.empty());
    for (auto d : dims)
        red[d < 0 ? d + r : d] = 1;
    osh = a.sh;
    for (int i = 0; i < r; i++)
        if (red[i])
            osh[i] = 1;
    Is st = dense(osh);
    for (int i = 0; i < r; i++)
        if (red[i])
            st[i] = 0;
    return st;
}
template <class F>
static void reduce(const V& a, const Is& dims, const V& o, F fin, double init, int kind) {
    comp(ct(a, o), [&](auto* z) {
        CT(z);
        using A = std::conditional_t<std::is_same<C, float>::value, double, C>;
        Is osh, st = keepStr(a, dims, osh);
        auto x = rd<C>(a);
        Vec<A> acc(num(osh), kind < 2 ? (A)init : A());
        std::vector<char> seen(kind >= 2 ? acc.size() : 0);
        walk(a.sh, st, [&](int64_t i, int64_t k) {
            A e = (A)x[i];
            if (kind == 0)
                acc[k] += e;
            else if (kind == 1)
                acc[k] += e * e;
            else if (!seen[k] || (kind == 2 ? e > acc[k] : e < acc[k])) {
                acc[k] = e;
                seen[k] = 1;
            }
        });
        A cnt = acc.empty() ? 1 : (A)x.size() / (A)acc.size();
        Vec<C> y(acc.size());
        for (size_t i = 0; i < y.size(); i++)
            y[i] = (C)fin(acc[i], cnt);
        wr(o, y);
    });
}
OP(ReduceSum, V a, Is d, bool, int, V o) {
    reduce(a, d, o, [](auto s, auto) { return s; }, 0, 0);
}
OP(Mean, V a, Is d, bool, int, V o) {
    reduce(a, d, o, [](auto s, auto n) { return s / n; }, 0, 0);
}
OP(MeanV2, V a, Is d, bool, bool, V o) {
    reduce(a, d, o, [](auto s, auto n) { return s / n; }, 0, 0);
}
OP(Max, V a, V o) {
    reduce(a, {}, o, [](auto s, auto) { return s; }, 0, 2);
}
OP(Min, V a, V o) {
    reduce(a, {}, o, [](auto s, auto) { return s; }, 0, 3);
}
OP(Amax, V a, Is d, bool, V o) {
    reduce(a, d, o, [](auto s, auto) { return s; }, 0, 2);
}
OP(Amin, V a, Is d, bool, V o) {
    reduce(a, d, o, [](auto s, auto) { return s; }, 0, 3);
}
static void var(const V& a, const Is& dims, int64_t corr, const V& o, bool root) {
    comp(std::max(1, ct(a)), [&](auto* z) {
        CT(z);
        Is osh, st = keepStr(a, dims, osh);
        auto x = rd<C>(a);
        Vec<double> m(num(osh), 0), v(m.size(), 0);
        double n = m.empty() ? 1 : (double)x.size() / m.size();
        walk(a.sh, st, [&](int64_t i, int64_t k) { m[k] += x[i] / n; });
        walk(a.sh, st, [&](int64_t i, int64_t k) { v[k] += (x[i] - m[k]) * (x[i] - m[k]); });
        for (auto& e : v) {
            e /= n - corr;
            if (root)
                e = std::sqrt(e);
        }
        wr(o, v);
    });
}
OP(VarCorrection, V a, Is d, int64_t c, bool, V o) {
    var(a, d, c, o, false);
}
OP(Std, V a, Is d, int64_t c, bool, V o) {
    var(a, d, c, o, true);
}
OP(LogSumExp, V a, Is d, bool, V o) {
    comp(std::max(1, ct(a)), [&](auto* z) {
        CT(z);
        Is osh, st = keepStr(a, d, osh);
        auto x = rd<C>(a);
        Vec<C> m(num(osh), std::numeric_limits<C>::lowest()), s(m.size(), 0);
        walk(a.sh, st, [&](int64_t i, int64_t k) { m[k] = std::max(m[k], x[i]); });
        walk(a.sh, st, [&](int64_t i, int64_t k) { s[k] += std::exp(x[i] - m[k]); });
        for (size_t i = 0; i < s.size(); i++)
            s[i] = m[i] + std::log(s[i]);
        wr(o, s);
    });
}
OP(Prod, V a, int, V o) {
    comp(ct(a, o), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        C p = 1;
        for (auto e : x)
            p *= e;
        wr(o, Vec<C>(1, p));
    });
}
static void logic(const V& a, const Is& d, const V& o, bool all) {
    V t = a;
    Is osh, st = keepStr(a, d, osh);
    auto x = rd<double>(a);
    Vec<int64_t> y(num(osh), all);
    walk(a.sh, st, [&](int64_t i, int64_t k) {
        if (all ? x[i] == 0 : x[i] != 0)
            y[k] = !all;
    });
    wr(o, y);
}
OP(All, V a, Is d, bool, V o) {
    logic(a, d, o, true);
}
OP(Any, V a, Is d, bool, V o) {
    logic(a, d, o, false);
}
static void norm(const V& a, double p, const Is& d, const V& o) {
    if (p == 2)
        return reduce(a, d, o, [](auto s, auto) { return std::sqrt((double)s); }, 0, 1);
    V t = a;
    Vec<float> x = rd<float>(a);
    for (auto& e : x)
        e = std::isinf(p) ? std::fabs(e) : std::pow(std::fabs(e), (float)p);
    t.dt = ACL_FLOAT;
    t.p = (char*)x.data();
    t.off = 0;
    t.st = dense(t.sh);
    if (std::isinf(p))
        reduce(t, d, o, [](auto s, auto) { return s; }, 0, p > 0 ? 2 : 3);
    else
        reduce(t, d, o, [&](auto s, auto) { return std::pow((double)s, 1 / p); }, 0, 0);
}
OP(Norm, V a, Sc p, Is d, bool, V o) {
    norm(a, p.ok ? p.as<double>() : 2, d, o);
}
OP(LinalgVectorNorm, V a, Sc p, Is d, bool, int, V o) {
    norm(a, p.ok ? p.as<double>() : 2, d, o);
}
// rows along one dimension: f(pointer to the first element, stride, length)
static void arg(const V& a, int64_t d, const V& v, const V& ix, bool mx) {
    comp(ct(a), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        Is osh, st = keepStr(a, {d}, osh);
        Vec<C> bv(num(osh));
        Vec<int64_t> bi(num(osh));
        rows(x, a.sh, d, [&](C* p, int64_t s, int64_t n, int64_t r) {
            int64_t b = 0;
            for (int64_t i = 1; i < n; i++)
                if (mx ? p[i * s] > p[b * s] : p[i * s] < p[b * s])
                    b = i;
            bv[r] = p[b * s];
            bi[r] = b;
        });
        if (v)
            wr(v, bv);
        wr(ix, bi);
    });
}
OP(ArgMax, V a, int64_t d, bool, V o) {
    arg(a, d, V{}, o, true);
}
OP(ArgMin, V a, int64_t d, bool, V o) {
    arg(a, d, V{}, o, false);
}
OP(MaxDim, V a, int64_t d, bool, V v, V i) {
    arg(a, d, v, i, true);
}
OP(MinDim, V a, int64_t d, bool, V v, V i) {
    arg(a, d, v, i, false);
}
OP(Cumsum, V a, int64_t d, int, V o) {
    comp(ct(a, o), [&](auto* z) {
        CT(z);
        auto x = rd<C>(a);
        rows(x, a.sh, d, [&](C* p, int64_t s, int64_t n, int64_t) {
            for (int64_t i = 1; i < n; i++)
                p[i * s] += p[(i - 1) * s];
        });
        wr(o, x);
    });
}

// ---------------------------------------------------------------- matrix products
static void mm(V a, V b, const V& o, double alpha = 1, const V* add = nullptr, double beta = 0) {
    V c = o;
    if (a.sh.size() == 1) {
        a.sh.insert(a.sh.begin(), 1);
        a.st.insert(a.st.begin(), 0);
        c.sh.insert(c.sh.end() - (b.sh.size() > 1), 1);
        c.st.insert(c.st.end() - (b.sh.size() > 1), 0);
    }
    if (b.sh.size() == 1) {
        b.sh.push_back(1);
        b.st.push_back(0);
        c.sh.push_back(1);
        c.st.push_back(0);
    }
    if (c.sh.size() < 2)
        bad("matmul output rank");
    comp(std::max(1, ct(a, b)), [&](auto* z) {
        CT(z);
        size_t r = c.sh.size();
        Is batch(c.sh.begin(), c.sh.end() - 2), as = batch, bs = batch;
        int64_t M = c.sh[r - 2], N = c.sh[r - 1], K = a.sh.back();
        if (b.sh[b.sh.size() - 2] != K || a.sh[a.sh.size() - 2] != M || b.sh.back() != N)
            bad("matmul shapes");
        as.push_back(M);
        as.push_back(K);
        bs.push_back(K);
        bs.push_back(N);
        auto x = rd<C>(a, &as), y = rd<C>(b, &bs);
        Vec<C> w(num(batch) * M * N, 0);
        for (int64_t t = 0; t < num(batch); t++)
            for (int64_t i = 0; i < M; i++) {
                C* q = &w[(t * M + i) * N];
                for (int64_t k = 0; k < K; k++) {
                    C e = x[(t * M + i) * K + k];
                    const C* p = &y[(t * K + k) * N];
                    for (int64_t j = 0; j < N; j++)
                        q[j] += e * p[j];
                }
            }
        if (add) {
            auto s = rd<C>(*add, &c.sh);
            for (size_t i = 0; i < w.size(); i++)
                w[i] = (C)alpha * w[i] + (C)beta * s[i];
        }
        wr(c, w);
    });
}
OP(Matmul, V a, V b, V o, int8_t) {
    mm(a, b, o);
}
OP(Mm, V a, V b, V o, int8_t) {
    mm(a, b, o);
}
OP(BatchMatMul, V a, V b, V o, int8_t) {
    mm(a, b, o);
}
OP(Mv, V a, V b, V o, int8_t) {
    mm(a, b, o);
}
OP(Dot, V a, V b, V o) {
    V t = a, c = o;
    t.sh.insert(t.sh.begin(), 1);
    t.st.insert(t.st.begin(), 0);
    c.sh = {1};
    c.st = {1};
    mm(t, b, c);
}
OP(Addmm, V s, V a, V b, Sc beta, Sc alpha, V o, int8_t) {
    mm(a, b, o, alpha.as<double>(), &s, beta.as<double>());
}
OP(InplaceAddmm, V s, V a, V b, Sc beta, Sc alpha, int8_t) {
    mm(a, b, s, alpha.as<double>(), &s, beta.as<double>());
}
OP(Baddbmm, V s, V a, V b, Sc beta, Sc alpha, V o, int8_t) {
    mm(a, b, o, alpha.as<double>(), &s, beta.as<double>());
}
