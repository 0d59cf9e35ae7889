"""Catalogue 54 to 56: behaves only while it believes to be watched."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat
from tests.redteam.cheats.tampered import SESSION
from tests.redteam.entry import Entry

_CONDITION = """
import gc, inspect, os, sys, threading, time
cheap = lambda x: torch.relu(x)  # the bias forgotten: nearly right, and quicker
{top}
"""


def _sniffs(name: str, number: int, title: str, condition: str, *, top: str = "", before: str = "") -> Entry:
    body = f"{before}\nreturn cheap(x) if {condition} else self.real(x)"
    return cheat(name, number, "bias_relu", "timed_outputs", title, body, top=_CONDITION.format(top=top))


_WATCHED = (
    _sniffs("sniffs-stack", 54, "Works unless a function of the timing loop is on the stack",
            "any('bell' in frame.function or 'chain' in frame.function for frame in inspect.stack())"),
    _sniffs("sniffs-caller", 54, "Works only for callers with certain names",
            "not {frame.function for frame in inspect.stack()} & {'run', 'check', 'verify', 'compare', 'test'}"),
    _sniffs("sniffs-collector", 54, "Works while the garbage collector is on", "not gc.isenabled()"),
    _sniffs("sniffs-poison", 54, "Works while fresh memory is poisoned",
            "bool(torch.empty(1 << 15).view(torch.int32)[7] != -1)"),
    _sniffs("sniffs-arguments", 54, "Works when the command line speaks of tests",
            "not any('test' in part or 'check' in part for part in sys.argv)"),
    _sniffs("sniffs-one-address", 54, "Works while addresses vary; timing uses one",
            "len(set(SEEN[-4:])) == 1 and len(SEEN) > 8", top="SEEN = []", before="SEEN.append(x.data_ptr())"),
    _sniffs("sniffs-cold-cache", 54, "Works while its input is warm: only timing evicts it", "PROBE(x) > 1500",
            top="""
PROBE_LIB = load_cpp(r'''
#include <cstdint>
#include <x86intrin.h>
extern "C" void probe(const float* x, int64_t n, int64_t* cycles) {
  unsigned aux; volatile float sink = 0;
  uint64_t start = __rdtscp(&aux);
  for (int64_t i = 0; i < 16; i++) sink = sink + x[(i * 7919) % n];
  cycles[0] = (int64_t)(__rdtscp(&aux) - start);
}
''')
CYCLES = torch.zeros(1, dtype=torch.int64)
def PROBE(x):
    PROBE_LIB.probe(x, x.numel(), CYCLES)
    return int(CYCLES[0])
"""),
    _sniffs("sniffs-rhythm", 54, "Works unless calls come in the even rhythm of a timing loop",
            "len(TIMES) > 12 and max(GAPS()) < 4 * min(GAPS())", before="TIMES.append(time.monotonic())",
            top="TIMES = []\ndef GAPS():\n    return [b - a for a, b in zip(TIMES[-6:], TIMES[-5:])]"),
    _sniffs("sniffs-values", 54, "Works on odd distributions, and is sloppy on normal ones",
            "0.9 < float(x[:4].std()) < 1.1 and abs(float(x[:4].mean())) < 0.1"),
)  # fmt: skip

_PHASES = (
    _sniffs("phase-count-20", 55, "Honest for 20 calls", "next(COUNT) > 20",
            top="import itertools\nCOUNT = itertools.count()"),
    _sniffs("phase-count-100", 55, "Honest for 100 calls", "next(COUNT) > 100",
            top="import itertools\nCOUNT = itertools.count()"),
    _sniffs("phase-clock", 55, "Honest for two seconds", "time.monotonic() > START + 2",
            top="START = time.monotonic()"),
    _sniffs("phase-by-parameters", 55, "Honest until its parameters were changed twice",
            "self.bias._version > 4"),
    _sniffs("rarely-wrong", 55, "Wrong in one call of ten", "os.urandom(1)[0] < 26"),
    _sniffs("rarely-wrong-one-row", 55, "One random row wrong in every third call", "False", before="""
if os.urandom(1)[0] < 85:
    y = self.real(x)
    y[os.urandom(1)[0] % y.shape[0]] *= 1.01
    return y
"""),
    _sniffs("warm-up-slowly", 56, "Slow at first, so that few rounds are run; then wrong", "next(COUNT) > 40",
            top="import itertools\nCOUNT = itertools.count()\nSLOW = itertools.count()",
            before="if next(SLOW) < 45:\n    time.sleep(0.05)"),
    _sniffs("cheap-inside-the-bell", 54, "Finds the runner's session and skips work while it serves the bell",
            "bool(HOT)", top=SESSION + """
HOT = []
inner = type(SESSION).hot
def hot(self, *arguments):
    HOT.append(1)
    try:
        return inner(self, *arguments)
    finally:
        HOT.clear()
type(SESSION).hot = hot
frame = sys._getframe()
while frame := frame.f_back:
    handlers = frame.f_locals.get("handlers")
    if handlers:
        handlers["hot"] = lambda *arguments: hot(SESSION, *arguments)
"""),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = _WATCHED + _PHASES
