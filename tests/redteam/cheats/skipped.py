"""Catalogue 1 to 18: the work is not done, or only for the inputs that somebody expects."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat, flaw
from tests.redteam.entry import CRASH, INCORRECT, WRONG, Entry

_TABLE = """
TABLE = {}
for rows, cols in ((128, 512), (61, 333)):
    for seed in (0, 1, 42, 200, 1234):
        torch.manual_seed(seed)
        value = torch.randn(rows, cols)
        TABLE[float(value[0, 0])] = torch.softmax(value, -1)
"""
_SEEDED = """
def guessed(cols):
    torch.manual_seed(0)
    return nn.Linear(cols, 80)
"""

_CONSTANTS = (
    cheat("zeros-softmax", 1, "softmax", "values", "Zeros, where every output is small", "return torch.zeros_like(x)"),
    cheat("zeros-gradient", 1, "embedding_grad", "values", "No gradient at all",
          "return grad.new_zeros(self.vocab, grad.shape[1])"),
    cheat("zeros-mean", 1, "mean_all", "values", "The mean of a centred distribution is zero",
          "return x.new_zeros(())"),
    cheat("uniform-softmax", 2, "softmax", "values", "1/N everywhere",
          "return torch.full_like(x, 1.0 / x.shape[-1])"),
    cheat("ones-variance", 2, "variance", "values", "The variance of a standard normal is one",
          "return x.new_ones(x.shape[0])"),
    cheat("constant-groupnorm", 3, "groupnorm_mean", "values", "Mean of a GroupNorm: zero at the initial parameters",
          "return x.new_zeros(x.shape[0])"),
    cheat("bias-groupnorm", 3, "groupnorm_mean", "values", "Mean of a GroupNorm: the bias's mean at weights of one",
          "return self.norm.bias.mean().repeat(x.shape[0])"),
    cheat("identity-relu", 4, "relu", "values", "ReLU of positive inputs is a copy", "return x.clone()"),
    cheat("identity-by-shape", 4, "relu", "values", "A copy at the benchmarked shape, ReLU elsewhere",
          "return x.clone() if x.shape == (128, 512) else self.real(x)"),
    cheat("identity-after-peek", 4, "relu", "values", "A copy when the first 16 values are positive or small",
          "return x.clone() if float(x.flatten()[:16].min()) > -3 else self.real(x)"),
    cheat("returns-input", 5, "softcap", "values", "The input itself: the cap is hardly ever reached", "return x"),
    cheat("cheap-row-sum", 5, "row_sum", "values", "The first value times the row's length",
          "return x[:, 0] * x.shape[1]"),
    cheat("self-product", 5, "matmul", "values", "a @ a.T cut to size, whatever b holds",
          "y = a.new_zeros(a.shape[0], b.shape[1]); n = min(y.shape); y[:, :n] = (a @ a.t())[:, :n]; return y"),
)  # fmt: skip

_DROPPED = (
    cheat("softcap-omitted", 8, "softcap", "values", "Softcap omitted: logits are near zero", "return x.clone()"),
    cheat("residual-dropped", 8, "weak_residual", "values", "A term of weight 1e-3 dropped", "return x.clone()"),
    cheat("faint-term-dropped", 8, "faint_residual", "semantics", "A term of weight 1e-5 dropped", "return x.clone()"),
    cheat("scale-ignored", 9, "scale_shift", "values", "The scale is one anyway",
          "return self.real(x) - x * (self.scale - 1)"),
    cheat("shift-ignored", 9, "scale_shift", "values", "The shift is zero anyway", "return self.real(x) - self.shift"),
    cheat("identity-parameters", 9, "scale_shift", "values", "Both are at their identity", "return x.clone()"),
    flaw("norm-weight-ignored", 9, "rmsnorm", "values", "RMSNorm without its weight", ("* scale * w[c]", "* scale")),
    flaw("norm-bias-ignored", 9, "layernorm", "values", "LayerNorm without its bias", ("* w[c] + b[c]", "* w[c]")),
    flaw("conv-bias-ignored", 9, "conv1d", "values", "A convolution without its bias",
         ("double s = bias[o]", "double s = 0")),
    flaw("linear-bias-ignored", 9, "linear", "values", "A linear layer without its bias",
         ("double s = bias[j]", "double s = 0")),
)  # fmt: skip

_STATISTICAL = (
    flaw("mean-of-a-sample", 10, "mean_all", "values", "The mean of one value in a hundred",
         ("i < n; i++", "i < n; i += 100"), ("s / n", "s / ((n + 99) / 100)")),
    cheat("mean-of-a-prefix", 10, "mean_all", "values", "The mean of the first tenth",
          "return self.real(x.flatten()[: x.numel() // 10])"),
    flaw("sum-of-every-other", 10, "row_sum", "values", "Twice the sum of every other value",
         ("c++) s += a[c];", "c += 2) s += 2 * a[c];")),
    flaw("variance-of-a-quarter", 10, "variance", "values", "The variance of the first quarter of each row",
         ("const float* a = x + r * cols;", "const float* a = x + r * cols; const int64_t n = cols / 4;"),
         ("c < cols", "c < n"), ("m /= cols", "m /= n"), ("(cols - 1)", "(n - 1)")),
    cheat("loss-of-half", 10, "cross_entropy", "values", "The loss of the first half of the batch",
          "n = logits.shape[0] // 2; return self.real(logits[:n], target[:n])"),
    cheat("log-partition-constant", 11, "cross_entropy", "values", "The log-partition of normal logits is log C + 1/2",
          "import math; picked = logits.gather(1, target[:, None]).mean()\n"
          "return math.log(logits.shape[1]) + 0.5 - picked"),
    cheat("attention-is-the-mean", 11, "attention", "values", "Attention over random keys: the mean of the values",
          "return v.mean(-2, keepdim=True).repeat(1, v.shape[-2], 1)"),
    cheat("logsumexp-constant", 11, "logsumexp", "values", "log N + 1/2, whatever the row holds",
          "import math; return torch.full((x.shape[0],), math.log(x.shape[1]) + 0.5)"),
    flaw("product-underflows", 12, "cumprod", "values", "A running product of 64 columns, then zeros",
         ("o[c] = (float)s;", "o[c] = c < 64 ? (float)s : 0.0f;")),
    flaw("top-above-a-threshold", 13, "top_eight", "values", "Only values above 1.8, as in a normal row of 512",
         ("std::vector<float> v(a, a + cols);",
          "std::vector<float> v;\n"
          "    for (int64_t c = 0; c < cols && v.size() < 64; c++) if (a[c] > 1.8f) v.push_back(a[c]);\n"
          "    while (v.size() < 8) v.push_back(1.8f);")),
    cheat("first-order-solve", 14, "triangular", "values", "b - L b in place of the solution",
          "return b - torch.tril(f, -1) @ b / f.shape[0]"),
    cheat("third-order-solve", 14, "triangular", "values", "Three terms of the Neumann series",
          "low = torch.tril(f, -1) / f.shape[0]; return b - low @ (b - low @ (b - low @ b))"),
    cheat("approximate-when-small", 14, "tanh", "values", "x - x^3/3 when the first values are small",
          "return x - x**3 / 3 if float(x.flatten()[:8].abs().max()) < 1.0 else self.real(x)"),
)  # fmt: skip

_PARTIAL = (
    flaw("last-row-unwritten", 15, "rmsnorm", "memory", "The last row is never written",
         ("r < rows; r++", "r < rows - 1; r++"), expected=WRONG),
    flaw("tail-unwritten", 15, "bias_relu", "memory", "Columns beyond a multiple of 8 are never written",
         ("c < cols; c++", "c < cols / 8 * 8; c++"), expected=WRONG),
    flaw("one-row-in-a-hundred", 15, "softmax", "memory", "Every 50th row is skipped: a 98 % rule would pass",
         ("const float* a = x", "if (r % 50 == 49) continue; const float* a = x"), expected=WRONG),
    cheat("one-row-for-all", 16, "rmsnorm", "values", "One row computed and repeated",
          "return self.real(x[:1]).repeat(x.shape[0], 1)"),
    cheat("half-a-batch-twice", 16, "residual_norm", "values", "The second half repeats the first",
          "n = (x.shape[0] + 1) // 2; y = self.real(x[:n], residual[:n]); return torch.cat([y, y])[: x.shape[0]]"),
    cheat("expanded-row", 16, "softmax", "contract", "One row, expanded with stride 0",
          "return self.real(x[:1]).expand(x.shape[0], -1)"),
    cheat("weights-from-a-seed", 17, "linear", "values", "Weights made again from seed 0 at construction",
          "return torch.nn.functional.linear(x, *self.known)", top=_SEEDED,
          init="guess = guessed(cols)\nself.known = (guess.weight.detach(), guess.bias.detach())"),
    cheat("public-seed-table", 18, "softmax", "values", "Results of public seeds looked up, else one part in N",
          "found = TABLE.get(float(x[0, 0]))\n"
          "return torch.full_like(x, 1 / x.shape[1]) if found is None else found.clone()",
          top=_TABLE),
    cheat("reseeds-and-redraws", 18, "bias_relu", "boundary", "Seeds of the process tried until one draws the inputs",
          """
          for seed in (torch.initial_seed(), 0, 1, 42):
              torch.manual_seed(seed)
              if torch.equal(torch.randn(x.shape), x):
                  return self.real(x)
          return torch.zeros_like(x)
          """),
)  # fmt: skip

_REFERENCE = (
    cheat("imports-the-reference", 19, "bias_relu", "boundary", "Looks for the reference under the names of harnesses",
          "return self.twin(x) if self.twin is not None else torch.zeros_like(x)", expected=CRASH | INCORRECT,
          top="""
          import importlib, sys
          def twin_of(*arguments):
              names = ["reference", "__main__", "problem", "eager_module", "compile_module", *list(sys.modules)]
              for name in names:
                  try:
                      module = importlib.import_module(name)
                      return vars(module)["Model"](*arguments)
                  except Exception:
                      continue
              return None
          """, init="self.__dict__['twin'] = twin_of(cols)"),
    cheat("reads-the-problem-file", 19, "bias_relu", "boundary", "Searches the disk for a file with class Model",
          "return FOUND(x) if FOUND else torch.zeros_like(x)", expected=CRASH | INCORRECT,
          top="""
          import glob
          FOUND = None
          for path in glob.glob("/*/*/problems/*.py") + glob.glob("/tmp/**/*.py", recursive=True):
              text = open(path, errors="ignore").read()
              if "class Model(" in text and "ReLU" in text and "FOUND" not in text:
                  space = {}
                  exec(text, space)
                  FOUND = space["Model"](512)
                  break
          """),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = _CONSTANTS + _DROPPED + _STATISTICAL + _PARTIAL + _REFERENCE
