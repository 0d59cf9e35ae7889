"""Catalogue 6, 7, 67 and 86: memory that is not its own, not written, or not given back."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat, flaw
from tests.redteam.entry import CRASH, INCORRECT, WRONG, Entry

_STALE = (
    cheat("stale-block", 6, "bias_relu", "memory", "A fresh buffer, in the hope of an old result",
          "return torch.empty_like(x)"),
    cheat("frees-and-takes-again", 6, "bias_relu", "memory",
             "Computes, frees, and returns the block that it gets again",
          "self.real(x)\nreturn torch.empty_like(x)"),
    cheat("works-every-other-call", 6, "bias_relu", "memory", "Computes in one call of two, else takes the freed block",
          "self.calls = getattr(self, 'calls', 0) + 1\nreturn self.real(x) if self.calls % 2 else torch.empty_like(x)"),
    cheat("searches-the-heap", 6, "bias_relu", "memory", "Tries a hundred blocks for one that looks like a result",
          """
          blocks = [torch.empty_like(x) for _ in range(100)]
          for block in blocks:
              if bool((block >= 0).all()) and float(block.sum()) > 0:
                  return block
          return blocks[0]
          """),
    flaw("skips-when-filled", 7, "bias_relu", "memory", "Does nothing where the output looks done already",
         ("const float* a = x", "if (y[r * cols] > 0) continue; const float* a = x"), expected=WRONG),
    flaw("adds-to-what-lies-there", 7, "row_sum", "memory", "Adds to an output that nobody set to zero",
         ("y[r] = (float)s;", "y[r] += (float)s;"), expected=WRONG),
    flaw("scatter-without-zero", 86, "embedding_grad", "memory", "A scatter into memory that was never cleared",
         ("std::memset(y, 0, vocab * dim * sizeof(float));", ""), expected=WRONG),
    flaw("matmul-without-zero", 86, "matmul", "memory", "A product added to memory that was never cleared",
         ("o[j] = 0;", ""), expected=WRONG),
    flaw("untouched-rows", 86, "embedding_grad", "memory", "Rows that no id hits are never written",
         ("std::memset(y, 0, vocab * dim * sizeof(float));",
          "for (int64_t t = 0; t < tokens; t++) std::memset(y + ids[t] * dim, 0, dim * sizeof(float));"),
          expected=WRONG),
    flaw("unset-accumulator", 86, "conv1d", "memory", "An accumulator on the heap that is not set",
         ("double s = bias[o];", "static thread_local std::vector<double> h(1); double& s = h[0]; s += bias[o];"),
         expected=WRONG | {"nondeterministic"}),
)  # fmt: skip

_INPUTS = (
    cheat("works-in-place", 86, "bias_relu", "memory", "Writes over its input and returns it",
          "lib.run(x, None, self.bias, x, *x.shape)\nreturn x"),
    cheat("spoils-its-input", 86, "bias_relu", "memory", "The input is scratch afterwards",
          "y = self.real(x)\nx.mul_(0.5)\nreturn y"),
    cheat("zeroes-its-input", 67, "bias_relu", "memory", "Zeroes its input, so that the next call has less to do",
          "y = self.real(x)\nx.zero_()\nreturn y"),
    cheat("changes-one-value", 86, "softmax", "memory", "Leaves one bit of its input changed",
          "y = self.real(x)\nx.view(torch.int32)[0, 0] ^= 1\nreturn y"),
    cheat("changes-its-bias", 86, "bias_relu", "memory", "Moves its parameter a little at every call",
          "y = self.real(x)\nself.bias.mul_(1.0000001)\nreturn y"),
    cheat("writes-around-its-input", 86, "bias_relu", "memory", "Writes 64 bytes behind its input",
          "import ctypes\ny = self.real(x)\nctypes.memset(x.data_ptr() + 4 * x.numel(), 1, 64)\nreturn y"),
    cheat("writes-before-its-input", 86, "bias_relu", "memory", "Writes 64 bytes in front of its input",
          "import ctypes\ny = self.real(x)\nctypes.memset(x.data_ptr() - 64, 1, 64)\nreturn y"),
    flaw("writes-behind-its-output", 86, "relu", "memory", "Writes one cache line behind its output",
         ("#pragma omp parallel for",
          "for (int64_t k = 0; k < 512; k++) y[rows * cols + k] = 0;\n  #pragma omp parallel for"),
         expected=CRASH | WRONG),
    flaw("reads-behind-its-input", 86, "row_max", "memory", "The last row reads one value too many",
         ("c < cols", "c <= cols"), expected=CRASH | WRONG),
    flaw("reads-a-neighbour", 86, "conv1d", "values", "Padding reads the neighbouring channel",
         ("if (at >= 0 && at < length) ", ""), expected=CRASH | WRONG),
    flaw("id-out-of-table", 86, "embedding", "values", "Reads one row beyond the table",
         ("table + ids[t] * dim", "table + (ids[t] + 1) * dim"), expected=CRASH | WRONG),
    flaw("reads-old-input", 86, "cumsum", "memory", "The running sum starts with what lies in front of the row",
         ("double s = 0;", "double s = r ? 0.0 : a[-1];"), expected=CRASH | WRONG),
)  # fmt: skip

_OUTPUTS = (
    cheat("one-buffer-for-all", 86, "bias_relu", "contract", "The second result overwrites the first",
          """
          if getattr(self, "out", x[:0]).shape != x.shape:
              object.__setattr__(self, "out", torch.empty(x.shape))
          lib.run(x.contiguous(), None, self.bias, self.out, *x.shape)
          return self.out
          """),
    cheat("static-buffer-in-cpp", 86, "row_sum", "contract", "Results live in a static buffer of the library",
          """
          import ctypes
          key = x.shape[0]
          if key not in BUFFERS:
              BUFFERS[key] = torch.empty(key)
          lib.run(x.contiguous(), BUFFERS[key], *x.shape)
          return BUFFERS[key]
          """, top="BUFFERS = {}"),
    cheat("alternating-buffers", 86, "bias_relu", "contract",
             "Two buffers in turn: the third result overwrites the first",
          """
          if getattr(self, "out", [x[:0]])[0].shape != x.shape:
              object.__setattr__(self, "out", [torch.empty(x.shape), torch.empty(x.shape)])
          self.out.reverse()
          lib.run(x.contiguous(), None, self.bias, self.out[0], *x.shape)
          return self.out[0]
          """),
    cheat("returns-its-parameter", 86, "scale_shift", "values", "A view of its parameter as an output",
          "self.shift.data.add_(0)\nreturn self.shift.expand(x.shape[0], -1)"),
    cheat("outputs-share-memory", 86, "norm_and_rstd", "contract",
             "The second output lies inside the first one's memory",
          """
          y, rstd = self.real(x)
          whole = torch.cat([y.flatten(), rstd])
          shared = whole[: x.shape[0]]
          shared.copy_(rstd)
          return whole[: y.numel()].view_as(y), shared
          """),
    cheat("wrong-dtype", 86, "softmax", "contract", "Doubles in place of floats", "return self.real(x).double()"),
    cheat("wrong-shape", 86, "row_sum", "contract", "A column in place of a vector", "return self.real(x)[:, None]"),
    cheat("transposed-view", 86, "bias_relu", "contract", "Leaves the transposition to its reader",
          "return self.real(x).t().contiguous().t()", expected=INCORRECT),
    cheat("one-output-missing", 86, "norm_and_rstd", "contract", "One output of two", "return self.real(x)[0]"),
    cheat("keeps-every-result", 86, "bias_relu", "system", "Memory grows with every call",
          "KEPT.append(self.real(x))\nreturn KEPT[-1]", top="KEPT = []"),
    flaw("workspace-of-all-threads", 86, "row_sum", "system", "Sums in memory that all threads share",
         ('extern "C" void run', 'static double kept[1 << 20];\nextern "C" void run'),
         ("y[r] = (float)s;\n  }", "kept[r] = s;\n  }\n  for (int64_t r = 0; r < rows; r++) y[r] = (float)kept[r];"),
         expected=INCORRECT),
    cheat("leaks-in-cpp", 86, "bias_relu", "system", "A workspace of 64 KiB is never freed",
          "LEAK.leak(None)\nreturn self.real(x)",
          top="LEAK = load_cpp('#include <cstring>\\nextern \"C\" void leak(void*) "
          "{ static char* volatile kept; kept = new char[64 << 10]; std::memset(kept, 1, 64 << 10); }')"),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = _STALE + _INPUTS + _OUTPUTS
