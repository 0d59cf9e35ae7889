"""Each thread has some columns of all rows: it copies the base's, then adds every edge's, in the edges' order.

No two threads write one element, so there are no atomics, hubs are no burden to one thread, and a sum does not depend
on the number of threads. Bound by the bytes of the edges; torch goes through its indexing machinery for every edge.
"""

import torch
from kernelwright import load_cpp
from torch import nn

SOURCE = r"""
#include <omp.h>
#include <stdint.h>

static inline void add_row(float* __restrict to, const float* __restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

extern "C" void scatter_add(const float* base, const int64_t* ids, const float* rows, float* out, int64_t* refused,
                            int64_t nodes, int64_t edges, int64_t dim) {
    int64_t wrong = 0;
    #pragma omp simd reduction(| : wrong)
    for (int64_t e = 0; e < edges; e++) wrong |= (uint64_t)ids[e] >= (uint64_t)nodes;
    *refused = wrong;
    if (wrong) return;
    const int64_t lines = (dim + 15) / 16, most = omp_get_max_threads();  // columns are shared out by cache lines
    const int64_t threads = (nodes + edges) * dim < 65536 ? 1 : lines < most ? lines : most;
    #pragma omp parallel num_threads(threads > 1 ? threads : 1)
    {
        const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        const int64_t first = lines * part / parts * 16, end = lines * (part + 1) / parts * 16;
        const int64_t width = (end < dim ? end : dim) - first;
        for (int64_t r = 0; r < nodes; r++)
            for (int64_t i = 0; i < width; i++) out[r * dim + first + i] = base[r * dim + first + i];
        for (int64_t e = 0; e < edges; e++) add_row(out + ids[e] * dim + first, rows + e * dim + first, width);
    }
}
"""
lib = load_cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, base, ids, rows):
        if base.dtype != torch.float32 or rows.dtype != torch.float32 or ids.dtype != torch.int64 or base.dim() != 2:
            raise NotImplementedError("float32 matrices and int64 ids")
        if rows.shape != (ids.numel(), base.shape[1]):
            raise IndexError("a row for each id, as wide as the base")
        if not base.numel():
            return torch.empty_like(base)
        base, ids, rows = base.contiguous(), ids.contiguous(), rows.contiguous()
        out, refused = torch.empty_like(base), torch.empty(1, dtype=torch.int64)
        lib.scatter_add(base, ids, rows, out, refused, base.shape[0], ids.numel(), base.shape[1])
        if refused.item():
            raise IndexError("an id names no row")
        return out
