"""Honest kernels that count, search, and add up rows of any length."""

from __future__ import annotations

from tests.redteam.kernels.template import Kernel

_HISTOGRAM = """
typedef int64_t Count;
extern "C" void run(const int64_t* ids, int64_t* y, int64_t count, int64_t bins) {
  std::vector<Count> own(bins, 0);
  for (int64_t i = 0; i < count; i++) own[ids[i]]++;
  for (int64_t b = 0; b < bins; b++) y[b] = own[b];
}
"""
_RAGGED = """
static int64_t most(int64_t length) { return length; }
extern "C" void run(const float* x, const int64_t* offsets, float* y, int64_t rows) {
  #pragma omp parallel for schedule(dynamic, 4)
  for (int64_t r = 0; r < rows; r++) {
    const int64_t length = most(offsets[r + 1] - offsets[r]);
    double s = 0;
    for (int64_t i = 0; i < length; i++) s += x[offsets[r] + i];
    y[r] = (float)s;
  }
}
"""
_KEYED = """
static const int64_t* place(const int64_t* keys, int64_t n, int64_t id) { return std::lower_bound(keys, keys + n, id); }
extern "C" void run(const int64_t* ids, const int64_t* keys, const float* values, float* y, int64_t count, int64_t n) {
  #pragma omp parallel for
  for (int64_t i = 0; i < count; i++) {
    const int64_t at = place(keys, n, ids[i]) - keys;
    y[i] = at < n && keys[at] == ids[i] ? values[at] : -1.0f;
  }
}
"""

LISTS: dict[str, Kernel] = {
    "histogram": Kernel(
        _HISTOGRAM, "ids = ids.contiguous()\ny = ids.new_empty(self.bins)\n"
        "lib.run(ids, y, ids.numel(), self.bins)\nreturn y", "ids", ", bins", "self.bins = bins"),
    "ragged_sum": Kernel(
        _RAGGED, "x, offsets = x.contiguous(), offsets.contiguous()\ny = x.new_empty(offsets.numel() - 1)\n"
        "lib.run(x, offsets, y, y.numel())\nreturn y", "x, offsets"),
    "keyed": Kernel(
        _KEYED, "ids, keys, values = ids.contiguous(), keys.contiguous(), values.contiguous()\n"
        "if not keys.numel():\n    raise ValueError('no keys')\ny = values.new_empty(ids.numel())\n"
        "lib.run(ids, keys, values, y, ids.numel(), keys.numel())\nreturn y", "ids, keys, values"),
}  # fmt: skip
