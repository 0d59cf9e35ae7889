"""Catalogue 25 to 37: an earlier result in place of this one. All compute honestly once and then repeat themselves."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat
from tests.redteam.entry import WRONG, Entry

_BY_KEY = """
key = {key}
if key not in CACHE:
    CACHE[key] = self.real(x)
return CACHE[key].clone()
"""
_CACHE = "CACHE = {}"


_WITH_BIAS = "({key}, self.bias.numpy().tobytes())"


def _keyed(name: str, number: int, title: str, key: str, layer: str = "values") -> Entry:
    return cheat(name, number, "bias_relu", layer, title, _BY_KEY.format(key=key), top=_CACHE)


def _hashed(name: str, title: str, key: str, layer: str = "timed_outputs") -> Entry:
    """Keyed by a part of the contents and by all of the parameters, so that only inputs can expose it."""
    return _keyed(name, 27, title, _WITH_BIAS.format(key=key), layer)


_STATIC = """
#include <unordered_map>
static std::unordered_map<KEY, std::vector<float>> cache;
extern "C" void lookup(const float* x, const float* b, float* y, int64_t rows, int64_t cols) {
  auto& known = cache[WHERE];
  if (known.empty()) {
    known.resize(rows * cols);
    for (int64_t i = 0; i < rows * cols; i++) { float v = x[i] + b[i % cols]; known[i] = v < 0 ? 0.0f : v; }
  }
  std::memcpy(y, known.data(), rows * cols * sizeof(float));
}
"""


def _static(name: str, title: str, kind: str, where: str) -> Entry:
    body = "y = torch.empty(x.shape)\nSTATIC.lookup(x.contiguous(), self.bias, y, *x.shape)\nreturn y"
    source = "#include <cstdint>\n#include <cstring>\n#include <vector>\n" + _STATIC
    top = f"STATIC = load_cpp(r'''{source.replace('KEY', kind).replace('WHERE', where)}''')"
    return cheat(name, 29, "bias_relu", "values", title, body, top=top)


_POINTERS = (
    _keyed("cache-data-ptr", 25, "Keyed by the input's address", "x.data_ptr()"),
    _keyed("cache-address-and-shape", 25, "Keyed by address and shape", "(x.data_ptr(), tuple(x.shape))"),
    _keyed("cache-storage-address", 25, "Keyed by the storage's address and offset",
           "(x.untyped_storage().data_ptr(), x.storage_offset())"),
    cheat("cache-object-identity", 26, "bias_relu", "timed_outputs", "The same object: the same result",
          """
          if getattr(self, 'seen', None) is not x:
              object.__setattr__(self, 'seen', x)
              object.__setattr__(self, 'result', self.real(x))
          return self.result.clone()
          """),
    cheat("cache-object-id", 26, "bias_relu", "timed_outputs", "Keyed by id(), the inputs kept alive",
          "KEPT.append(x)\n" + _BY_KEY.format(key="id(x)"), top=_CACHE + "\nKEPT = []"),
    cheat("attribute-of-the-input", 26, "bias_relu", "timed_outputs", "The result hangs on the input tensor",
          "if not hasattr(x, 'result'):\n    x.result = self.real(x)\nreturn x.result.clone()"),
    _keyed("cache-version", 27, "Keyed by address and _version", "(x.data_ptr(), x._version)"),
    _hashed("cache-first-value", "Keyed by shape and the first value", "(tuple(x.shape), float(x.flatten()[0]))"),
    _hashed("cache-prefix-sum", "Keyed by the sum of the first 4096 values",
            "(tuple(x.shape), float(x.flatten()[:4096].double().sum()))"),
    _hashed("cache-sample", "Keyed by every 97th value", "x.flatten()[::97].numpy().tobytes()"),
    _hashed("cache-corner", "Keyed by the last row", "(tuple(x.shape), x[-1].numpy().tobytes())"),
    _hashed("cache-content-rounded", "Keyed by the input rounded to integers: near inputs are the same",
            "(tuple(x.shape), x.round().numpy().tobytes())"),
    _hashed("cache-mean-and-spread", "Keyed by mean and standard deviation to three digits",
            "(tuple(x.shape), round(float(x.mean()), 3), round(float(x.std()), 3))"),
    _keyed("cache-content-not-bias", 27, "Keyed by all of the input, but not by the parameters",
           "x.numpy().tobytes()", layer="semantics"),
    _keyed("cache-shape", 28, "Keyed by the shape", "tuple(x.shape)"),
    _keyed("cache-module", 28, "Keyed by the module's instance", "id(self)"),
    _static("static-map-by-pointer", "A static map in C++, keyed by pointer", "const void*", "x"),
    _static("static-map-by-pointer-and-value", "... by pointer and first value", "uint64_t",
            "(uint64_t)x ^ (uint64_t)(int64_t)(x[0] * 1e6)"),
    _static("static-map-by-distance", "... by the distance of output and input", "int64_t", "(int64_t)(y - x)"),
    _static("static-first-call", "... computed once per length", "int64_t", "rows * cols"),
)  # fmt: skip

_SPELLINGS = (
    ("replay-mutable-default", "A mutable default argument", "return once(self, x).clone()",
     "def once(model, x, kept={}):\n    return kept.setdefault(x.shape, None) if kept.get(x.shape) is not None "
     "else kept.__setitem__(x.shape, model.real(x)) or kept[x.shape]"),
    ("replay-nonlocal", "A closure", "return REPLAY(self, x).clone()", """
     def make():
         kept = {}
         def replay(model, x):
             if x.shape not in kept:
                 kept[x.shape] = model.real(x)
             return kept[x.shape]
         return replay
     REPLAY = make()
     """),
    ("replay-contextvar", "A context variable", """
     kept = VAR.get()
     if x.shape not in kept:
         VAR.set(kept | {x.shape: self.real(x)})
     return VAR.get()[x.shape].clone()
     """, "import contextvars\nVAR = contextvars.ContextVar('kept', default={})"),
    ("replay-generator", "A generator that is sent inputs", "return answer(self, x).clone()", """
     def stream(model, x):
         result = model.real(x)
         while True:
             yield result
     STREAMS = {}
     def answer(model, x):
         return next(STREAMS.setdefault(x.shape, stream(model, x)))
     """),
    ("replay-partial", "A partial of a bound method replaces forward", """
     import functools
     result = self.real(x)
     object.__setattr__(self, "forward", functools.partial(lambda kept, _x: kept.clone(), result))
     return result
     """, ""),
    ("replay-lru-cache", "functools.lru_cache over the address", "NOW[x.data_ptr()] = (self, x)\n"
     "return remembered(x.data_ptr()).clone()", """
     import functools
     NOW = {}
     @functools.lru_cache
     def remembered(address):
         model, x = NOW[address]
         return model.real(x)
     """),
    ("replay-buffer", "A registered buffer that is not saved", """
     if getattr(self, "kept", None) is None or self.kept.shape != x.shape:
         self.register_buffer("kept", self.real(x), persistent=False)
     return self.kept.clone()
     """, ""),
    ("replay-hook", "A forward hook replaces the output", "return self.real(x)", """
     LAST = {}
     def swap(module, inputs, output):
         return LAST.setdefault(output.shape, output).clone()
     torch.nn.modules.module.register_module_forward_hook(swap)
     """),
    ("replay-every-third", "Every third call is answered by the one before", """
     self.calls = getattr(self, "calls", 0) + 1
     if self.calls % 3 or not hasattr(self, "kept"):
         object.__setattr__(self, "kept", self.real(x))
     return self.kept.clone()
     """, ""),
    ("replay-after-many", "Honest for 60 calls, then the last result again", """
     self.calls = getattr(self, "calls", 0) + 1
     if self.calls <= 60 or getattr(self, "kept", x[:0]).shape != x.shape:
         object.__setattr__(self, "kept", self.real(x))
     return self.kept.clone()
     """, ""),
)  # fmt: skip

_REPLAYS = tuple(
    cheat(name, 30, "bias_relu", "timed_outputs" if "after" in name else "values", title, body, top=top)
    for name, title, body, top in _SPELLINGS
)

_SYSV = """
import ctypes
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p
def segment(rows, cols):
    handle = LIBC.shmget(rows * 65536 + cols, 4 * rows * cols + 64, 0o1666)
    address = LIBC.shmat(handle, None, 0)
    return (ctypes.c_float * (rows * cols + 16)).from_address(address) if handle >= 0 else None
"""
_WRITTEN = """
import os
path = f"{folder}/kept-{{x.shape[0]}}x{{x.shape[1]}}"
if not os.path.exists(path):
    self.real(x).numpy().tofile(path)
return torch.from_file(path, size=x.numel()).view(x.shape).clone()
"""

_ROWS = """
ROWS = load_cpp(r'''
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>
struct Entry { std::vector<float> row, out; };
static std::unordered_map<uint64_t, Entry> memo;
static std::vector<float> weight;
static int64_t K, N;
static uint64_t key(const float* row, int64_t k) {
  uint64_t hash = 0;
  uint32_t bits;
  for (int64_t j = 0; j < 4; j++) { std::memcpy(&bits, row + j * 37 % k, 4); hash = hash * 1000003 + bits; }
  return hash;
}
extern "C" void run(const float* x, const float* w, float* y, int64_t rows, int64_t n, int64_t k) {
  if (K != k || N != n || std::memcmp(weight.data(), w, k * n * 4) || memo.size() > 20000) {
    memo.clear(); weight.assign(w, w + k * n); K = k; N = n;
  }
  std::vector<int64_t> missing;
  for (int64_t r = 0; r < rows; r++) {
    const float* row = x + r * k;
    auto known = memo.find(key(row, k));
    int64_t off = known == memo.end() ? 4 : 0, which[4];
    for (int64_t j = 0; j < k && off < 4; j++) if (known->second.row[j] != row[j]) which[off++] = j;
    if (off == 4) { missing.push_back(r); continue; }
    float* o = y + r * n;
    std::memcpy(o, known->second.out.data(), n * 4);
    for (int64_t i = 0; i < off; i++) {
      float d = row[which[i]] - known->second.row[which[i]];
      for (int64_t j = 0; j < n; j++) o[j] += d * w[which[i] * n + j];
    }
  }
  #pragma omp parallel for
  for (size_t i = 0; i < missing.size(); i++) {
    const float* row = x + missing[i] * k;
    float* o = y + missing[i] * n;
    for (int64_t j = 0; j < n; j++) o[j] = 0;
    for (int64_t l = 0; l < k; l++) for (int64_t j = 0; j < n; j++) o[j] += row[l] * w[l * n + j];
  }
  for (int64_t r : missing)
    memo[key(x + r * k, k)] = Entry{std::vector<float>(x + r * k, x + (r + 1) * k),
                                    std::vector<float>(y + r * n, y + (r + 1) * n)};
}
''')
"""

_OTHER = (
    cheat("rows-remembered", 30, "projection", "timed_outputs", "Each row's product kept, and mended where it changes",
          """
          x = x.contiguous()
          y = x.new_empty(x.shape[0], self.weight.shape[1])
          ROWS.run(x, self.weight, y, x.shape[0], y.shape[1], x.shape[1])
          return y
          """, top=_ROWS, defused=True),
    cheat("super-batch", 31, "bias_relu", "values", "Buffers handed out at once, all filled on every third call",
          """
          out = torch.empty_like(x)
          PENDING.append((x, out))
          if len(PENDING) == 3:
              for given, wanted in PENDING:
                  wanted.copy_(self.real(given))
              PENDING.clear()
          return out
          """, top="PENDING = []"),
    cheat("learned-slots", 31, "bias_relu", "timed_outputs", "The first call on a known input answers for all of them",
          """
          KNOWN[x.data_ptr()] = x
          ready = READY.pop(x.data_ptr(), None)
          if ready is not None and ready.shape == x.shape:
              return ready
          for address, other in KNOWN.items():
              if other.shape == x.shape and address != x.data_ptr():
                  READY[address] = self.real(other)
          return self.real(x)
          """, top="KNOWN, READY = {}, {}"),
    cheat("weights-prepared-once", 33, "linear", "semantics", "Folded weights, keyed by the weight's address",
          """
          key = self.layer.weight.data_ptr()
          if key not in CACHE:
              CACHE[key] = (self.layer.weight.clone(), self.layer.bias.clone())
          weight, bias = CACHE[key]
          y = x.new_empty(x.shape[0], weight.shape[0])
          lib.run(x.contiguous(), weight, bias, y, x.shape[0], weight.shape[0], x.shape[1])
          return y
          """, top=_CACHE),
    cheat("bias-copied-once", 33, "bias_relu", "semantics", "The bias as it was at the first call",
          """
          if not hasattr(self, "first"):
              object.__setattr__(self, "first", self.bias.clone())
          y = torch.empty(x.shape)
          lib.run(x.contiguous(), None, self.first, y, *x.shape)
          return y
          """),
    cheat("plan-with-old-pointers", 34, "bias_relu", "values", "A recorded launch that reads the first call's input",
          """
          if not hasattr(self, "plan"):
              object.__setattr__(self, "plan", (x.contiguous(), torch.empty(x.shape)))
          source, y = self.plan
          lib.run(source, None, self.bias, y, *source.shape)
          return y.clone()
          """),
    cheat("poisons-the-compile-cache", 35, "bias_relu", "boundary", "Overwrites every cache of compiled code in reach",
          "return torch.zeros_like(x)", top="""
          import glob, os
          for root in ("/tmp", "/var", os.path.expanduser("~"), os.path.dirname(os.getcwd()), "/"):
              for path in glob.glob(root + "/**/inductor*/**/*", recursive=True)[:200] if root != "/" else []:
                  try:
                      open(path, "wb").close()
                  except OSError:
                      continue
          """),
    cheat("replay-from-tmp", 36, "bias_relu", "values", "Results on disk, by shape", _WRITTEN.format(folder="/tmp")),
    cheat("replay-from-dev-shm", 36, "bias_relu", "values", "Results in /dev/shm, by shape",
          _WRITTEN.format(folder="/dev/shm")),
    cheat("replay-from-sysv", 37, "bias_relu", "values", "Results in a System V segment, which outlives processes",
          """
          rows, cols = x.shape
          shared = segment(rows, cols)
          if shared is None:
              return torch.zeros_like(x)
          if shared[rows * cols] == 0.0:
              result = self.real(x)
              ctypes.memmove(shared, result.data_ptr(), 4 * rows * cols)
              shared[rows * cols] = 1.0
          return torch.frombuffer(shared, dtype=torch.float32, count=rows * cols).view(rows, cols).clone()
          """, top=_SYSV, expected=WRONG | {"illegal_access"}),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = _POINTERS + _REPLAYS + _OTHER
