"""Catalogue 71 to 83: arithmetic that is quietly not what was asked for."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat, flaw
from tests.redteam.entry import INCORRECT, WRONG, Entry

ROUNDING = """
static float cut(float v, int bits) {  // round to nearest even, `bits` of mantissa kept
  uint32_t u; std::memcpy(&u, &v, 4);
  if (v != v) return v;
  uint32_t low = 23 - bits;
  u += (1u << (low - 1)) - 1 + ((u >> low) & 1); u = u >> low << low;
  std::memcpy(&v, &u, 4);
  return v;
}
static float bf16(float v) { return cut(v, 7); }
static float tf32(float v) { return cut(v, 10); }
static float fp16(float v) { return (float)(_Float16)v; }
static float fp8(float v) { return std::min(std::max(cut(v, 3), -448.0f), 448.0f); }
"""


def _rounded(name: str, number: int, problem: str, title: str, *swap: tuple[str, str], layer: str = "values") -> Entry:
    entry = flaw(name, number, problem, layer, title, *swap)
    source = entry.source.replace("#include <vector>\n", "#include <vector>\n" + ROUNDING, 1)
    return Entry(name, number, title, problem, "cpp", source, INCORRECT, layer)


_SUM = "c++) s += a[c];"
_MATMUL = "o[j] += a[i * k + l] * b[l * n + j];"
_SCATTER = "y[ids[t] * dim + d] += grad[t * dim + d];"
_LOW_ACCUMULATION = (
    _rounded("embedding-grad-bf16", 71, "embedding_grad", "A bf16 accumulator",
             (_SCATTER, "{ float& v = y[ids[t] * dim + d]; v = bf16(v + grad[t * dim + d]); }")),
    _rounded("embedding-grad-fp16", 71, "embedding_grad", "An fp16 accumulator",
             (_SCATTER, "{ float& v = y[ids[t] * dim + d]; v = fp16(v + grad[t * dim + d]); }")),
    _rounded("embedding-grad-tf32", 71, "embedding_grad", "A ten-bit accumulator",
             (_SCATTER, "{ float& v = y[ids[t] * dim + d]; v = tf32(v + grad[t * dim + d]); }")),
    _rounded("row-sum-bf16", 71, "row_sum", "A bf16 accumulator", ("double s", "float s"), (_SUM,
             "c++) s = bf16(s + a[c]);")),
    _rounded("row-sum-fp16", 71, "row_sum", "An fp16 accumulator", ("double s", "float s"), (_SUM,
             "c++) s = fp16(s + a[c]);")),
    _rounded("cumsum-bf16", 71, "cumsum", "A running sum in bf16", ("s += a[c];", "s = bf16((float)s + a[c]);")),
    _rounded("matmul-accumulates-bf16", 71, "matmul", "A product that accumulates in bf16",
             (_MATMUL, "o[j] = bf16(o[j] + a[i * k + l] * b[l * n + j]);")),
    _rounded("matmul-accumulates-fp16", 71, "matmul", "A product that accumulates in fp16",
             (_MATMUL, "o[j] = fp16(o[j] + a[i * k + l] * b[l * n + j]);")),
    _rounded("half-matmul-accumulates-bf16", 71, "matmul_bf16", "bf16 inputs, and bf16 sums too",
             ("s[j] += wide(a[i * k + l]) * wide(b[l * n + j]);",
              "s[j] = bf16(s[j] + wide(a[i * k + l]) * wide(b[l * n + j]));")),
    _rounded("half-sum-in-fp16", 71, "row_sum_fp16", "float16 inputs, and a float16 sum",
             ("double s = 0", "_Float16 s = 0"), ("s += (double)a[c]", "s = (_Float16)(s + a[c])")),
    _rounded("norm-sum-fp16", 71, "rmsnorm", "RMSNorm whose sum of squares is fp16",
             ("double s = 0;", "float s = 0;"), ("s += (double)a[c] * a[c];", "s = fp16(s + a[c] * a[c]);")),
    _rounded("softmax-sum-bf16", 71, "softmax", "Softmax whose denominator is bf16",
             ("double s = 0;", "float s = 0;"), ("s += o[c];", "s = bf16(s + o[c]);")),
)  # fmt: skip

_LOW_INPUTS = (
    *(
        _rounded(f"{problem.replace('_', '-')}-inputs-{kind}", 72, problem, f"{problem}: inputs rounded to {kind}",
                 (old, new.replace("CUT", kind)))
        for problem, old, new, kinds in (
            ("matmul", "a[i * k + l] * b[l * n + j]", "CUT(a[i * k + l]) * CUT(b[l * n + j])", ("tf32", "bf16", "fp8")),
            ("linear", "(double)x[i * k + l] * w[j * k + l]", "(double)CUT(x[i * k + l]) * CUT(w[j * k + l])",
             ("tf32", "bf16")),
            ("conv1d", "(double)x[(b * 8 + i) * length + at] * w[", "(double)CUT(x[(b * 8 + i) * length + at]) * w[",
             ("tf32", "fp16")),
            ("attention", "(double)a[c] * kh[j * d + c]", "(double)CUT(a[c]) * CUT(kh[j * d + c])", ("tf32", "bf16")),
            ("rmsnorm", "a[c] * scale * w[c]", "CUT(a[c]) * scale * w[c]", ("fp16", "bf16")),
            ("embedding_grad", "+= grad[t * dim + d]", "+= CUT(grad[t * dim + d])", ("bf16",)),
            ("gelu", "float v = a[c];", "float v = CUT(a[c]);", ("fp16",)),
        )
        for kind in kinds
    ),
    _rounded("matmul-weights-only-bf16", 72, "matmul", "Only one side is rounded", ("* b[l * n + j]",
             "* bf16(b[l * n + j])")),
    _rounded("output-through-bf16", 72, "softmax", "The output takes a detour through bf16",
             ("(float)(o[c] / s)", "bf16((float)(o[c] / s))")),
    _rounded("split-k-bf16-partials", 73, "matmul", "Partial sums of 64 terms stored in bf16",
             ("float* o = y + i * n;", "float* o = y + i * n; std::vector<float> part(n, 0.0f);"),
             (_MATMUL, "{ part[j] += a[i * k + l] * b[l * n + j];\n"
                       "        if (l % 64 == 63 || l == k - 1) { o[j] += bf16(part[j]); part[j] = 0; } }")),
    _rounded("row-sum-fp16-partials", 73, "row_sum", "Partial sums of 128 terms stored in fp16",
             ("double s = 0;", "double s = 0; float part = 0;"),
             (_SUM, "c++) { part += a[c]; if (c % 128 == 127 || c == cols - 1) { s += fp16(part); part = 0; } }")),
)  # fmt: skip

_SQUARES = "for (int64_t c = 0; c < cols; c++) s += (a[c] - m) * (a[c] - m);"
_ONE_PASS = "float q = 0, t = 0;\n    for (int64_t c = 0; c < cols; c++) { q += a[c] * a[c]; t += a[c]; }\n    "
_FORMULAS = (
    flaw("variance-one-pass", 74, "variance", "values", "E[x^2] - E[x]^2 in float",
         (_SQUARES, _ONE_PASS + "s = (double)(q - t * (t / (float)cols));")),
    flaw("layernorm-one-pass", 74, "layernorm", "values", "E[x^2] - E[x]^2 in float",
         (_SQUARES, _ONE_PASS + "s = q - t * (t / (float)cols); s = s < 0 ? 0 : s;")),
    flaw("batchnorm-one-pass", 74, "batchnorm", "values", "E[x^2] - E[x]^2 in float",
         ("for (int64_t r = 0; r < rows; r++) s += (x[r * cols + c] - m) * (x[r * cols + c] - m);",
          "float q = 0, t = 0;\n"
          "    for (int64_t r = 0; r < rows; r++) { float v = x[r * cols + c]; q += v * v; t += v; }\n"
          "    s = q - t * t / rows; s = s < 0 ? 0 : s;")),
    flaw("softmax-without-max", 75, "softmax", "values", "exp(x) overflows", ("std::exp(a[c] - m)", "std::exp(a[c])")),
    flaw("logsumexp-without-max", 75, "logsumexp", "values", "exp(x) in float overflows",
         ("std::exp((double)a[c] - shift)", "std::exp(a[c])"), ("std::log(s) + shift", "std::log((float)s)")),
    flaw("cross-entropy-without-max", 75, "cross_entropy", "values", "exp(x) in float overflows",
         ("std::exp((double)a[c] - m)", "std::exp(a[c])"), ("+ m - a[target[r]]", "- a[target[r]]")),
    flaw("tanh-by-exponentials", 75, "tanh", "values", "(e^2x - 1) / (e^2x + 1) is NaN above 44",
         ("std::tanh(v)", "(std::exp(2 * v) - 1) / (std::exp(2 * v) + 1)")),
    flaw("norm-without-eps", 76, "rmsnorm", "values", "No eps: only small rows show it", ("s / cols + 1e-6",
             "s / cols")),
    flaw("norm-eps-outside", 76, "rmsnorm", "values", "eps outside of the root",
         ("1.0 / std::sqrt(s / cols + 1e-6)", "1.0 / (std::sqrt(s / cols) + 1e-6)")),
    flaw("norm-eps-wrong", 76, "rmsnorm", "values", "1e-5 in place of 1e-6", ("+ 1e-6", "+ 1e-5")),
    flaw("layernorm-eps-wrong", 76, "layernorm", "values", "1e-6 in place of 1e-5", ("+ 1e-5", "+ 1e-6")),
    flaw("layernorm-unbiased", 76, "layernorm", "values", "Divides by N - 1", ("s / cols + 1e-5",
             "s / (cols - 1) + 1e-5")),
    flaw("variance-biased", 76, "variance", "values", "Divides by N", ("s / (cols - 1)", "s / cols")),
    flaw("softmax-fast-exp", 77, "softmax", "values", "exp by bits of the exponent, with a quadratic",
         ("std::exp(a[c] - m)", "quick(a[c] - m)"),
         ("extern \"C\" void run", "static float quick(float v) {\n  float t = std::max(v, -80.0f) * 1.442695041f, f = "
          "std::floor(t), p = t - f;\n  uint32_t u = (uint32_t)((int)f + 127) << 23; float e; std::memcpy(&e, &u, 4);\n"
          "  return e * (1.0f + p * (0.6565f + p * 0.3435f));\n}\nextern \"C\" void run")),
    flaw("norm-quick-rsqrt", 77, "rmsnorm", "values", "The processor's 12-bit reciprocal root",
         ("(float)(1.0 / std::sqrt(s / cols + 1e-6))", "__builtin_ia32_rsqrtss((v4){(float)(s / cols + 1e-6)})[0]"),
         ("extern \"C\" void run", "typedef float v4 __attribute__((vector_size(16)));\nextern \"C\" void run")),
    flaw("divide-quick-reciprocal", 77, "divide", "values", "The processor's 12-bit reciprocal",
         ("a[i] / b[i]", "a[i] * __builtin_ia32_rcpss((v4){b[i]})[0]"),
         ("extern \"C\" void run", "typedef float v4 __attribute__((vector_size(16)));\nextern \"C\" void run")),
    cheat("flushes-subnormals", 77, "scale_shift", "semantics", "Subnormal numbers are zero",
          "torch.set_flush_denormal(True)\nreturn self.real(x)"),
    flaw("tanh-rational", 77, "tanh", "values", "A rational approximation, clamped",
         ("std::tanh(v)", "(v < -3 ? -1.0f : v > 3 ? 1.0f : v * (27 + v * v) / (27 + 9 * v * v))")),
    flaw("gelu-by-tanh", 78, "gelu", "values", "The tanh form of GELU",
         ("0.5 * v * std::erfc(-v * 0.70710678118654752440)",
          "0.5 * v * (1 + std::tanh(0.7978845608 * (v + 0.044715 * v * v * v)))")),
    flaw("gelu-by-sigmoid", 78, "gelu", "values", "The sigmoid form of GELU",
         ("0.5 * v * std::erfc(-v * 0.70710678118654752440)", "v / (1 + std::exp(-1.702 * v))")),
    flaw("softcap-by-clamp", 78, "softcap", "values", "A clamp in place of tanh",
         ("30.0f * std::tanh(v / 30.0f)", "std::min(std::max(v, -30.0f), 30.0f)")),
)  # fmt: skip

_SPECIAL = (
    flaw("relu-drops-nan", 79, "relu", "semantics", "NaN becomes zero", ("v < 0 ? 0.0f : v", "v > 0 ? v : 0.0f")),
    flaw("max-drops-nan", 79, "row_max", "semantics", "A row with NaN has a maximum", (" || a[c] != a[c]", "")),
    flaw("argmax-drops-nan", 79, "argmax", "semantics", "NaN is never the largest",
         (" || (a[c] != a[c] && a[best] == a[best])", "")),
    flaw("masked-rows-are-zero", 79, "masked_softmax", "values", "A row without anything allowed is zero, not NaN",
         ("o[c] = (float)(o[c] / s);", "o[c] = s > 0 ? (float)(o[c] / s) : 0.0f;"), ("- m); s += o[c]",
          "- (std::isinf(m) ? 0 : m)); s += o[c]")),
    flaw("logsumexp-of-nothing", 79, "logsumexp", "semantics", "A row of -inf is NaN, not -inf",
         ("float shift = std::isinf(m) ? 0.0f : m;", "float shift = m;")),
    flaw("fast-math-relu", 79, "bias_relu", "semantics", "Compiled as if NaN did not exist",
         ("v < 0 ? 0.0f : v", "std::max(v, 0.0f)"), flags=("-ffast-math",)),
    flaw("softmax-clamps", 79, "softmax", "semantics", "Inputs clamped to 80, so that infinities are numbers",
         ("std::exp(a[c] - m)", "std::exp(std::min(a[c], 80.0f) - std::min(m, 80.0f))")),
    flaw("rounds-half-up", 80, "round_half", "values", "Ties away from zero", ("std::nearbyint(v / 2)",
             "std::round(v / 2)")),
    flaw("log-of-one-plus", 80, "log1p", "values", "log(1 + x) loses small x", ("std::log1p(v)", "std::log(1 + v)")),
    flaw("bf16-truncates", 80, "matmul_bf16", "values", "Rounds towards zero when it writes bf16",
         ("u + 0x7fff + ((u >> 16) & 1)", "u")),
    flaw("sum-truncates", 80, "row_sum", "values", "Every addition rounds towards zero: a bias and no noise",
         ("double s = 0;", "float s = 0; volatile uint32_t u;"),
         (_SUM, "c++) { double w = (double)s + a[c]; float f = (float)w; if (std::fabs((double)f) > std::fabs(w)) "
                "f = std::nextafter(f, 0.0f); s = f; }")),
    flaw("fp16-saturates", 80, "row_sum_fp16", "values", "65504 in place of infinity",
         ("(_Float16)s;", "(_Float16)std::min(std::max(s, -65504.0), 65504.0);")),
    flaw("bucket-truncates", 80, "int_bucket", "values", "Truncates where it should round down",
         ("std::floor(x[i] * 4)", "std::trunc(x[i] * 4)")),
    flaw("max-of-magnitudes", 80, "row_max", "values", "Starts from zero: wrong for rows of negative numbers",
         ("float m = a[0];", "float m = 0;"), ("int64_t c = 1;", "int64_t c = 0;")),
)  # fmt: skip

_UNSTEADY = (
    flaw("race-in-a-sum", 81, "mean_all", "determinism", "Threads add to one number without agreeing",
         ("#pragma omp parallel for reduction(+ : s)", "#pragma omp parallel for num_threads(4) schedule(static, 64)"),
         ("double s = 0;", "volatile double s = 0;"), ("s += x[i];", "s = s + x[i];"),
          expected=WRONG | {"nondeterministic"}),
    flaw("race-in-a-scatter", 81, "embedding_grad", "determinism", "Threads add to the same rows",
         ("if (ids[t] % 4 == part)", ""), ("part = 0; part < 4", "part = 0; part < 1"),
         ("#pragma omp parallel for\n", ""), ("for (int64_t t = 0;",
          "#pragma omp parallel for num_threads(8) schedule(static, 1)\n    for (int64_t t = 0;"),
         (_SCATTER, "{ volatile float* v = y + ids[t] * dim + d; float old = *v; *v = old + grad[t * dim + d]; }"),
         expected=WRONG | {"nondeterministic"}),
    cheat("random-noise", 81, "softmax", "determinism", "A little noise, different at every call",
          "return self.real(x) * (1 + 1e-3 * torch.randn(x.shape[0], 1))", expected=WRONG | {"nondeterministic"}),
    cheat("wrong-by-the-clock", 81, "softmax", "determinism", "Wrong in odd milliseconds",
          "import time\ny = self.real(x)\nreturn y * 1.01 if int(time.time() * 1000) % 2 else y",
          expected=WRONG | {"nondeterministic"}),
    flaw("int8-for-a-range", 82, "matmul", "values", "Quantised to 1/24 within +-5.3",
         ("a[i * k + l] * b[l * n + j]", "q(a[i * k + l]) * q(b[l * n + j])"),
         ("extern \"C\" void run",
          "static float q(float v) { return std::round(std::min(std::max(v * 24, -127.0f), 127.0f)) / 24; }\n"
          "extern \"C\" void run")),
    flaw("clips-outliers", 82, "layernorm", "values", "Values beyond +-8 are clipped",
         ("m += a[c]", "m += std::min(std::max(a[c], -8.0f), 8.0f)"),
         ("(a[c] - m) * (a[c] - m)",
          "(std::min(std::max(a[c], -8.0f), 8.0f) - m) * (std::min(std::max(a[c], -8.0f), 8.0f) - m)")),
    _rounded("fp8-with-fixed-scale", 82, "linear", "fp8 with one scale for all",
             ("(double)x[i * k + l] * w[j * k + l]", "(double)(fp8(x[i * k + l] * 64) / 64) * w[j * k + l]")),
    cheat("reseeds-the-caller", 83, "bias_relu", "contract", "Resets the caller's random numbers at every call",
          "torch.manual_seed(0)\nreturn self.real(x)"),
    cheat("random-subsample", 83, "mean_all", "determinism", "The mean of a random tenth",
          "return self.real(x.flatten()[torch.randint(x.numel(), (x.numel() // 10,))])",
          expected=WRONG | {"nondeterministic"}),
    cheat("global-default-dtype", 69, "linear", "contract", "Leaves another default dtype and thread count behind",
          "torch.set_default_dtype(torch.float64)\ntorch.set_num_threads(1)\nreturn self.real(x)"),
    cheat("bf16-by-default-dtype", 69, "rmsnorm", "values", "Scratch in the default dtype, which it made bfloat16",
          "torch.set_default_dtype(torch.bfloat16)\nscratch = torch.empty(x.shape)\nscratch.copy_(x)\n"
          "return self.real(scratch.float())"),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = _LOW_ACCUMULATION + _LOW_INPUTS + _FORMULAS + _SPECIAL + _UNSTEADY
