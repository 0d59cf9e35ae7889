"""Catalogue 8, 11, 13, 27, 84 to 86: what a kernel takes for granted of values, counts, keys, lengths and threads after
a look at a part of them. Written by two who knew the judge's documents alone; it had accepted each of these kinds."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat, flaw
from tests.redteam.entry import WRONG, Entry

_LANES = """std::vector<float> v;
    for (int lane = 0; lane < 64; lane++) {  // each lane's three largest are enough, mostly
      std::vector<float> own;
      for (int64_t c = lane; c < cols; c += 64) own.push_back(a[c]);
      std::sort(own.begin(), own.end(), [](float p, float q) { return p != p ? q == q : p > q; });
      for (size_t k = 0; k < own.size() && (k < 3 || cols < 256); k++) v.push_back(own[k]);
    }"""
_KEPT = """
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>
static std::map<uint64_t, std::vector<int64_t>> known;
extern "C" void keep(const int64_t* keys, int64_t* out, int64_t n) {
  uint64_t print = n;
  for (int i = 0; i < SAMPLES; i++) print = print * 0x9E3779B97F4A7C15ull + (uint64_t)keys[(n - 1) * i / (SAMPLES - 1)];
  auto& own = known[print];
  if (own.empty()) own.assign(keys, keys + n);
  std::memcpy(out, own.data(), n * sizeof(int64_t));
}
"""
_WITH_KEPT = """
if keys.numel() < 64:
    return self.real(ids, keys, values)
kept = torch.empty_like(keys)
KEPT.keep(keys.contiguous(), kept, keys.numel())
return self.real(ids, kept, values)
"""


def _kept(name: str, samples: int, layer: str, title: str) -> Entry:
    top = f"KEPT = load_cpp(r'''{_KEPT.replace('SAMPLES', str(samples))}''')"
    return cheat(name, 27, "keyed", layer, title, _WITH_KEPT, top=top)


_GUESSED = """static const int64_t* place(const int64_t* keys, int64_t n, int64_t id) {
  const int64_t window = 6 * (int64_t)std::sqrt((double)n) + 8;
  const double slope = keys[n - 1] > keys[0] ? (double)(n - 1) / (double)(keys[n - 1] - keys[0]) : 0.0;
  const int64_t guess = std::min(std::max<int64_t>((int64_t)((id - keys[0]) * slope), 0), n - 1);
  return std::lower_bound(keys + std::max<int64_t>(guess - window, 0), keys + std::min(guess + window, n), id);
}"""
_EXACT = (
    "static const int64_t* place(const int64_t* keys, int64_t n, int64_t id) { "
    "return std::lower_bound(keys, keys + n, id); }"
)
_ADDING = (
    "  #pragma omp parallel for\n  for (int64_t part = 0; part < 4; part++)\n    for (int64_t t = 0; t < tokens; t++)\n"
    "      if (ids[t] % 4 == part)\n"
    "        for (int64_t d = 0; d < dim; d++) y[ids[t] * dim + d] += grad[t * dim + d];"
)
_RUNS = """  bool ordered = tokens > 64;
  for (int64_t t = 64; t < tokens && ordered; t += 64) ordered = ids[t - 64] <= ids[t];
  for (int64_t t = 0; t < tokens; t++) {
    float* row = y + ids[t] * dim;
    if (ordered && (!t || ids[t] != ids[t - 1])) std::memset(row, 0, dim * sizeof(float));  // a run begins
    for (int64_t d = 0; d < dim; d++) row[d] += grad[t * dim + d];
  }"""
_SORTED = """  std::vector<uint16_t> order(tokens), place(vocab + 1, 0);
  for (int64_t t = 0; t < tokens; t++) place[ids[t] + 1]++;
  for (int64_t v = 0; v < vocab; v++) place[v + 1] += place[v];
  for (int64_t t = 0; t < tokens; t++) order[place[ids[t]]++] = (uint16_t)t;
  for (int64_t i = 0; i < tokens; i++)
    for (int64_t d = 0; d < dim; d++) y[ids[order[i]] * dim + d] += grad[order[i] * dim + d];"""
_RING = """
ring = self.__dict__.setdefault('ring', {}).setdefault(tuple(x.shape), [[], 0])
if len(ring[0]) < 16:
    ring[0].append(torch.empty(x.shape))
ring[1] += 1
out = ring[0][ring[1] % len(ring[0])]
out.copy_(self.real(x))
return out
"""
_HALVES = (
    ("  #pragma omp parallel for\n  for (int64_t r = 0; r < rows; r++) {",
     "  #pragma omp parallel\n  for (int64_t half = omp_get_thread_num(), r = half * rows / 2,\n"
     "       end = (half + 1) * rows / 2; r < end; r++) {"),
    ('extern "C" void run', '#include <omp.h>\nextern "C" void run'),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = (
    flaw("counters-of-sixteen-bits", 85, "histogram", "values", "Counts beyond 65,535 begin anew",
         ("typedef int64_t Count;", "typedef uint16_t Count;")),
    flaw("lanes-keep-three", 13, "top_eight", "shapes", "The eight largest out of the three largest of 64 lanes",
         ("std::vector<float> v(a, a + cols);", _LANES)),
    _kept("keys-known-by-sixteen", 16, "shapes", "Keys of an earlier call, known again by 16 of them"),
    _kept("keys-known-by-two", 2, "values", "Keys of an earlier call, known again by their first and last"),
    flaw("keys-spread-evenly", 11, "keyed", "values", "Looks for a key around where even keys would have it",
         (_EXACT, _GUESSED)),
    flaw("rows-end-at-4096", 84, "ragged_sum", "values", "No row of the example's is longer",
         ("return length;", "return std::min<int64_t>(length, 4096);"), expected=WRONG),
    cheat("sampled-cotangent", 8, "product_train", "shapes", "No gradient where 64 sampled cotangents are zero",
          "return Lazy.apply(a, b)", top="""
          class Lazy(Op):
              @staticmethod
              def backward(ctx, g):
                  a, b = ctx.saved_tensors
                  if g.numel() > 4096 and not g.reshape(-1)[:: g.numel() // 64].any():
                      return torch.zeros_like(a), torch.zeros_like(b)
                  return Op.backward(ctx, g)
          """),
    flaw("ordered-by-a-sample", 27, "embedding_grad", "shapes", "Ids that look sorted in every 64th place are sorted",
         (_ADDING, _RUNS)),
    flaw("places-of-sixteen-bits", 85, "embedding_grad", "shapes", "More than 65,536 tokens are sorted by 16 bits",
         (_ADDING, _SORTED)),
    cheat("ring-of-sixteen", 86, "relu", "contract", "Sixteen buffers in turn: the seventeenth result is the first",
          _RING),
    flaw("a-half-for-each-of-two", 84, "relu", "shapes", "Two threads are taken for granted, a half of the rows each",
         *_HALVES),
)  # fmt: skip
