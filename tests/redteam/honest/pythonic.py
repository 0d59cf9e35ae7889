"""Python that looks suspicious and is not: exec, ctypes, inspect, counters, words, workspaces, fallbacks, autotuning."""

from __future__ import annotations

import textwrap

from tests.redteam.entry import Entry
from tests.redteam.honest.building import entry, method

_MODULE = '''HEAD
import torch
from torch import nn

from kernelwright import load_cpp

SOURCE = r"""
#include <cstdint>
extern "C" void bias_relu(const float* x, const float* bias, float* out, int64_t rows, int64_t features) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < features; i++) {
            float v = x[r * features + i] + bias[i];
            out[r * features + i] = v < 0.0f ? 0.0f : v;
        }
}
extern "C" void by_columns(const float* x, const float* bias, float* out, int64_t rows, int64_t features) {
    for (int64_t i = 0; i < features; i++)
        for (int64_t r = 0; r < rows; r++) {
            float v = x[r * features + i] + bias[i];
            out[r * features + i] = v < 0.0f ? 0.0f : v;
        }
}
"""
LOAD


def sizes(x, bias):
    if x.dtype != torch.float32 or x.shape[-1] != bias.numel():
        raise ValueError("float32 rows as long as the bias are needed")
    return x.numel() // max(1, bias.numel()), bias.numel()


TOP
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
INIT

FORWARD
'''
_PLAIN = """
def forward(self, x):
    x = x.contiguous()
    out = torch.empty_like(x)
    lib.bias_relu(x, self.bias, out, *sizes(x, self.bias))
    return out
"""


def _python(
    id: str, title: str, forward: str = _PLAIN, *, head: str = "", top: str = "", init: str = "",
    load: str = "lib = load_cpp(SOURCE)",
) -> Entry:  # fmt: skip
    holes = {
        "HEAD": head,
        "LOAD": textwrap.dedent(load).strip(),
        "TOP": textwrap.dedent(top).strip() + "\n\n" if top else "",
        "INIT": textwrap.indent(textwrap.dedent(init).strip("\n"), "        "),
        "FORWARD": method(forward),
    }
    source = _MODULE
    for hole, text in holes.items():
        source = source.replace(hole, text, 1)
    return entry(f"python-{id}", title, "bias_relu", source)


_CALL = "lib.bias_relu(x, self.bias, out, *sizes(x, self.bias))\n    return out\n"

ENTRIES = (
    _python("exec", "A method made by exec from a template, as a code generator would",
            forward="""
    def forward(self, x):
        return generated(self, x.contiguous())
    """, top='''
    TEMPLATE = "def generated(self, x):\\n    out = torch.{make}(x)\\n    lib.{name}(x, self.bias, out, *sizes(x, self.bias))\\n    return out\\n"
    exec(TEMPLATE.format(make="empty_like", name="bias_relu"))
    '''),
    _python("eval", "A constant of the kernel's configuration through eval", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        CHOICES[eval("1 - 1")](x, self.bias, out, *sizes(x, self.bias))
        return out
    """, top="CHOICES = [lib.bias_relu, lib.by_columns]"),
    _python("inspect", "inspect.signature checks that the constructor takes what it should", head="import inspect",
            init='assert "cols" in inspect.signature(type(self).__init__).parameters'),
    _python("own-frame", "Names its own frame in an error message that is never raised", head="import sys", forward="""
    def forward(self, x):
        if x.device.type != "cpu":
            raise RuntimeError(f"{sys._getframe().f_code.co_name} needs a CPU tensor")
        x = x.contiguous()
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("ctypes-sizes", "ctypes says how wide a pointer is", head="import ctypes", top="""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        raise RuntimeError("a 64-bit machine is needed")
    """),
    _python("ctypes-array", "Bounds pass through a ctypes array", head="import ctypes", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        bounds = (ctypes.c_int64 * 2)(*sizes(x, self.bias))
        lib.bias_relu(x, self.bias, out, bounds[0], bounds[1])
        return out
    """),
    _python("pointers", "Passes addresses as plain integers", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        lib.bias_relu(x.data_ptr(), self.bias.data_ptr(), out.data_ptr(), *sizes(x, self.bias))
        return out
    """),
    _python("alignment", "Picks a kernel by the alignment of the addresses", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        aligned = all(t.data_ptr() % 64 == 0 for t in (x, out, self.bias))
        run = lib.bias_relu if aligned else lib.by_columns
        run(x, self.bias, out, *sizes(x, self.bias))
        return out
    """),
    _python("counter", "Counts its calls for a log line that it never writes", init="self.calls = 0", forward="""
    def forward(self, x):
        self.calls += 1
        x = x.contiguous()
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("global-statistics", "Keeps the largest number of rows seen, module-wide",
            top="elapsed_time = 0  # steps, not seconds\nlargest = 0", forward="""
    def forward(self, x):
        global largest, elapsed_time
        elapsed_time += 1
        largest = max(largest, x.shape[0] if x.dim() else 1)
        x = x.contiguous()
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("words", "A class called Timer, a cache, a benchmark and a reference that are nothing of the kind", top="""
    class Timer:
        \"\"\"Ticks through blocks of rows.\"\"\"

        def __init__(self, rows, step):
            self.benchmark = range(0, rows, step)


    def reference(block, rows, step):
        return min(step, rows - block)
    """, forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, features = sizes(x, self.bias)
        cached_x, cached_out = x.view(rows, features), out.view(rows, features)
        for block in Timer(rows, 50).benchmark:
            expected = reference(block, rows, 50)
            lib.bias_relu(cached_x[block:], self.bias, cached_out[block:], expected, features)
        return out
    """),
    _python("plan-by-shape", "functools.cache over shapes: a plan, not a result", head="import functools", top="""
    @functools.cache
    def plan(rows, features):
        return lib.bias_relu if rows * 4 > features else lib.by_columns
    """, forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        plan(*sizes(x, self.bias))(x, self.bias, out, *sizes(x, self.bias))
        return out
    """),
    _python("workspace", "A workspace by shape holds the sum between two steps; every call fills it anew",
            init="self.cache = {}", forward="""
    def forward(self, x):
        x = x.contiguous()
        work = self.cache.get(x.shape)
        if work is None:
            work = self.cache[x.shape] = torch.empty_like(x)
        out = torch.empty_like(x)
        lib.bias_relu(x, self.bias, work, *sizes(x, self.bias))
        lib.bias_relu(work, torch.zeros_like(self.bias), out, *sizes(x, self.bias))
        return out
    """),
    _python("workspace-buffer", "A non-persistent buffer as a workspace, grown when needed", init="""
    self.register_buffer("work", torch.empty(0), persistent=False)
    """, forward="""
    def forward(self, x):
        x = x.contiguous()
        if self.work.numel() < x.numel():
            self.work = torch.empty(x.numel())
        lib.bias_relu(x, self.bias, self.work, *sizes(x, self.bias))
        return self.work[: x.numel()].view(x.shape).clone()
    """),
    _python("weak-workspaces", "Workspaces in a weak dictionary, keyed by the module", head="import weakref",
            top="work = weakref.WeakKeyDictionary()", forward="""
    def forward(self, x):
        x = x.contiguous()
        kept = work.setdefault(self, {})
        buffer = kept.setdefault(tuple(x.shape), torch.empty_like(x))
        lib.by_columns(x, self.bias, buffer, *sizes(x, self.bias))
        return buffer.clone()
    """),
    _python("fallback-import", "Falls back to torch where the loader is missing, which it is not", load="""
    try:
        lib = load_cpp(SOURCE)
    except ImportError:
        lib = None
    """, forward="""
    def forward(self, x):
        if lib is None:
            return torch.relu(x + self.bias)
        x = x.contiguous()
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("fallback-launch", "Falls back to torch if the kernel refuses its arguments, which it does not", forward="""
    def forward(self, x):
        try:
            x = x.contiguous()
            out = torch.empty_like(x)
            lib.bias_relu(x, self.bias, out, *sizes(x, self.bias))
        except TypeError:
            return torch.relu(x + self.bias)
        return out
    """),
    _python("fallback-dtype", "Its own kernel for float32, torch for every other type", forward="""
    def forward(self, x):
        if x.dtype != torch.float32:
            return torch.relu(x + self.bias)
        x = x.contiguous()
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("lazy-build", "Builds at the first call", load="lib = None", forward="""
    def forward(self, x):
        global lib
        if lib is None:
            lib = load_cpp(SOURCE)
        x = x.contiguous()
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("two-builds", "One library per flag set, chosen by the row's length", load="""
    libraries = {unroll: load_cpp(SOURCE, flags=["-funroll-loops"] if unroll else ["-O2"]) for unroll in (True, False)}
    """, forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        libraries[x.shape[-1] % 2 == 0].bias_relu(x, self.bias, out, *sizes(x, self.bias))
        return out
    """),
    _python("autotune", "Times two right kernels at the first call of each shape and keeps the faster",
            head="import time", init="self.best = {}", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        run = self.best.get(x.shape)
        if run is None:
            run = self.best[x.shape] = min((lib.bias_relu, lib.by_columns), key=lambda each: self.cost(each, x, out))
        run(x, self.bias, out, *sizes(x, self.bias))
        return out

    def cost(self, run, x, out):
        started = time.perf_counter()
        run(x, self.bias, out, *sizes(x, self.bias))
        return time.perf_counter() - started
    """),
    _python("coin", "Tosses a coin between two kernels with the same bits, with a generator of its own",
            head="import random", top="coin = random.Random(7)", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        coin.choice((lib.bias_relu, lib.by_columns))(x, self.bias, out, *sizes(x, self.bias))
        return out
    """),
    _python("thread-pool", "Two halves on a thread pool whose futures are awaited",
            head="from concurrent.futures import ThreadPoolExecutor", top="pool = ThreadPoolExecutor(2)", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, features = sizes(x, self.bias)
        flat, into, half = x.view(rows, features), out.view(rows, features), rows // 2
        parts = [
            pool.submit(lib.by_columns, flat[:half], self.bias, into[:half], half, features),
            pool.submit(lib.by_columns, flat[half:], self.bias, into[half:], rows - half, features),
        ]
        for part in parts:
            part.result()
        return out
    """),
    _python("python-thread", "A Python thread that is joined", head="import threading", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        worker = threading.Thread(target=lib.bias_relu, args=(x, self.bias, out, *sizes(x, self.bias)))
        worker.start()
        worker.join()
        return out
    """),
    _python("lock", "A lock around the launch, for callers with threads", head="import threading",
            top="lock = threading.Lock()", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        with lock:
            lib.bias_relu(x, self.bias, out, *sizes(x, self.bias))
        return out
    """),
    _python("environment", "Reads the number of threads from the environment and does not need it", head="import os",
            top='THREADS = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))'),
    _python("modules", "Looks in sys.modules for what is already imported", head="import sys",
            top='HAS_TRITON = "triton" in sys.modules'),
    _python("logging", "Logs at a level that nobody listens to", head="import logging",
            top="log = logging.getLogger(__name__)", forward="""
    def forward(self, x):
        log.debug("rows of %d", x.shape[-1])
        x = x.contiguous()
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("numpy", "Reaches the memory through numpy, without copies", head="import numpy as np", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.from_numpy(np.empty(tuple(x.shape), dtype=np.float32))
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("from-storage", "The output is a view into a larger fresh allocation", forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty(x.numel() + 48)[16 : 16 + x.numel()].view(x.shape)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("not-contiguous", "Returns a transposed view of what it computed", forward="""
    def forward(self, x):
        x = x.contiguous()
        rows, features = sizes(x, self.bias)
        out = torch.empty(rows, features)
        lib.bias_relu(x, self.bias, out, rows, features)
        turned = out.t().contiguous()
        return turned.t().view_as(x) if x.dim() == 2 else out.view(x.shape)
    """),
    _python("autograd-function", "Inside an autograd.Function, whose backward nobody asks for", top="""
    class BiasRelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bias):
            out = torch.empty_like(x)
            lib.bias_relu(x, bias, out, *sizes(x, bias))
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, grad):
            (out,) = ctx.saved_tensors
            grad = grad * (out > 0)
            return grad, grad.flatten(0, -2).sum(0)
    """, forward="""
    def forward(self, x):
        return BiasRelu.apply(x.contiguous(), self.bias)
    """),
    _python("inference-mode", "Allocates under inference_mode", forward="""
    @torch.inference_mode()
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("custom-op", "Registered as an operator of torch.library", top="""
    @torch.library.custom_op("kw_honest::bias_relu", mutates_args=())
    def operator(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        lib.bias_relu(x, bias, out, *sizes(x, bias))
        return out
    """, forward="""
    def forward(self, x):
        return operator(x.contiguous(), self.bias)
    """),
    _python("hooked", "A forward pre-hook makes its input contiguous", init="""
    self.register_forward_pre_hook(lambda module, arguments: tuple(each.contiguous() for each in arguments))
    """, forward="""
    def forward(self, x):
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
    _python("submodule", "The work is done by a submodule that has no state", top="""
    class Launch(nn.Module):
        def forward(self, x, bias):
            x = x.contiguous()
            out = torch.empty_like(x)
            lib.bias_relu(x, bias, out, *sizes(x, bias))
            return out
    """, init="self.launch = Launch()", forward="""
    def forward(self, x):
        return self.launch(x, self.bias)
    """),
    _python("specialised", "Made for the declared widths; any other raises a clear error", init="""
    if cols not in (512, 333):
        raise NotImplementedError(f"this kernel is for rows of 512 or 333, not of {cols}")
    """),
    _python("specialised-in-forward", "Made for at least 32 rows; fewer raise a clear error", forward="""
    def forward(self, x):
        if x.dim() != 2 or x.shape[0] < 32:
            raise NotImplementedError("this kernel is for at least 32 rows")
        x = x.contiguous()
        out = torch.empty_like(x)
        """ + _CALL.replace("\n    ", "\n        ")),
)  # fmt: skip
"""Honest Python."""
