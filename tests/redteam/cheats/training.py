"""Catalogue 87: the forward is right, and training with it is not."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat, flaw
from tests.redteam.cheats.numerics import ROUNDING
from tests.redteam.entry import CRASH, INCORRECT, WRONG, Entry

_ANY = CRASH | WRONG


def _rounded(name: str, catalogue: int, problem: str, title: str, *swap: tuple[str, str]) -> Entry:
    entry = flaw(name, catalogue, problem, "values", title, *swap)
    source = entry.source.replace("#include <vector>\n", "#include <vector>\n" + ROUNDING, 1)
    return Entry(name, catalogue, title, problem, "cpp", source, INCORRECT, "values")


ENTRIES: tuple[Entry, ...] = (
    cheat("output-detached", 87, "rmsnorm_train", "contract", "Detached: no gradient flows",
          "return self.real(x).detach()", expected=_ANY),
    cheat("forward-without-graph", 87, "scale_shift_train", "contract", "A kernel without a backward",
          "y = torch.empty_like(x)\nlib.forward(x, self.scale, self.shift, y, *x.shape)\nreturn y", expected=_ANY),
    cheat("graph-without-content", 87, "gelu_train", "values", "A graph that leads to zero gradients",
          "return self.real(x).detach() + 0 * x", expected=_ANY),
    flaw("straight-through", 87, "gelu_train", "values", "Hands the gradient on unchanged",
         ("lib.backward(g, x, dx, x.numel())", "dx.copy_(g)")),
    flaw("gelu-backward-by-tanh", 78, "gelu_train", "values", "The derivative of the tanh form",
         ("0.5 * std::erfc(-v * 0.70710678118654752440), pdf = 0.39894228040143267794 * std::exp(-0.5 * v * v);",
          "0, t = std::tanh(0.7978845608 * (v + 0.044715 * v * v * v)), pdf = 0.5 * (1 - t * t) * 0.7978845608 "
          "* (1 + 0.134145 * v * v); cdf = 0.5 * (1 + t);")),
    flaw("half-a-derivative", 87, "gelu_train", "values", "The density's term is dropped", ("(cdf + v * pdf)", "cdf")),
    flaw("no-gradient-for-x", 87, "scale_shift_train", "values", "Only parameters get gradients",
         ("return dx, dw, db", "return None, dw, db"), expected=_ANY),
    flaw("no-gradient-for-shift", 87, "scale_shift_train", "values", "One parameter gets no gradient",
         ("return dx, dw, db", "return dx, dw, None"), expected=_ANY),
    flaw("zero-gradient-for-scale", 87, "scale_shift_train", "values", "One parameter's gradient is zero",
         ("dw[c] = (float)sw;", "dw[c] = 0;")),
    flaw("gradients-swapped", 87, "product_train", "values", "The gradients of a and b are swapped",
         ("return da, db", "return db, da")),
    flaw("gradient-by-half-the-rows", 87, "scale_shift_train", "values", "The weight's gradient sees every other row",
         ("sw += (double)g[i] * x[i];", "if (r % 2 == 0) sw += 2.0 * g[i] * x[i];")),
    flaw("norm-gradient-without-mean", 87, "rmsnorm_train", "values", "The mean's term is missing from dx",
         (" - x[i] * k * k * dot / cols", "")),
    flaw("norm-gradient-without-weight", 87, "rmsnorm_train", "values", "The weight is missing from dx",
         ("k * (g[i] * w[c] - ", "k * (g[i] - ")),
    flaw("norm-gradient-averaged", 87, "rmsnorm_train", "values", "dw is a mean and not a sum",
         ("dw[c] = (float)sw[c];", "dw[c] = (float)(sw[c] / rows);")),
    _rounded("norm-weight-gradient-bf16", 71, "rmsnorm_train", "dw accumulates in bf16",
             ("sw[c] += (double)g[i] * x[i] * k;", "sw[c] = bf16((float)(sw[c] + (double)g[i] * x[i] * k));")),
    _rounded("embedding-gradient-bf16", 71, "embedding_train", "The table's gradient accumulates in bf16",
             ("acc[ids[t] * dim + d] += g[t * dim + d];",
              "{ double& v = acc[ids[t] * dim + d]; v = bf16((float)v + g[t * dim + d]); }")),
    flaw("embedding-gradient-overwrites", 87, "embedding_train", "values", "A row hit twice keeps the last hit only",
         ("acc[ids[t] * dim + d] += ", "acc[ids[t] * dim + d] = ")),
    flaw("embedding-gradient-counted-once", 87, "embedding_train", "values", "Hits beyond the 16th are dropped",
         ("std::vector<double> acc(vocab * dim, 0.0);",
          "std::vector<double> acc(vocab * dim, 0.0); std::vector<int> hits(vocab, 0);"),
         ("for (int64_t d = 0; d < dim; d++) acc",
          "for (int64_t d = 0, h = hits[ids[t]]++; h < 16 && d < dim; d++) acc")),
    cheat("cached-gradient", 87, "gelu_train", "values", "The gradient of the first call, ever after",
          "return self.real(x)", top="""
          GRADS = {}
          inner = Op.backward
          def kept(ctx, g):
              if g.shape not in GRADS:
                  GRADS[g.shape] = inner(ctx, g)
              return GRADS[g.shape].clone()
          Op.backward = staticmethod(kept)
          """),
    flaw("ignores-the-cotangent", 87, "scale_shift_train", "values", "Assumes that the loss is a sum",
         ("dx[i] = g[i] * w[c]; sw += (double)g[i] * x[i]; sb += g[i];", "dx[i] = w[c]; sw += x[i]; sb += 1;")),
    flaw("saves-a-changed-tensor", 87, "product_train", "values", "Changes what it saved, past autograd's sight",
         ("ctx.save_for_backward(a, b)\n        return product(a, b)",
          "kept = a.clone()\n        ctx.save_for_backward(kept, b)\n        y = product(a, b)\n"
          "        kept.data.mul_(1.001)\n        return y")),
    flaw("saved-in-a-global", 87, "rmsnorm_train", "contract",
             "The backward uses the last forward's tensors, whoever's they were",
         ("ctx.save_for_backward(x, w, rstd)", "Op.kept = (x, w, rstd)"), ("ctx.saved_tensors", "Op.kept")),
    flaw("zero-gradients-beside-a-frozen-input", 87, "product_train", "system", "None where another is not wanted",
         ("return da, db", "return (da, db) if all(ctx.needs_input_grad) else (0 * da, 0 * db)")),
    flaw("gradient-from-the-callers-result", 87, "gelu_train", "system", "Reads its result again, unprotected",
         ("void backward(const float* g, const float* x, float*", "void backward(const float* g, const float* x, "
          "const float* y, float*"),
         ("double cdf = 0.5 * std::erfc(-v * 0.70710678118654752440),",
          "double own = 0.5 * std::erfc(-v * 0.70710678118654752440), "
          "cdf = std::abs(v) > 1e-3 && std::abs(v) < 5 ? y[i] / v : own,"),
         ("ctx.save_for_backward(x)\n", "ctx.save_for_backward(x)\n        ctx.kept = y\n"),
         ("lib.backward(g, x, dx,", "lib.backward(g, x, ctx.kept, dx,")),
    cheat("trained-as-the-first-call-was", 87, "gelu_train", "system", "Decides at its first call, for good",
          """
          if self.trains is None:
              self.trains = torch.is_grad_enabled()
          y = self.real(x)
          return y if self.trains else y.detach()
          """, init="self.trains = None", expected=_ANY),
    cheat("goes-by-the-first-parameters", 87, "rmsnorm_train", "system", "Its copies go on with its own weight",
          "held = self.read()\nmine, self.weight = self.weight, held\ny = self.real(x)\nself.weight = mine\nreturn y",
          init="held = self.weight\nself.read = lambda: held", expected=_ANY),
    flaw("gradient-from-the-callers-input", 87, "gelu_train", "system", "Reads its input again, unprotected",
         ("ctx.save_for_backward(x)\n", "ctx.x = x\n"), ("(x,) = ctx.saved_tensors", "x = ctx.x")),
    flaw("backward-scribbles", 86, "product_train", "memory", "The backward overwrites its cotangent",
         ("da = product(g, b)\n        db = product(g, a)", "db = product(g, a)\n        da = g.mul_(b)"),
          expected=WRONG),
    flaw("statistics-not-moved", 87, "batchnorm", "contract", "The running statistics stay as they were",
         ("mean[c] = (float)(0.9 * mean[c] + 0.1 * m);", ""),
          ("var[c] = (float)(0.9 * var[c] + 0.1 * s / (rows - 1));", "")),
    flaw("statistics-biased", 87, "batchnorm", "contract", "The running variance divides by N",
         ("0.1 * s / (rows - 1)", "0.1 * s / rows")),
    cheat("statistics-of-eval", 87, "batchnorm", "values", "Uses the running statistics in training",
          "n = self.norm\nscale = n.weight * torch.rsqrt(n.running_var + n.eps)\n"
          "return (x - n.running_mean) * scale + n.bias"),
)  # fmt: skip
