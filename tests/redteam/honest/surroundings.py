"""Python around a launch: threads, pools, logs, numpy, views, operators of torch, hooks, specialised shapes."""

from __future__ import annotations

from tests.redteam.honest.pythonic import CALL, python_candidate

ENTRIES = (
    python_candidate(
        "thread-pool",
        "Two halves on a thread pool whose futures are awaited",
        head="from concurrent.futures import ThreadPoolExecutor",
        top="pool = ThreadPoolExecutor(2)",
        forward="""
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
    """,
    ),
    python_candidate(
        "python-thread",
        "A Python thread that is joined",
        head="import threading",
        forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        worker = threading.Thread(target=lib.bias_relu, args=(x, self.bias, out, *sizes(x, self.bias)))
        worker.start()
        worker.join()
        return out
    """,
        share=0.3,  # starting the thread, and OpenMP's below it, takes half of so short a call (46 to 51 %, seen)
    ),
    python_candidate(
        "lock",
        "A lock around the launch, for callers with threads",
        head="import threading",
        top="lock = threading.Lock()",
        forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        with lock:
            lib.bias_relu(x, self.bias, out, *sizes(x, self.bias))
        return out
    """,
    ),
    python_candidate(
        "environment",
        "Reads the number of threads from the environment and does not need it",
        head="import os",
        top='THREADS = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))',
    ),
    python_candidate(
        "modules",
        "Looks in sys.modules for what is already imported",
        head="import sys",
        top='HAS_TRITON = "triton" in sys.modules',
    ),
    python_candidate(
        "logging",
        "Logs at a level that nobody listens to",
        head="import logging",
        top="log = logging.getLogger(__name__)",
        forward="""
    def forward(self, x):
        log.debug("rows of %d", x.shape[-1])
        x = x.contiguous()
        out = torch.empty_like(x)
        """
        + CALL.replace("\n    ", "\n        "),
    ),
    python_candidate(
        "numpy",
        "Reaches the memory through numpy, without copies",
        head="import numpy as np",
        forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.from_numpy(np.empty(tuple(x.shape), dtype=np.float32))
        """
        + CALL.replace("\n    ", "\n        "),
    ),
    python_candidate(
        "from-storage",
        "The output is a view into a larger fresh allocation",
        forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty(x.numel() + 48)[16 : 16 + x.numel()].view(x.shape)
        """
        + CALL.replace("\n    ", "\n        "),
    ),
    python_candidate(
        "autograd-function",
        "Inside an autograd.Function, whose backward nobody asks for",
        top="""
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
    """,
        forward="""
    def forward(self, x):
        return BiasRelu.apply(x.contiguous(), self.bias)
    """,
    ),
    python_candidate(
        "inference-mode",
        "Allocates under inference_mode",
        forward="""
    @torch.inference_mode()
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        """
        + CALL.replace("\n    ", "\n        "),
    ),
    python_candidate(
        "custom-op",
        "Registered as an operator of torch.library",
        top="""
    @torch.library.custom_op("kw_honest::bias_relu", mutates_args=())
    def operator(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        lib.bias_relu(x, bias, out, *sizes(x, bias))
        return out
    """,
        forward="""
    def forward(self, x):
        return operator(x.contiguous(), self.bias)
    """,
    ),
    python_candidate(
        "hooked",
        "A forward pre-hook makes its input contiguous",
        init="""
    self.register_forward_pre_hook(lambda module, arguments: tuple(each.contiguous() for each in arguments))
    """,
        forward="""
    def forward(self, x):
        out = torch.empty_like(x)
        """
        + CALL.replace("\n    ", "\n        "),
    ),
    python_candidate(
        "submodule",
        "The work is done by a submodule that has no state",
        top="""
    class Launch(nn.Module):
        def forward(self, x, bias):
            x = x.contiguous()
            out = torch.empty_like(x)
            lib.bias_relu(x, bias, out, *sizes(x, bias))
            return out
    """,
        init="self.launch = Launch()",
        forward="""
    def forward(self, x):
        return self.launch(x, self.bias)
    """,
    ),
    python_candidate(
        "specialised",
        "Made for the declared widths; any other raises a clear error",
        init="""
    if cols not in (512, 333):
        raise NotImplementedError(f"this kernel is for rows of 512 or 333, not of {cols}")
    """,
    ),
    python_candidate(
        "specialised-in-forward",
        "Made for at least 32 rows; fewer raise a clear error",
        forward="""
    def forward(self, x):
        if x.dim() != 2 or x.shape[0] < 32:
            raise NotImplementedError("this kernel is for at least 32 rows")
        x = x.contiguous()
        out = torch.empty_like(x)
        """
        + CALL.replace("\n    ", "\n        "),
    ),
)
"""Honest Python: what surrounds a launch."""
