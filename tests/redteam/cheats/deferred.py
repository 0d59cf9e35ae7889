"""Catalogue 31, 32, 48, 57 to 65, 70: the result is right, but it is made at another time than the one that counts."""

from __future__ import annotations

from tests.redteam.cheats.make import cheat
from tests.redteam.cheats.tampered import SESSION
from tests.redteam.entry import NON_OK, Entry

_PROXY = (
    SESSION
    + """
import os, socket, threading
from worker.runner import protocol
def interpose(session, answer_early):
    ours = socket.socket(fileno=os.dup(session.bell.fileno()))
    inner, theirs = socket.socketpair()
    os.dup2(theirs.fileno(), session.bell.fileno())
    def serve():
        owed = 0
        while True:
            command = ours.recv(protocol.BELL.size)
            if not command:
                os._exit(0)
            early = command[:1] in answer_early
            if early:
                ours.send(b"\\0")
            inner.send(command)
            answer = inner.recv(1)
            if not early:
                ours.send(answer)
    threading.Thread(target=serve, daemon=True).start()
"""
)
"""A thread between the judge's bell and the runner's: it answers some commands before the runner does."""

_LATER = """
import threading
def later(work):
    thread = threading.Thread(target=work)
    thread.start()
"""
_STD_THREAD = """
THREADED = load_cpp(r'''
#include <cstdint>
#include <thread>
extern "C" void start(const float* x, const float* b, float* y, int64_t rows, int64_t cols) {
  std::thread([=] {
    for (int64_t i = 0; i < rows * cols; i++) { float v = x[i] + b[i % cols]; y[i] = v < 0 ? 0.0f : v; }
  }).detach();
}
''')
"""
_POOL = """
THREADED = load_cpp(r'''
#include <atomic>
#include <cstdint>
#include <thread>
struct Job { const float* x; const float* b; float* y; int64_t rows, cols; };
static Job job; static std::atomic<int> state{0};
static void work() {
  for (;;) {
    while (state.load() != 1) std::this_thread::yield();
    for (int64_t i = 0; i < job.rows * job.cols; i++) {
      float v = job.x[i] + job.b[i % job.cols];
      job.y[i] = v < 0 ? 0.0f : v;
    }
    state.store(0);
  }
}
extern "C" void start(const float* x, const float* b, float* y, int64_t rows, int64_t cols) {
  static std::thread worker(work);
  while (state.load() != 0) std::this_thread::yield();
  job = {x, b, y, rows, cols};
  state.store(1);
}
''')
"""
_START = "x = x.contiguous()\ny = torch.empty_like(x)\nTHREADED.start(x, self.bias, y, *x.shape)\nreturn y"

_DEFERRED = (
    cheat("thread-fills-later", 32, "bias_relu", "values", "A Python thread fills the buffer that was returned",
          "out = torch.empty_like(x)\nlater(lambda: out.copy_(self.real(x)))\nreturn out", top=_LATER),
    cheat("thread-waits-then-fills", 58, "bias_relu", "values", "... after a millisecond of patience",
          "out = torch.empty_like(x)\nlater(lambda: (time.sleep(1e-3), out.copy_(self.real(x))))\nreturn out",
          top="import time\n" + _LATER),
    cheat("std-thread", 58, "bias_relu", "values", "A detached std::thread computes after the return", _START,
          top=_STD_THREAD),
    cheat("std-thread-pool", 32, "bias_relu", "timed_outputs", "A waiting thread computes after the return", _START,
          top=_POOL),
    cheat("deferred-when-hot", 32, "bias_relu", "clock", "Honest while verified; when timed, a thread",
          "if gc.isenabled():\n    return self.real(x)\n" + _START, top="import gc\n" + _POOL, expected=NON_OK),
    cheat("child-process-fills", 58, "bias_relu", "values", "A forked child fills shared memory after the return",
          """
          import os
          out = torch.empty(x.shape).share_memory_()
          if os.fork() == 0:
              try:
                  out.copy_(torch.relu(x + self.bias))
              finally:
                  os._exit(0)
          return out
          """, expected=NON_OK),
    cheat("filled-at-exit", 58, "bias_relu", "values", "Work is registered for the interpreter's exit",
          "import atexit\nout = torch.empty_like(x)\natexit.register(lambda: out.copy_(self.real(x)))\nreturn out"),
    cheat("pipelined", 31, "bias_relu", "values", "Returns the result of the call before, computed meanwhile",
          """
          last = getattr(self, "last", None)
          object.__setattr__(self, "last", self.real(x))
          return self.last if last is None or last.shape != x.shape else last
          """),
)  # fmt: skip

_LAZY = (
    cheat("lazy-subclass", 59, "bias_relu", "contract", "A tensor subclass that computes when it is looked at",
          "return Lazy.of(self, x)", top="""
          class Lazy(torch.Tensor):
              @staticmethod
              def of(model, x):
                  lazy = torch.Tensor._make_subclass(Lazy, torch.empty_like(x))
                  lazy.work = lambda: model.real(x)
                  return lazy
              @classmethod
              def __torch_function__(cls, function, types, args=(), kwargs=None):
                  ready = [value.work() if hasattr(value, "work") else value for value in args]
                  return function(*ready, **(kwargs or {}))
          """),
    cheat("lazy-instance-methods", 60, "bias_relu", "values", "A plain tensor whose methods compute",
          """
          out = torch.empty(x.shape)
          out.cpu = out.clone = out.contiguous = out.detach = out.to = lambda *_, **__: self.real(x)
          return out
          """),
    cheat("lazy-disguised", 59, "bias_relu", "contract", "A subclass that says it is torch.Tensor",
          "lazy = torch.empty_like(x).as_subclass(Plain)\nlazy.work = lambda: self.real(x)\nreturn lazy", top="""
          class Plain(torch.Tensor):
              __class__ = torch.Tensor
              @classmethod
              def __torch_function__(cls, function, types, args=(), kwargs=None):
                  ready = [value.work() if hasattr(value, "work") else value for value in args]
                  return function(*ready, **(kwargs or {}))
          """),
    cheat("lazy-patched-copy", 60, "bias_relu", "clock", "Tensor.copy_ computes, when the result is stored",
          "out = torch.empty_like(x)\nWORK[out.data_ptr()] = lambda: self.real(x)\nreturn out", expected=NON_OK, top="""
          WORK = {}
          plain = torch.Tensor.copy_
          def copy_(self, source, *arguments, **named):
              work = WORK.pop(source.data_ptr(), None) if isinstance(source, torch.Tensor) else None
              return plain(self, work() if work else source, *arguments, **named)
          torch.Tensor.copy_ = copy_
          """),
    cheat("meta-output", 61, "bias_relu", "contract", "A tensor without storage",
          "return torch.empty_like(x, device='meta')"),
    cheat("fake-output", 61, "bias_relu", "contract", "A FakeTensor",
          "from torch._subclasses import FakeTensorMode\nwith FakeTensorMode() as mode:\n"
          "    return mode.from_tensor(x)", expected=NON_OK),
    cheat("sparse-output", 61, "bias_relu", "contract", "A sparse tensor of the right shape",
          "return self.real(x).to_sparse()", expected=NON_OK),
    cheat("freed-storage", 61, "bias_relu", "contract", "A tensor whose storage was taken away",
          "out = self.real(x)\nout.untyped_storage().resize_(0)\nreturn out", expected=NON_OK),
)  # fmt: skip

_BELL = (
    cheat("bell-answered-early", 48, "bias_relu", "clock", "A proxy on the bell answers every call before it begins",
          top=_PROXY + "interpose(SESSION, (b'C', b'B'))", expected=NON_OK),
    cheat("bell-all-early", 48, "bias_relu", "clock", "... and every other command too",
          top=_PROXY + "interpose(SESSION, (b'C', b'B', b'K', b'N', b'F'))", expected=NON_OK),
    cheat("bell-one-ahead", 48, "bias_relu", "clock", "One stray success: every answer belongs to the command before",
          "if not gc.isenabled() and not DONE:\n    DONE.append(SESSION.bell.send(b'\\0'))\nreturn self.real(x)",
          top=SESSION + "import gc\nDONE = []", expected=NON_OK),
    cheat("lazy-bell", 48, "bias_relu", "clock", "The loop behind the bell computes when a result is kept",
          top=SESSION + """
from worker.runner import child, protocol
def serve(self, call, slots, outputs):
    number = 0
    inputs = getattr(slots, "inputs", slots)
    while True:
        command, *_other, given = protocol.BELL.unpack(self.bell.recv(protocol.BELL.size))
        if command == protocol.CALL:
            number = given
        elif command == protocol.KEEP:
            child._store(call(*inputs[number]), outputs)
        self.bell.send(protocol.OK)
        if command == protocol.QUIT:
            return
type(SESSION)._serve_bell = serve
""", expected=NON_OK),
    cheat("null-calls-slowly", 56, "bias_relu", "clock", "Everything that is subtracted is made slow",
          top=SESSION + """
import time
def slowly(self, *arguments, **named):
    time.sleep(2e-3)
for name in ("_null_chain", "_flush", "_flush_times"):
    if hasattr(type(SESSION), name):
        setattr(type(SESSION), name, slowly)
""" + "WAIT = lambda: time.sleep(1e-3)", body="WAIT()\nreturn torch.relu(x)"),
)  # fmt: skip

_SPIN = """
import gc
SPINNER = load_cpp(r'''
#include <atomic>
#include <chrono>
#include <thread>
static std::atomic<long> last{0};
static long now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
extern "C" void start(void* nothing) {
  for (int i = 0; i < 4; i++)
    std::thread([] { for (;;) { BODY } }).detach();
}
extern "C" void called(void* nothing) { last = now(); }
''')
"""


def _spinner(name: str, number: int, title: str, inner: str, *, before: str = "SPINNER.called(None)") -> Entry:
    body = f"{before}\nif not STARTED:\n    STARTED.append(SPINNER.start(None))\nreturn self.real(x)"
    top = _SPIN.replace("BODY", inner) + "STARTED = []"
    return cheat(name, number, "bias_relu", "clock", title, body, top=top, expected=NON_OK)


_CONTINUED = """
CONTINUED = load_cpp(r'''
#include <csignal>
#include <cstring>
#include <ctime>
#include <thread>
static timer_t timer;
static void later() {
  itimerspec when; std::memset(&when, 0, sizeof when); when.it_value.tv_nsec = 9000000;
  for (;;) timer_settime(timer, 0, &when, nullptr);
}
extern "C" void start(int* failed) {
  sigevent event; std::memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_SIGNAL; event.sigev_signo = SIGCONT;
  *failed = timer_create(CLOCK_MONOTONIC, &event, &timer);
  if (!*failed) std::thread(later).detach();
}
''')
failed = torch.zeros(1, dtype=torch.int32)
CONTINUED.start(failed)
if int(failed):
    raise RuntimeError("no timer")
"""

_ELSEWHERE = (
    _spinner("slows-the-baseline", 70, "Four threads spin whenever it is somebody else's turn",
             "if (now() - last > 3000000) { volatile double v = 1; for (int k = 0; k < 99999; k++) v = v * 1.1; } "
             "else std::this_thread::sleep_for(std::chrono::microseconds(200));"),
    _spinner("eats-the-bandwidth", 70, "Threads stream through memory between its own calls",
             "static thread_local char buffer[1 << 24]; if (now() - last > 3000000) "
             "for (size_t k = 0; k < sizeof buffer; k += 64) buffer[k]++; "
             "else std::this_thread::sleep_for(std::chrono::microseconds(200));"),
    cheat("keeps-inputs-warm", 65, "bias_relu", "clock", "A thread reads the input over and over, against the eviction",
          "WARM.keep(x, x.numel())\nreturn self.real(x)", expected=NON_OK, top="""
          WARM = load_cpp(r'''
          #include <atomic>
          #include <cstdint>
          #include <thread>
          static std::atomic<const float*> where{nullptr}; static std::atomic<int64_t> count{0};
          static float sink;
          static void work() {
            for (;;) {
              const float* x = where; int64_t n = count; float s = 0;
              for (int64_t i = 0; x && i < n; i += 16) s += ((const volatile float*)x)[i];
              sink = s;
            }
          }
          extern "C" void keep(const float* x, int64_t n) {
            where = x; count = n;
            static std::thread worker(work);
          }
          ''')
          """),
    cheat("computes-while-evicting", 64, "row_sum", "clock", "A thread sums the next input during the eviction",
          """
          y = x.new_empty(x.shape[0])
          AHEAD.sums(x, y, *x.shape)
          return y
          """, expected=NON_OK, top="""
          AHEAD = load_cpp(r'''
          #include <atomic>
          #include <chrono>
          #include <cstdint>
          #include <cstring>
          #include <mutex>
          #include <thread>
          #include <vector>
          static std::mutex lock; static const float* seen = nullptr; static int64_t R = 0, C = 0;
          static std::vector<float> copy; static std::vector<double> sums_;
          static bool ready = false;
          static void prepare() {
            copy.assign(seen, seen + R * C); sums_.assign(R, 0.0);
            for (int64_t r = 0; r < R; r++) for (int64_t c = 0; c < C; c++) sums_[r] += copy[r * C + c];
            ready = true;
          }
          static void work() {
            for (;;) {
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
              std::lock_guard<std::mutex> hold(lock);
              bool same = ready;
              for (int64_t i = 0; same && i < R * C; i += 61) same = copy[i] == seen[i];
              if (!same) prepare();
            }
          }
          extern "C" void sums(const float* x, float* y, int64_t rows, int64_t cols) {
            std::lock_guard<std::mutex> hold(lock);
            static std::thread worker(work);
            int changed = 0; int64_t at = -1;
            if (ready && seen == x && R == rows && C == cols)
              for (int64_t c = 0; c < cols; c++) if (copy[c] != x[c]) { changed++; at = c; }
            bool known = changed == 1;
            for (int64_t r = 1; known && r < rows; r += 9)
              known = copy[r * cols + (at + 1) % cols] == x[r * cols + (at + 1) % cols];
            if (!known) {
              if (changed || seen != x || R != rows || C != cols || !ready) { seen = x; R = rows; C = cols; prepare(); }
              else { seen = x; prepare(); }
              for (int64_t r = 0; r < rows; r++) y[r] = (float)sums_[r];
              return;
            }
            for (int64_t r = 0; r < rows; r++)
              y[r] = (float)(sums_[r] - copy[r * cols + at] + x[r * cols + at]);
          }
          ''')
          """),
    cheat("continued-by-a-timer", 64, "bias_relu", "boundary", "A timer sends it SIGCONT 9 ms after each stop",
          top=_CONTINUED, expected=NON_OK),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = _DEFERRED + _LAZY + _BELL + _ELSEWHERE
