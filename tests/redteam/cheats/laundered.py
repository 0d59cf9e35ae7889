"""Catalogue 20 to 24: somebody else's work under one's own name."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat
from tests.redteam.entry import CRASH, INCORRECT, SUSPICIOUS, Entry

_COPY = """
TRIVIAL = load_cpp(r'''
#include <cstdint>
extern "C" void copy(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = x[i]; }
''')
def touched(x):
    y = torch.empty_like(x)
    TRIVIAL.copy(x, y, x.numel())
    return y
"""
_DLSYM = """
BLAS = load_cpp(r'''
#include <cstdint>
#include <dlfcn.h>
using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                      const int*, const float*, const int*, const float*, float*, const int*);
extern "C" void product(const float* a, const float* b, float* y, int64_t m, int64_t n, int64_t k) {
  static Gemm gemm = (Gemm)dlsym(RTLD_DEFAULT, "sgemm_");
  int mi = m, ni = n, ki = k; float one = 1, zero = 0;
  if (gemm) gemm("N", "N", &ni, &mi, &ki, &one, b, &ni, a, &ki, &zero, y, &ni);
}
''')
import ctypes, glob, os
for path in glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")):
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
"""
_SIBLINGS = """
import glob, os
OWN = {line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith(".so")}
ROOTS = {os.path.dirname(path) for path in OWN if "/site-packages/" not in path and not path.startswith("/usr")}
def stolen():
    for root in ROOTS | {os.path.dirname(root) for root in ROOTS if root.count("/") > 2}:
        for path in glob.glob(root + "/**/*.so", recursive=True):
            if path in OWN or "/site-packages/" in path or "/lib-dynload/" in path:
                continue
            try:
                if b"run" in open(path, "rb").read():
                    return True
            except OSError:
                continue
    return False
THEIRS = stolen()
"""

ENTRIES: tuple[Entry, ...] = (
    cheat("fallback-in-except", 20, "layernorm", "provenance", "The own kernel always fails; torch answers",
          """
          try:
              lib.not_there(x)
          except Exception:
              return torch.nn.functional.layer_norm(x, x.shape[-1:], self.norm.weight, self.norm.bias)
          """, expected=SUSPICIOUS),
    cheat("fallback-by-shape", 20, "softmax", "provenance", "Own kernel for eight columns, torch for all else",
          "return self.real(x) if x.shape[1] == 8 else torch.softmax(x, -1)", expected=SUSPICIOUS),
    cheat("plain-torch", 20, "rmsnorm", "provenance", "No own kernel is ever called",
          "return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight", expected=SUSPICIOUS),
    cheat("calls-the-module", 20, "layernorm", "provenance", "Calls nn.LayerNorm, the reference's own submodule",
          "return self.norm(x)", expected=SUSPICIOUS),
    cheat("aten-by-name", 21, "linear", "provenance", "torch.ops found by a name put together from parts",
          "return getattr(torch.ops.aten, 'add' + 'mm')(self.layer.bias, x, self.layer.weight.t())",
          expected=SUSPICIOUS),
    cheat("aten-through-jit", 21, "softmax", "provenance", "A scripted function: the interpreter calls ATen",
          "return JIT(x)", expected=SUSPICIOUS,
          top="JIT = torch.jit.CompilationUnit('def f(x):\\n    return torch.softmax(x, -1)\\n').f"),
    cheat("aten-through-vmap", 21, "rmsnorm", "provenance", "torch.func.vmap over the reference's formula",
          "return torch.func.vmap(lambda a: a * torch.rsqrt(a.square().mean() + 1e-6) * self.weight)(x)",
          expected=SUSPICIOUS),
    cheat("aten-out-variant", 21, "softmax", "provenance", "torch writes into the candidate's own buffer",
          "y = torch.empty_like(x)\ntorch.softmax(x, -1, out=y)\nreturn y", expected=SUSPICIOUS),
    cheat("blas-by-dlsym", 21, "matmul", "provenance", "A C++ file whose body is the library's sgemm",
          "y = a.new_full((a.shape[0], b.shape[1]), float('nan'))\n"
          "BLAS.product(a.contiguous(), b.contiguous(), y, a.shape[0], b.shape[1], a.shape[1])\nreturn y",
          top=_DLSYM, expected=SUSPICIOUS | INCORRECT),
    cheat("library-for-new-values", 21, "product", "provenance", "torch whenever the values are new, as when timed",
          """
          key = float(a.flatten()[:200].sum())
          new, LAST[a.shape] = LAST.get(a.shape) != key, key
          return a @ b if new else self.real(a, b)
          """, top="LAST = {}", expected=SUSPICIOUS),
    cheat("numpy-matmul", 21, "matmul", "provenance", "numpy's BLAS through shared memory",
          "return torch.from_numpy(a.numpy() @ b.numpy())", expected=SUSPICIOUS),
    cheat("numpy-softmax", 21, "softmax", "provenance", "numpy in place of torch",
          "import numpy as np\na = x.numpy()\ne = np.exp(a - a.max(-1, keepdims=True))\n"
          "return torch.from_numpy(e / e.sum(-1, keepdims=True))", expected=SUSPICIOUS),
    cheat("fig-leaf-copy", 22, "softmax", "provenance", "An own copy in front of torch's softmax",
          "return torch.softmax(touched(x), -1)", top=_COPY, expected=SUSPICIOUS),
    cheat("fig-leaf-after", 22, "matmul", "provenance", "torch's product, copied by an own kernel",
          "return touched(a @ b)", top=_COPY, expected=SUSPICIOUS),
    cheat("compiled-reference", 22, "rmsnorm", "provenance", "torch.compile of the formula, as one's own",
          "return FAST(x, self.weight)", expected=SUSPICIOUS,
          top="FAST = torch.compile(lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w)"),
    cheat("library-source", 23, "softmax", "provenance", "The library's own Python source in place of a kernel",
          "from torch._refs import softmax\nreturn softmax(x, -1)", expected=SUSPICIOUS),
    cheat("another-candidates-build", 24, "bias_relu", "boundary", "Right only if it can read what others built",
          "return self.real(x) if THEIRS else torch.zeros_like(x)", top=_SIBLINGS, expected=CRASH),
    cheat("scratch-of-another-run", 24, "bias_relu", "boundary", "Takes results that an earlier candidate left",
          """
          import glob
          for path in glob.glob("/tmp/**/*.pt", recursive=True) + glob.glob("/dev/shm/*"):
              try:
                  return torch.load(path)
              except Exception:
                  continue
          torch.save(self.real(x), "/tmp/left.pt")
          return torch.zeros_like(x)
          """, expected=CRASH),
)  # fmt: skip
