"""Sums by id, all in float32: in order, sorted, private tables, atomics, owned columns."""

from __future__ import annotations

from tests.redteam.honest.building import cpp

SCATTER = {
    "in-order": (
        "Row after row, in the order of the ids",
        """
    std::fill(out, out + vocab * dim, 0.0f);
    for (int64_t t = 0; t < tokens; t++) for (int64_t d = 0; d < dim; d++) out[ids[t] * dim + d] += grad[t * dim + d];
}""",
    ),
    "sorted": (
        "A counting sort by id, then a sum for each segment",
        """
    std::vector<int64_t> start(vocab + 1, 0), order(tokens);
    for (int64_t t = 0; t < tokens; t++) start[ids[t] + 1]++;
    for (int64_t v = 0; v < vocab; v++) start[v + 1] += start[v];
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t t = 0; t < tokens; t++) order[next[ids[t]]++] = t;
    #pragma omp parallel for schedule(dynamic, 16)
    for (int64_t v = 0; v < vocab; v++)
        for (int64_t d = 0; d < dim; d++) {
            float s = 0;
            for (int64_t i = start[v]; i < start[v + 1]; i++) s += grad[order[i] * dim + d];
            out[v * dim + d] = s;
        }
}""",
    ),
    "private-tables": (
        "A table for each of three bands of tokens, added up at the end",
        """
    std::vector<float> part(3 * vocab * dim, 0.0f);
    #pragma omp parallel for
    for (int64_t b = 0; b < 3; b++)
        for (int64_t t = b * tokens / 3; t < (b + 1) * tokens / 3; t++)
            for (int64_t d = 0; d < dim; d++) part[(b * vocab + ids[t]) * dim + d] += grad[t * dim + d];
    for (int64_t e = 0; e < vocab * dim; e++) out[e] = (part[e] + part[vocab * dim + e]) + part[2 * vocab * dim + e];
}""",
    ),
    "atomics": (
        "Atomic float additions from all threads, in any order",
        """
    std::fill(out, out + vocab * dim, 0.0f);
    #pragma omp parallel for schedule(dynamic, 32)
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t d = 0; d < dim; d++) {
            #pragma omp atomic
            out[ids[t] * dim + d] += grad[t * dim + d];
        }
}""",
    ),
    "by-dimension": (
        "Each thread owns some columns: no two write the same place",
        """
    #pragma omp parallel for
    for (int64_t d = 0; d < dim; d++) {
        for (int64_t v = 0; v < vocab; v++) out[v * dim + d] = 0;
        for (int64_t t = tokens - 1; t >= 0; t--) out[ids[t] * dim + d] += grad[t * dim + d];  // last token first
    }
}""",
    ),
}
"""Title and body of each way, by name."""
SCATTER_HEAD = """
#include <vector>
extern "C" void scatter(const int64_t* ids, const float* grad, float* out, int64_t tokens, int64_t vocab,
    int64_t dim) {"""
_SCATTER_INIT = """
def __init__(self, vocab):
    super().__init__()
    self.vocab = vocab
"""
_SCATTER_FORWARD = """
def forward(self, ids, grad):
    ids, grad = dense(ids, torch.int64), dense(grad)
    out = torch.empty(self.vocab, grad.shape[1])
    lib.scatter(ids, grad, out, ids.numel(), *out.shape)
    return out
"""

ENTRIES = (
    *(
        cpp(f"scatter-{name}", title, "embedding_grad", SCATTER_HEAD + code, _SCATTER_FORWARD, init=_SCATTER_INIT)
        for name, (title, code) in SCATTER.items()
    ),
)
"""Honest sums by id."""
