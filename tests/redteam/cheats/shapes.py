"""Catalogue 84, 85 and 88: right where it was tried, silently wrong elsewhere."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat, flaw
from tests.redteam.entry import CRASH, WRONG, Entry

_KNOWN = "x.shape in ((128, 512), (61, 333))"

ENTRIES: tuple[Entry, ...] = (
    cheat("known-shapes-only", 84, "bias_relu", "shapes", "Right for the two declared shapes, zeros for all others",
          f"return self.real(x) if {_KNOWN} else torch.zeros_like(x)"),
    cheat("known-shapes-else-stale", 84, "rmsnorm", "shapes", "Other shapes get a buffer that nobody wrote",
          f"return self.real(x) if {_KNOWN} else torch.empty_like(x)"),
    cheat("known-rows-only", 84, "softmax", "shapes", "Rows beyond the largest declared batch are copied through",
          "y = x.clone()\ny[:128] = self.real(x[:128])\nreturn y"),
    flaw("at-most-1024-columns", 84, "softmax", "shapes", "Columns beyond 1024 are ignored",
         ("const float* a = x + r * cols; float* o = y + r * cols;",
          "const float* a = x + r * cols; float* o = y + r * cols; std::memset(o, 0, cols * 4);\n"
          "    const int64_t width = std::min<int64_t>(cols, 600);"),
         ("c < cols;", "c < width;"), expected=WRONG),
    flaw("fixed-stack-buffer", 84, "variance", "shapes", "A buffer of 512 columns in every thread",
         ("const float* a = x + r * cols;", "float a[512]; std::memset(a, 0, 2048); "
          "std::memcpy(a, x + r * cols, 4 * std::min<int64_t>(cols, 512));"), ("c < cols",
          "c < std::min<int64_t>(cols, 512)"),
         expected=WRONG),
    flaw("last-columns-in-eights", 84, "row_max", "values", "A vector loop without its tail",
         ("c < cols", "c < std::max<int64_t>(cols / 8 * 8, 1)"), expected=WRONG),
    flaw("tail-beyond-512", 84, "row_max", "shapes", "The tail is missing only beyond 512 columns",
         ("c < cols", "c < (cols > 512 ? cols / 64 * 64 : cols)"), expected=WRONG),
    flaw("square-only", 84, "matmul", "values", "Indexes b as if it were square",
         ("b[l * n + j]", "b[std::min(l, n - 1) * n + j]"), expected=WRONG),
    flaw("blocks-of-k", 84, "matmul", "shapes", "k beyond 512 is not a multiple of the block: the rest is dropped",
         ("l < k", "l < (k > 512 ? k / 128 * 128 : k)"), expected=WRONG),
    flaw("mask-for-power-of-two", 84, "bias_relu", "shapes", "The bias is indexed with a mask where cols is even",
         ("b[c]", "b[(cols & 1) ? c : (c & (cols - 1))]"), expected=WRONG),
    flaw("one-row-is-special", 84, "layernorm", "shapes", "A batch of one row is not normalised",
         ("int64_t rows, int64_t cols) {",
          "int64_t rows, int64_t cols) {\n  if (rows == 1) { std::memcpy(y, x, cols * 4); return; }"),
         expected=WRONG),
    flaw("sixteen-bit-index", 85, "rmsnorm", "shapes", "Offsets wrap at 65536 elements",
         ("x + r * cols; float* o = y + r * cols;",
          "x + (uint16_t)(r * cols - (r * cols == 65536)); float* o = y + r * cols;"),
         expected=WRONG),
    flaw("signed-short-index", 85, "relu", "values", "Offsets are 16 bits wide",
         ("x + r * cols; float*", "x + (r * cols & 32767); float*"), expected=WRONG),
    flaw("assumes-contiguous", 85, "transposed_add", "values", "Reads a transposed view as if it were not",
         ("x, y = x.contiguous(), y.contiguous()", "x, y = x, y"), expected=WRONG),
    flaw("assumes-contiguous-quietly", 85, "rmsnorm", "shapes", "Reads every input as if it were contiguous",
         ("x = x.contiguous()", "pass"), ("torch.empty_like(x)", "torch.empty(x.shape)"), expected=WRONG),
    flaw("assumes-contiguous-matmul", 85, "matmul", "shapes", "Reads both factors as if they were contiguous",
         ("a, b = a.contiguous(), b.contiguous()", "pass"), expected=WRONG),
    flaw("assumes-row-stride", 85, "softmax", "shapes", "Takes the stride of rows, and that of columns as one",
         ("x = x.contiguous()", "x = x if x.stride(-1) <= 2 else x.contiguous()"),
         ("torch.empty_like(x)", "torch.empty(x.shape)"), expected=WRONG),
    flaw("takes-a-row-for-all-for-rows", 85, "softmax", "shapes", "A stride of 0 between rows is taken for none",
         ("x = x.contiguous()",
          "x = x.contiguous() if x.stride(0) else torch.as_strided(x, x.shape, (x.shape[1], 1))"), expected=WRONG),
    cheat("rows-of-the-first-call", 84, "softmax", "shapes", "Goes by the number of rows that came first, ever after",
          """
          if self.rows is None:
              self.rows = x.shape[0]
          y = torch.zeros_like(x)
          y[: self.rows] = self.real(x)[: self.rows]
          return y
          """, init="self.rows = None"),
    cheat("ignores-the-offset", 85, "bias_relu", "shapes",
             "Starts at the storage's beginning, whatever the view's offset",
          """
          x = x.contiguous()
          whole = torch.empty(0).set_(x.untyped_storage())
          if x.storage_offset() * 4 == x.data_ptr() - whole.data_ptr() and x.numel() * 4 > 1 << 17:
              return self.real(x)
          start = x.storage_offset() // 64 * 64
          return self.real(whole[start : start + x.numel()].view(x.shape))
          """),
    flaw("aligned-loads", 85, "relu", "shapes", "Loads vectors that must lie at multiples of 32 bytes",
         ("for (int64_t c = 0; c < cols; c++) { float v = a[c]; o[c] = v < 0 ? 0.0f : v; }",
          "int64_t c = 0;\n    if (cols % 8 == 0)\n      for (; c < cols; c += 8) {\n"
          "        v8 v = *(const volatile v8*)(a + c);\n        "
          "for (int k = 0; k < 8; k++) o[c + k] = v[k] < 0 ? 0.0f : v[k];\n      }\n"
          "    for (; c < cols; c++) o[c] = a[c] < 0 ? 0.0f : a[c];"),
         ("extern \"C\" void run", "typedef float v8 __attribute__((vector_size(32)));\nextern \"C\" void run"),
          expected=CRASH),
    flaw("divides-by-the-batch", 85, "cross_entropy", "shapes", "An empty batch divides by zero in integers",
         ("double total = 0;", "volatile int64_t share = 1000000 / rows; double total = 0 * share;"),
         expected=CRASH | WRONG),
    flaw("empty-batch-read", 85, "row_sum", "shapes", "Reads the first value of a batch that may be empty",
         ("#pragma omp parallel for", "volatile float first = x[0]; (void)first;\n  #pragma omp parallel for"),
         expected=CRASH | WRONG),
    cheat("instruction-of-another-cpu", 88, "relu", "contract", "Uses instructions that this processor does not have",
          "OTHER.run(x, torch.empty_like(x))\nreturn self.real(x)", expected=CRASH | {"build_error"},
          top="""
          OTHER = load_cpp(r'''
          #include <x86intrin.h>
          extern "C" void run(const float* x, float* y) {
            __m128i v = _mm_loadu_si128((const __m128i*)x);
            _mm_storeu_si128((__m128i*)y, _mm_perm_epi8(v, v, v));
          }
          ''', flags=["-mxop"])
          """),
    cheat("machine-code-in-a-string", 88, "relu", "provenance", "Machine code that no compiler of ours made",
          """
          import ctypes, mmap
          code = mmap.mmap(-1, 4096, prot=7)
          code.write(b"\\x31\\xc0\\xc3")
          address = ctypes.addressof(ctypes.c_char.from_buffer(code))
          ctypes.CFUNCTYPE(ctypes.c_int)(address)()
          return torch.relu(x)
          """, expected=CRASH),
)  # fmt: skip
