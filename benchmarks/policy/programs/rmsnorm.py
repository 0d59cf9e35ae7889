"""Residual addition and RMSNorm of rows: whether the sum is kept or made twice, and where."""

from __future__ import annotations

from benchmarks.policy.genome import ALGORITHM, Genome, Space
from benchmarks.policy.programs import skeleton
from benchmarks.policy.programs.skeleton import ARITHMETIC, SIMD, UNROLL

_SIGNATURE = r"""extern "C" void run(const float* x, float* y, const float* z, const float* w, double eps,
                    int64_t rows, int64_t n) {"""

_ROWS = (
    _SIGNATURE
    + r"""
    for (int64_t r = 0; r < rows; r++) {
        const float *p = x + r * n, *t = z + r * n;
        float* q = y + r * n;
        ahead(p, n);
        ahead(t, n);
@BODY@
    }
}
"""
)

_ROOT = "        const float root = (float)sqrt(s / n + eps);\n"

_BODIES = {
    "recomputed": r"""        const ACC s = total(n, [&](auto k) { const auto h = at(p, k) + at(t, k); return h * h; });
"""
    + _ROOT
    + r"""        each(n, [&](auto k) { put(q, k, (at(p, k) + at(t, k)) @BY@ * at(w, k)); });""",
    "kept": r"""        const ACC s = total(n, [&](auto k) {
            const auto h = put(q, k, at(p, k) + at(t, k));
            return h * h;
        });
"""
    + _ROOT
    + r"""        each(n, [&](auto k) { put(q, k, at(q, k) @BY@ * at(w, k)); });""",
    "separate": r"""        each(n, [&](auto k) { put(q, k, at(p, k) + at(t, k)); });
        const ACC s = total(n, [&](auto k) { return at(q, k) * at(q, k); });
"""
    + _ROOT
    + r"""        each(n, [&](auto k) { put(q, k, at(q, k) @BY@); });
        each(n, [&](auto k) { put(q, k, at(q, k) * at(w, k)); });""",
    "blocks": r"""        float room[BLOCK];
        ACC s = 0;
        for (int64_t from = 0; from < n; from += BLOCK) {
            const float *c = p + from, *d = t + from;
            const int64_t count = n - from < BLOCK ? n - from : BLOCK;
            each(count @LESS@, [&](auto k) { put(room, k, at(c, k) + at(d, k)); });
            s += total(count, [&](auto k) { return at(room, k) * at(room, k); });
        }
"""
    + _ROOT
    + r"""        each(n, [&](auto k) { put(q, k, (at(p, k) + at(t, k)) @BY@ * at(w, k)); });""",
}

_STAGED = (
    _SIGNATURE
    + r"""
    float* roots = (float*)malloc(rows * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        ahead(x + r * n, n);
        each(n, [&](auto k) { put(y + r * n, k, at(x + r * n, k) + at(z + r * n, k)); });
    }
    for (int64_t r = 0; r < rows; r++)
        roots[r] = (float)sqrt(total(n, [&](auto k) { return at(y + r * n, k) * at(y + r * n, k); }) / n + eps);
    for (int64_t r = 0; r < rows; r++) {
        const float root = roots[r];
        float* q = y + r * n;
        each(n, [&](auto k) { put(q, k, at(q, k) @BY@ * at(w, k)); });
    }
    free(roots);
}
"""
)

_INIT = """    def __init__(self, hidden, eps=1e-6, dtype="float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.eps = eps
        self.library = load_cpp(SOURCE, FLAGS)
"""

ROW = 1000
PARAMS: dict[str, int | str] = {"rows": 160, "hidden": ROW, "dtype": "float32"}


def write(genome: Genome) -> str:
    """The source of a genome."""
    algorithm = genome.gene(ALGORITHM)
    text = _STAGED if algorithm == "staged" else _ROWS.replace("@BODY@", _BODIES[algorithm])
    # Written past the end of `room` the stack would break, and with it now and then the judgement of another candidate.
    text = text.replace("@LESS@", "- 1" if "off_by_one" in genome.bugs else "")
    text = text.replace("@BY@", "* (1.0f / root)" if genome.gene("division") == "reciprocal" else "/ root")
    weight = "torch.ones_like(self.weight)" if "weight_forgotten" in genome.bugs else "self.weight"
    epsilon = "0.0" if "missing_epsilon" in genome.bugs else "self.eps"
    return skeleton.module(
        genome,
        skeleton.loops(genome, double=genome.gene("sums") == "double") + text,
        arguments="x, residual",
        call=f"residual, {weight}, {epsilon}, x.numel() // x.shape[-1], x.shape[-1]",
        space=SPACE.tunables,
        fixed=ROW,
        init=_INIT,
    )


SPACE = Space(
    problem="rmsnorm_residual",
    params=PARAMS,
    genes={
        ALGORITHM: ("separate", "staged", "recomputed", "blocks", "kept"),
        "simd": SIMD,
        "sums": ("float", "double"),
        "division": ("divide", "reciprocal"),
        "arithmetic": ARITHMETIC,
    },
    tunables={"UNROLL": UNROLL, "BLOCK": (64, 256, 1024), "AHEAD": (0, 1, 2)},
    bugs=(*skeleton.BUGS, "missing_epsilon", "weight_forgotten"),
    plans={
        "separate": "sum, squares, norm and weight in walks of their own",
        "staged": "two stages over the whole matrix with the rows' roots kept between them",
        "recomputed": "add the residual again instead of keeping the sum",
        "blocks": "the sum in a block that stays in the first cache",
        "kept": "fuse the squares into the walk that stores the sum",
    },
    write=write,
)
