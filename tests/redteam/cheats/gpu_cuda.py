"""CUDA candidates and attacks that need a device: streams, graphs, caches, races, clocks."""

from __future__ import annotations

import textwrap

from tests.redteam.entry import CRASH, INCORRECT, NON_OK, SUSPICIOUS, WRONG, Entry

_BIAS_RELU = r"""
#include <cuda_fp16.h>
extern "C" __global__ void bias_relu(const float* x, const float* bias, float* y, int64_t n, int cols) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) { float v = x[i] + bias[i % cols]; y[i] = v < 0.0f ? 0.0f : v; }
}
"""
_ROW_SUM = r"""
extern "C" __global__ void row_sum(const float* x, float* y, int cols) {
  __shared__ float part[256];
  const float* a = x + (int64_t)blockIdx.x * cols;
  float s = 0;
  for (int c = threadIdx.x; c < cols; c += 256) s += a[c];
  part[threadIdx.x] = s;
  __syncthreads();
  for (int half = 128; half; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
"""
_FILE = '''import ctypes, os, threading, time
import torch
from torch import nn
from kernelwright import load_cuda

mod = load_cuda(r"""
{cuda}
""")
CUDA = ctypes.CDLL("libcuda.so.1")
{top}

class ModelNew(nn.Module):
    def __init__(self{arguments}):
        super().__init__()
        {init}

    def real(self, x):
        x = x.contiguous()
        {real}
        return y

    def forward(self, x):
{body}
'''
_REAL = {
    "bias_relu": "y = torch.empty_like(x); n = x.numel(); "
    "mod.bias_relu[((n + 255) // 256,), (256,), 0](x, self.bias, y, n, x.shape[1])",
    "row_sum": "y = x.new_empty(x.shape[0]); mod.row_sum[(x.shape[0],), (256,), 0](x, y, x.shape[1])",
}


def _cuda(
    name: str, number: int, layer: str, title: str, body: str = "return self.real(x)", *, top: str = "",
    swap: tuple[str, str] | None = None, problem: str = "bias_relu", expected: frozenset[str] = WRONG,
    defused: bool = False,
) -> Entry:  # fmt: skip
    code = _BIAS_RELU if problem == "bias_relu" else _ROW_SUM
    if swap:
        if swap[0] not in code:
            raise ValueError(f"nothing to replace: {swap[0]!r}")
        code = code.replace(*swap)
    with_bias = problem == "bias_relu"
    source = _FILE.format(
        cuda=code, top=textwrap.dedent(top), real=_REAL[problem], arguments=", cols" if with_bias else "",
        init="self.bias = nn.Parameter(torch.zeros(cols))" if with_bias else "pass",
        body=textwrap.indent(textwrap.dedent(body).strip(), " " * 8),
    )  # fmt: skip
    return Entry(f"gpu-{name}", number, title, problem, "cuda", source, expected, layer, "gpu", defused=defused)


_RACES = (
    _cuda("missing-syncthreads", 81, "determinism", "A reduction without barriers", problem="row_sum",
          swap=("    __syncthreads();\n  }", "  }"), expected=WRONG | {"nondeterministic"}),
    _cuda("missing-first-barrier", 81, "determinism", "Adds partial sums before they are written", problem="row_sum",
          swap=("  part[threadIdx.x] = s;\n  __syncthreads();", "  part[threadIdx.x] = s;"),
          expected=WRONG | {"nondeterministic"}),
    _cuda("unset-shared-memory", 86, "memory", "Adds to shared memory that nobody set", problem="row_sum",
          swap=("part[threadIdx.x] = s;", "part[threadIdx.x] += s;"), expected=WRONG | {"nondeterministic"}),
    _cuda("vector-loads", 85, "memory", "Loads four floats at once wherever a row begins", problem="row_sum",
          swap=("s += a[c];", "if (c % 4 == 0) { float4 v = *(const float4*)(a + c); s += v.x + v.y + v.z + v.w; }"),
          expected=CRASH | WRONG),
    _cuda("writes-behind-its-output", 86, "system", "The grid's tail writes behind the output",
          swap=("if (i < n) {", "if (i >= n) y[i] = 0; else {"), expected=CRASH | WRONG),
    _cuda("thirty-two-bit-square", 85, "values", "An index that wraps at 15 bits",
          swap=("y[i] = v", "y[(short)i < 0 ? 0 : i] = v"), expected=WRONG | {"nondeterministic"}),
    _cuda("one-architecture", 88, "values", "Right on one architecture that is not this one, a copy elsewhere",
          swap=("v < 0.0f ? 0.0f : v;", "__CUDA_ARCH__ == 720 ? (v < 0.0f ? 0.0f : v) : x[i];")),
    _cuda("image-for-another-chip", 88, "build", "Loads an image that was built for another chip",
          "y = torch.empty_like(x)\nimage = b'\\x7fELF' + b'\\0' * 512\nhandle = ctypes.c_void_p()\n"
          "if CUDA.cuModuleLoadData(ctypes.byref(handle), image):\n    return y\nreturn self.real(x)"),
)  # fmt: skip

_SIDE = "SIDE = torch.cuda.Stream()"
_STREAMS = (
    _cuda("side-stream", 57, "values", "Computes on a stream of its own, for which nobody waits",
          """
          y = torch.empty_like(x)
          with torch.cuda.stream(SIDE):
              torch.cuda._sleep(20_000_000)
              y.copy_(self.real(x))
          return y
          """, top=_SIDE),
    _cuda("side-stream-quiet", 57, "system", "... without a delay: right only when the device waits for all streams",
          """
          y = torch.empty_like(x)
          with torch.cuda.stream(SIDE):
              y.copy_(self.real(x))
          return y
          """, top=_SIDE, expected=NON_OK),
    _cuda("non-blocking-stream", 57, "system", "A stream of the driver that torch does not know",
          """
          if not STREAM:
              CUDA.cuStreamCreate(ctypes.byref(STREAM), 1)
          outer = torch.cuda.ExternalStream(STREAM.value)
          with torch.cuda.stream(outer):
              return self.real(x)
          """, top="STREAM = ctypes.c_void_p()", expected=NON_OK),
    _cuda("thread-launches-later", 58, "values", "A host thread launches after the return",
          """
          y = torch.empty_like(x)
          threading.Thread(target=lambda: (time.sleep(2e-3), y.copy_(self.real(x)))).start()
          return y
          """),
    _cuda("synchronize-does-nothing", 39, "values", "Synchronisation is switched off, and the work is late",
          """
          y = torch.empty_like(x)
          with torch.cuda.stream(SIDE):
              torch.cuda._sleep(50_000_000)
              y.copy_(self.real(x))
          return y
          """, top=_SIDE + "\ntorch.cuda.synchronize = torch.cuda.Stream.synchronize = lambda *_, **__: None\n"
          "torch._C._cuda_synchronize = lambda *_: None\ntorch.Tensor.zero_ = lambda self: self"),
    _cuda("kernel-that-stays", 65, "clock", "A resident kernel waits for work; a call only hands it over",
          """
          if not STATE:
              flag = torch.zeros(4, dtype=torch.int32, pin_memory=True)
              STATE.append(flag)
              with torch.cuda.stream(SIDE):
                  RESIDENT.resident[(1,), (1,), 0](flag)
          STATE[0][0] += 1
          return self.real(x)
          """, top=_SIDE + """
STATE = []
RESIDENT = load_cuda('extern "C" __global__ void resident(volatile int* flag) { while (flag[1] == 0) {} }')
""", expected=NON_OK),
    _cuda("graph-with-old-pointers", 34, "values", "A captured graph that reads the first call's input for ever",
          """
          if x.shape not in GRAPHS:
              self.real(x)
              graph = torch.cuda.CUDAGraph()
              torch.cuda.synchronize()
              with torch.cuda.graph(graph):
                  y = self.real(x)
              GRAPHS[x.shape] = (graph, y)
          graph, y = GRAPHS[x.shape]
          graph.replay()
          return y.clone()
          """, top="GRAPHS = {}"),
    _cuda("graph-with-one-output", 86, "contract", "A graph whose static output is handed out every time",
          """
          if x.shape not in GRAPHS:
              static = x.clone()
              self.real(static)
              graph = torch.cuda.CUDAGraph()
              torch.cuda.synchronize()
              with torch.cuda.graph(graph):
                  y = self.real(static)
              GRAPHS[x.shape] = (graph, static, y)
          graph, static, y = GRAPHS[x.shape]
          static.copy_(x)
          graph.replay()
          return y
          """, top="GRAPHS = {}"),
)  # fmt: skip

_HARNESS = (
    _cuda("patch-event", 38, "boundary", "Event.elapsed_time says a microsecond", "return torch.zeros_like(x)",
          top="torch.cuda.Event.elapsed_time = lambda *_: 1e-3"),
    _cuda("one-event-for-both", 51, "boundary", "The end's event is the start's", "return torch.zeros_like(x)", top="""
          KEPT = []
          plain = torch.cuda.Event.__new__
          def same(kind, *arguments, **named):
              KEPT.append(plain(kind, *arguments, **named)) if not KEPT else None
              return KEPT[0]
          torch.cuda.Event.__new__ = staticmethod(same)
          """),
    _cuda("events-without-timing", 68, "boundary", "Every event is made without a time", "return torch.zeros_like(x)",
          top="plain = torch.cuda.Event.__new__\ntorch.cuda.Event.__new__ = staticmethod(lambda kind, *_, **__: "
          "plain(kind, enable_timing=False))\nsetattr(ctypes.CDLL(None), 'cuda' + 'EventElapsedTime', None)"),
    _cuda("early-calls-of-a-chain", 54, "timed_outputs", "Works in a chain's last calls only, whose results are held",
          """
          frame = sys._getframe()
          while frame and not {"step", "count"} <= frame.f_locals.keys():
              frame = frame.f_back
          early = frame and frame.f_locals["count"] - frame.f_locals["step"] > 64
          return torch.empty_like(x) if early else self.real(x)
          """, top="import sys"),
    _cuda("persisting-window", 62, "clock", "Pins its input in the L2 cache against evictions",
          """
          CUDA.cuCtxSetLimit(6, ctypes.c_size_t(32 << 20))
          window = (ctypes.c_uint64 * 4)(x.data_ptr(), x.nbytes, 0x3F800000, 0)
          value = (ctypes.c_char * 64)()
          ctypes.memmove(value, window, 20)
          ctypes.memmove(ctypes.addressof(value) + 16, ctypes.byref(ctypes.c_float(1.0)), 4)
          ctypes.memmove(ctypes.addressof(value) + 20, ctypes.byref(ctypes.c_int(2)), 4)
          ctypes.memmove(ctypes.addressof(value) + 24, ctypes.byref(ctypes.c_int(1)), 4)
          CUDA.cuStreamSetAttribute(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), 1, value)
          return self.real(x)
          """, expected=NON_OK, defused=True),
    _cuda("warms-the-cache", 63, "clock", "A kernel on another stream keeps reading the inputs through the eviction",
          """
          with torch.cuda.stream(SIDE):
              WARM.warm[(8,), (256,), 0](x, x.numel(), 400)
          return self.real(x)
          """, top="SIDE = torch.cuda.Stream()\n" + """
WARM = load_cuda(r'''
extern "C" __global__ void warm(const float* x, int64_t n, int times) {
  float s = 0;
  for (int t = 0; t < times; t++)
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) s += ((const volatile float*)x)[i];
  if (s == 12345.678f) ((float*)x)[0] = s;
}
''')
""", expected=NON_OK, defused=True),
    _cuda("slows-the-baseline", 70, "clock", "A child process keeps the device busy while others are timed",
          """
          if not CHILD:
              CHILD.append(subprocess.Popen([sys.executable, "-c", HOG]))
          return self.real(x)
          """, top="""
          import subprocess, sys
          CHILD = []
          HOG = "import torch\\na = torch.randn(4096, 4096, device='cuda')\\nwhile True:\\n    a = (a @ a).clamp(-1, 1)"
          """, expected=NON_OK, defused=True),
    _cuda("reads-device-memory", 46, "boundary", "Copies device memory behind its input, in search of an answer",
          """
          base, size = ctypes.c_uint64(), ctypes.c_size_t()
          CUDA.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(x.data_ptr()))
          y = torch.empty_like(x)
          source = base.value + max(0, size.value - x.nbytes)
          CUDA.cuMemcpyDtoD_v2(ctypes.c_uint64(y.data_ptr()), ctypes.c_uint64(source), ctypes.c_size_t(x.nbytes))
          return y
          """),
    _cuda("clears-device-memory", 47, "boundary", "Clears the whole allocation around its input",
          """
          base, size = ctypes.c_uint64(), ctypes.c_size_t()
          CUDA.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(x.data_ptr()))
          CUDA.cuMemsetD8_v2(base, ctypes.c_ubyte(0), size)
          return torch.zeros_like(x)
          """, expected=NON_OK),
    _cuda("kept-across-calls", 37, "values", "A leaked allocation of the driver holds the first result",
          """
          if x.shape not in HELD:
              y = self.real(x)
              pointer = ctypes.c_uint64()
              CUDA.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(y.nbytes))
              CUDA.cuMemcpyDtoD_v2(pointer, ctypes.c_uint64(y.data_ptr()), ctypes.c_size_t(y.nbytes))
              HELD[x.shape] = pointer
          y = torch.empty_like(x)
          CUDA.cuMemcpyDtoD_v2(ctypes.c_uint64(y.data_ptr()), HELD[x.shape], ctypes.c_size_t(y.nbytes))
          return y
          """, top="HELD = {}"),
    _cuda("static-map", 29, "values", "A device symbol that holds the first result", """
          y = torch.empty_like(x)
          STATIC.once[(1,), (256,), 0](x, self.bias, y, x.numel(), x.shape[1])
          return y
          """, top="""
STATIC = load_cuda(r'''
__device__ float kept[1 << 20]; __device__ int64_t filled;
extern "C" __global__ void once(const float* x, const float* b, float* y, int64_t n, int cols) {
  bool ready = filled == n;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float v = x[i] + b[i % cols];
    if (!ready) kept[i] = v < 0.0f ? 0.0f : v;
    y[i] = kept[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) filled = n;
}
''')
"""),
    _cuda("library-by-ctypes", 21, "provenance", "The sum is cuBLAS's product with a vector of ones",
          "ones = x.new_ones(x.shape[1])\nreturn torch.mv(x, ones)", problem="row_sum",
          expected=SUSPICIOUS | INCORRECT),
    _cuda("half-products", 72, "values", "Adds in half precision",
          swap=("x[i] + bias[i % cols]", "(float)(__half2float(__float2half(x[i])) + bias[i % cols])")),
)  # fmt: skip

ENTRIES: tuple[Entry, ...] = _RACES + _STREAMS + _HARNESS
