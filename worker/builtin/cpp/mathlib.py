"""Float32 functions in C++ that vectorise: for loops that g++ vectorises (scalar form), and for explicit vectors.

glibc's own vector functions are switched on by `-ffast-math` only, which also gives up NaN and infinity. These need no
such flag, keep both, and are accurate to 1-2 units in the last place, so a candidate is as accurate as honest float32
code. Every function is a template that works on `float` (masks are `bool`) and on `vf`, a vector of LANES floats (masks
are `vi`). Only the functions that a candidate uses are emitted.
"""

from __future__ import annotations

# Headers are the plainest there are: <vector>, <cmath> and <immintrin.h> took 0.3 s of the 0.35 to 0.85 s of a build.
PRELUDE = """\
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define INF __builtin_inff()
#define NOT_A_NUMBER __builtin_nanf("")
"""

# LANES comes from the tunable WIDTH. Vectors wider than the machine's are split by the compiler.
VECTORS = """\
#ifndef LANES
#define LANES 16
#endif
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef int64_t vl __attribute__((vector_size(8 * LANES)));
typedef unsigned char vb __attribute__((vector_size(LANES)));

INLINE int32_t to_bits(float f) { int32_t i; memcpy(&i, &f, 4); return i; }
INLINE float from_bits(int32_t i) { float f; memcpy(&f, &i, 4); return f; }
INLINE float to_float(int32_t i) { return (float)i; }
INLINE float select(bool m, float a, float b) { return m ? a : b; }
INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE vi to_bits(vf f) { return (vi)f; }
INLINE vf from_bits(vi i) { return (vf)i; }
INLINE vf to_float(vi i) { return __builtin_convertvector(i, vf); }
INLINE vf select(vi m, vf a, vf b) { return m ? a : b; }
INLINE vf fma(vf a, vf b, vf c) { return a * b + c; }
template <class F> INLINE F splat(float x) { return F{} + x; }
template <> inline __attribute__((always_inline)) float splat<float>(float x) { return x; }
INLINE vf load(const float* p) { vf v; memcpy(&v, p, sizeof v); return v; }
INLINE vf load(const int64_t* p) { vl v; memcpy(&v, p, sizeof v); return __builtin_convertvector(v, vf); }
INLINE vi load(const unsigned char* p) { vb v; memcpy(&v, p, sizeof v); return __builtin_convertvector(v, vi) != 0; }
INLINE void store(float* p, vf v) { memcpy(p, &v, sizeof v); }
INLINE void store(bool* p, vi v) { vb b = __builtin_convertvector(v & 1, vb); memcpy((void*)p, &b, sizeof b); }
// The first `count` lanes only, or all but the first `skip`.
INLINE void store_first(float* p, vf v, int64_t count) {
#if defined(__AVX512F__) && LANES == 16
    __builtin_ia32_storeups512_mask(p, v, (unsigned short)((1u << count) - 1));
#else
    memcpy(p, &v, count * sizeof(float));
#endif
}
INLINE void store_past(float* p, vf v, int64_t skip) {
#if defined(__AVX512F__) && LANES == 16
    __builtin_ia32_storeups512_mask(p, v, (unsigned short)(0xffffu << skip));
#else
    float t[LANES];
    memcpy(t, &v, sizeof t);
    memcpy(p + skip, t + skip, (LANES - skip) * sizeof(float));
#endif
}
template <class F> INLINE F fma(F a, F b, float c) { return fma(a, b, splat<F>(c)); }
template <class F> INLINE F fma(F a, float b, float c) { return fma(a, splat<F>(b), splat<F>(c)); }
template <class F> INLINE F fma(F a, float b, F c) { return fma(a, splat<F>(b), c); }
"""

_ABS = """\
template <class F> INLINE F kw_abs(F x) { return from_bits(to_bits(x) & 0x7fffffff); }
template <class F> INLINE F kw_copysign(F x, F y) {
    return from_bits((to_bits(x) & 0x7fffffff) | (to_bits(y) & (int32_t)0x80000000));
}
"""

_EXP = """\
// The bits of p * 2^n by adding n to p's exponent; n sits in the low bits of t. Of a t that is NaN those are any bits:
// whoever may have one multiplies by a power made of them, and has NaN.
INLINE int32_t raised(int32_t p, int32_t t) { return (int32_t)((uint32_t)p + ((uint32_t)t << 23)); }
INLINE vi raised(vi p, vi t) { return p + (t << 23); }
// exp: x = n ln2 + r, |r| <= ln2 / 2, a polynomial for e^r, times 2^n.
template <class F> INLINE F kw_exp_part(F r) {
    F p = fma(r, 1.9875691500e-4f, 1.3981999507e-3f);
    p = fma(p, r, 8.3334519073e-3f);
    p = fma(p, r, 4.1665795894e-2f);
    p = fma(p, r, 1.6666665459e-1f);
    p = fma(p, r, 5.0000001201e-1f);
    return fma(p, r * r, r) + 1.0f;
}
// The whole range: 2^n goes in as two factors, so that subnormal results come out right.
template <class F> INLINE F kw_exp(F x) {
    x = select(x > 89.0f, splat<F>(89.0f), x);
    x = select(x < -104.0f, splat<F>(-104.0f), x);
    F t = fma(x, 1.44269504f, 12582912.0f), n = t - 12582912.0f;
    F p = kw_exp_part(fma(n, 2.12194440e-4f, fma(n, -0.693359375f, x)));
    auto i = to_bits(t) - 0x4B400000;
    auto half = i >> 1;
    return p * from_bits((half + 127) << 23) * from_bits((i - half + 127) << 23);
}
// Cheaper, for sums with something larger, where it cannot be seen: below 2^-125 is zero, above 2^127.5 infinite.
template <class F> INLINE F kw_exp_near(F x) {
    F t = fma(x, 1.44269504f, 12582912.0f), r = fma(t - 12582912.0f, -0.693147182f, x);
    F p = fma(r, 1.3814467238e-3f, 8.3687808365e-3f);
    p = fma(p, r, 4.1668392718e-2f);
    p = fma(p, r, 1.6666519642e-1f);
    p = fma(p, r, 4.9999994040e-1f);
    p = fma(p, r, 1.0f);
    p = fma(p, r, 1.0f);
    return p * from_bits(raised(to_bits(splat<F>(1.0f)), to_bits(t)));
}
template <class F> INLINE F kw_exp_down(F x) {  // x <= 0
    return select(x < -87.0f, splat<F>(0.0f), kw_exp_near(x));
}
template <class F> INLINE F kw_exp_flushed(F x) {
    return select(x > 88.37f, splat<F>(INF), kw_exp_down(x));
}
"""

_EXPM1 = """\
// expm1: 2^n expm1(r) + (2^n - 1), so that nothing cancels near zero.
template <class F> INLINE F kw_expm1(F x) {
    F t = fma(x, 1.44269504f, 12582912.0f), n = t - 12582912.0f;
    F r = fma(n, 2.12194440e-4f, fma(n, -0.693359375f, x));
    F p = fma(r, 1.3814467238e-3f, 8.3687808365e-3f);
    p = fma(p, r, 4.1668392718e-2f);
    p = fma(p, r, 1.6666519642e-1f);
    p = fma(p, r, 4.9999994040e-1f);
    p = fma(p, r * r, r);
    F half = from_bits(raised(to_bits(splat<F>(0.5f)), to_bits(t)));  // 2^(n-1): 2^n may be out of range
    F result = fma(half, p, half - 0.5f);
    result = select(x < -20.0f, splat<F>(-1.0f), result + result);
    result = select(x == 0.0f, x, result);
    return select(x > 89.0f, splat<F>(INF), result);
}
"""

_LOG = """\
// log: x = 2^n m with m in [sqrt(1/2), sqrt(2)); subnormals are scaled up first.
template <class F> INLINE F kw_log(F x) {
    F zero = splat<F>(0.0f);
    F tiny = select(x < 1.17549435e-38f, splat<F>(23.0f), zero);
    F y = select(x < 1.17549435e-38f, x * 8388608.0f, x);
    auto i = to_bits(y);
    auto k = (i - 0x3f3504f3) >> 23;
    F m = from_bits(i - (k << 23)) - 1.0f, n = to_float(k) - tiny, z = m * m;
    F p = fma(m, 7.0376836292e-2f, -1.1514610310e-1f);
    p = fma(p, m, 1.1676998740e-1f);
    p = fma(p, m, -1.2420140846e-1f);
    p = fma(p, m, 1.4249322787e-1f);
    p = fma(p, m, -1.6668057665e-1f);
    p = fma(p, m, 2.0000714765e-1f);
    p = fma(p, m, -2.4999993993e-1f);
    p = fma(p, m, 3.3333331174e-1f);
    F r = fma(n, -2.12194440e-4f, p * m * z);
    r = fma(n, 0.693359375f, m + fma(z, -0.5f, r));
    r = select(x > 3.4028235e38f, x, r);
    r = select(x == 0.0f, splat<F>(-INF), r);
    r = select(x < 0.0f, splat<F>(NOT_A_NUMBER), r);
    return select(x != x, x, r);
}
"""

_LOG1P = """\
template <class F> INLINE F kw_log1p(F x) {
    F u = 1.0f + x, whole = kw_log(u);
    F r = whole + (x - (u - 1.0f)) / u;  // adds back what the sum rounded away
    r = select(u == 1.0f, x, r);
    r = select(u == 0.0f, whole, r);
    return select(x > 3.4028235e38f, whole, r);
}
"""

_SIGMOID = """\
template <class F> INLINE F kw_sigmoid(F x) { return 1.0f / (1.0f + kw_exp_flushed(-x)); }
"""

_TANH = """\
template <class F> INLINE F kw_tanh(F x) {
    F z = x * x;
    F p = fma(z, -5.70498872745e-3f, 2.06390887954e-2f);
    p = fma(p, z, -5.37397155531e-2f);
    p = fma(p, z, 1.33314422036e-1f);
    p = fma(p, z, -3.33332819422e-1f);
    p = fma(p * z, x, x);
    F a = kw_abs(x), far = 1.0f - 2.0f / (kw_exp_flushed(a + a) + 1.0f);
    return select(a < 0.625f, p, kw_copysign(far, x));
}
"""

_ERF = """\
// erf: a polynomial in x below 0.93, 1 - exp(polynomial) above it; both are computed and one is chosen.
template <class F> INLINE F kw_erf(F x) {
    F t = kw_abs(x), s = x * x;
    F u = fma(t, -3.88396438e-3f, 2.42546219e-2f);
    F r = fma(fma(t, -1.72853470e-5f, 3.83197126e-4f), s, u);
    r = fma(r, t, -1.06777877e-1f);
    r = fma(r, t, -6.34846687e-1f);
    r = fma(r, t, -1.28717512e-1f);
    r = fma(r, t, -t);
    F far = 1.0f - kw_exp_flushed(select(t > 4.0f, splat<F>(-20.0f), r));
    F p = fma(s, -5.96761703e-4f, 4.99119423e-3f);
    p = fma(p, s, -2.67681349e-2f);
    p = fma(p, s, 1.12819925e-1f);
    p = fma(p, s, -3.76125336e-1f);
    p = fma(p, s, 1.28379166e-1f);
    p = fma(p, x, x);
    return select(t > 0.927734375f, kw_copysign(far, x), p);
}
#if LANES == 16 && defined(__AVX512F__)
// erf(x) / x in sixteen pieces of width 33/128, each a polynomial of degree 5 round its middle. The coefficients sit in
// registers and one permutation picks them, so this is half the work of the form above.
static const float KW_ERF[6][16] = {
    {-0.0102917729f, -0.0365069695f, -0.0496691689f, -0.0355149917f, -0.00934038311f, 0.010715208f, 0.0172234848f,
    0.0137588661f,
     0.00733321859f, 0.00239593303f, -7.05160201e-05f, -0.000832795748f, -0.000835000421f, -0.000632349285f,
     -0.000437536801f, -0.000296655722f},
    {0.114323281f, 0.0871710777f, 0.0284773335f, -0.0288015474f, -0.057989113f, -0.0558612272f, -0.0364779271f,
    -0.0158225987f,
     -0.00220436556f, 0.0038159804f, 0.00508436467f, 0.00437851297f, 0.00326053053f, 0.00230870862f, 0.00162384065f,
     0.0011561478f},
    {-9.89906839e-05f, 0.107479587f, 0.168797165f, 0.166803196f, 0.118683845f, 0.0574084297f, 0.00897175074f,
    -0.0175430365f,
     -0.0260115284f, -0.0245494936f, -0.0196471475f, -0.014672244f, -0.0107339639f, -0.00788847264f, -0.00588564062f,
     -0.00447014673f},
    {-0.376123399f, -0.332861602f, -0.222045094f, -0.0883997157f, 0.0239490103f, 0.091875881f, 0.116225459f,
    0.111521974f,
     0.093773149f, 0.0738261268f, 0.0566556156f, 0.0434334874f, 0.0336837396f, 0.0265454948f, 0.0212641936f,
     0.0172903724f},
    {-3.29251186e-08f, -0.186386243f, -0.331496447f, -0.411455214f, -0.426451117f, -0.394537568f, -0.339271665f,
    -0.279677242f,
     -0.226473317f, -0.183316648f, -0.149841666f, -0.124203362f, -0.104452446f, -0.0890189931f, -0.076759465f,
     -0.0668665469f},
    {1.12837923f, 1.1038698f, 1.03587496f, 0.938614726f, 0.829354465f, 0.722771823f, 0.627912462f, 0.548181295f,
     0.483133942f, 0.430531293f, 0.387775481f, 0.352595717f, 0.323228389f, 0.298367649f, 0.277056187f, 0.25858584f},
};
INLINE vf kw_erf(vf x) {
    vf t = kw_abs(x);
    t = select(t > 3.99f, splat<vf>(3.99f), t);
    vf k = fma(t, 3.87878788f, 12582912.0f), n = k - 12582912.0f, h = fma(n, -0.2578125f, t);
    vi i = to_bits(k);
    vf p;
    memcpy(&p, KW_ERF[0], 64);
    p = __builtin_shuffle(p, i);
    for (int d = 1; d < 6; d++) {
        vf c;
        memcpy(&c, KW_ERF[d], 64);
        p = fma(p, h, __builtin_shuffle(c, i));
    }
    p = p * x;
    p = select(p > 1.0f, splat<vf>(1.0f), p);
    return select(p < -1.0f, splat<vf>(-1.0f), p);
}
#endif
"""

_MAX = """\
// NaN goes through, as it does in torch.
template <class F> INLINE F kw_max(F a, F b) { return select((a > b) | (a != a), a, b); }
template <class F> INLINE F kw_min(F a, F b) { return select((a < b) | (a != a), a, b); }
"""

_SIGN = """\
template <class F> INLINE F kw_sign(F x) {
    F zero = splat<F>(0.0f);
    return select(x > 0.0f, splat<F>(1.0f), select(x < 0.0f, splat<F>(-1.0f), zero));
}
"""

# Lane by lane in the source; one instruction a vector once compiled.
_ROUNDING = """\
#define LANEWISE(name, call) \\
    INLINE float name(float x) { return call(x); } \\
    INLINE vf name(vf x) { for (int l = 0; l < LANES; l++) x[l] = call(x[l]); return x; }
LANEWISE(kw_sqrt, __builtin_sqrtf)
LANEWISE(kw_floor, __builtin_floorf)
LANEWISE(kw_ceil, __builtin_ceilf)
LANEWISE(kw_rint, __builtin_rintf)
LANEWISE(kw_trunc, __builtin_truncf)
"""

# glibc's vector forms (at most 4 ulp, which for pow means double), declared here because its header only does so under
# -ffast-math.
_LIBMVEC = """\
#if defined(__x86_64__) && defined(__GLIBC__)
#define VECTOR_FORM __attribute__((simd("notinbranch"), const))
#else
#define VECTOR_FORM
#endif
extern "C" {
VECTOR_FORM float sinf(float) noexcept;
VECTOR_FORM float cosf(float) noexcept;
VECTOR_FORM double pow(double, double) noexcept;
}
INLINE float kw_sin(float x) { return sinf(x); }
INLINE float kw_cos(float x) { return cosf(x); }
INLINE float kw_pow(float x, double y) { return (float)pow((double)x, y); }
#define LIBRARY(name, call) \\
    INLINE vf name(vf x) { \\
        float t[LANES]; \\
        memcpy(t, &x, sizeof t); \\
        _Pragma("omp simd") for (int l = 0; l < LANES; l++) t[l] = call(t[l]); \\
        memcpy(&x, t, sizeof t); \\
        return x; \\
    }
LIBRARY(kw_sin, sinf)
LIBRARY(kw_cos, cosf)
// An exponent that is a constant of the reference stays in double, as it does in torch.
INLINE vf kw_pow(vf x, double y) {
    float t[LANES];
    memcpy(t, &x, sizeof t);
    _Pragma("omp simd") for (int l = 0; l < LANES; l++) t[l] = (float)pow((double)t[l], y);
    memcpy(&x, t, sizeof t);
    return x;
}
INLINE vf kw_pow(vf x, vf y) {
    float t[LANES], u[LANES];
    memcpy(t, &x, sizeof t);
    memcpy(u, &y, sizeof u);
    _Pragma("omp simd") for (int l = 0; l < LANES; l++) t[l] = (float)pow((double)t[l], (double)u[l]);
    memcpy(&x, t, sizeof t);
    return x;
}
"""

# In order of definition: what a call needs comes first.
_TEXT = {
    "abs": _ABS, "exp": _EXP, "expm1": _EXPM1, "log": _LOG, "log1p": _LOG1P, "sigmoid": _SIGMOID, "tanh": _TANH,
    "erf": _ERF, "max": _MAX, "sign": _SIGN, "rounding": _ROUNDING, "libmvec": _LIBMVEC,
}  # fmt: skip
_PARTS_OF = {
    "kw_abs": ("abs",), "kw_copysign": ("abs",), "kw_exp": ("exp",), "kw_exp_flushed": ("exp",), "kw_exp_down":
    ("exp",),
    "kw_expm1": ("exp", "expm1"), "kw_log": ("log",), "kw_log1p": ("log", "log1p"),
    "kw_sigmoid": ("exp", "sigmoid"), "kw_tanh": ("abs", "exp", "tanh"), "kw_erf": ("abs", "exp", "erf"),
    "kw_max": ("max",), "kw_min": ("max",), "kw_sign": ("sign",), "kw_sqrt": ("rounding",), "kw_floor": ("rounding",),
    "kw_ceil": ("rounding",), "kw_rint": ("rounding",), "kw_trunc": ("rounding",), "kw_sin": ("libmvec",),
    "kw_cos": ("libmvec",), "kw_pow": ("libmvec",),
}  # fmt: skip


def helpers_for(code: str) -> str:
    """The prelude and those functions that a piece of C++ calls."""
    wanted = {part for name, parts in _PARTS_OF.items() if f"{name}(" in code for part in parts}
    return "\n".join([PRELUDE, VECTORS, *(text for name, text in _TEXT.items() if name in wanted)])


# One step of a Program; F and M are the types of a value and of a truth value where the code is used.
_FORMS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "abs": "kw_abs({0})", "reciprocal": "1.0f / {0}", "sqrt": "kw_sqrt({0})", "rsqrt": "1.0f / kw_sqrt({0})",
    "square": "{0} * {0}", "exp": "kw_exp({0})", "exp2": "kw_exp({0} * 0.693147180559945f)",
    "expm1": "kw_expm1({0})", "log": "kw_log({0})", "log2": "kw_log({0}) * 1.44269504088896f",
    "log1p": "kw_log1p({0})", "sigmoid": "kw_sigmoid({0})", "tanh": "kw_tanh({0})", "erf": "kw_erf({0})",
    "sin": "kw_sin({0})", "cos": "kw_cos({0})", "pow": "kw_pow({0}, {1})", "maximum": "kw_max({0}, {1})",
    "minimum": "kw_min({0}, {1})", "floor": "kw_floor({0})", "ceil": "kw_ceil({0})", "round": "kw_rint({0})",
    "trunc": "kw_trunc({0})", "sign": "kw_sign({0})", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}",
    "ge": "{0} >= {1}", "eq": "{0} == {1}", "ne": "{0} != {1}", "and": "{0} & {1}", "or": "{0} | {1}",
    "not": "{0} == 0", "bool_to_float": "select({0}, splat<F>(1.0f), splat<F>(0.0f))",
    "where": "select({0}, {1}, {2})",
}  # fmt: skip


def expression(op: str, args: list[str]) -> str:
    """One step of a Program in C++; the arguments are names or literals of type F (M for truth values)."""
    return _FORMS[op].format(*args)


def literal(value: float) -> str:
    """A plain float literal."""
    if value != value:
        return "NOT_A_NUMBER"
    if value in (float("inf"), float("-inf")):
        return "INF" if value > 0 else "-INF"
    text = repr(value)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
