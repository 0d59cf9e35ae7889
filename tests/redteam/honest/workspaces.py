"""Python that keeps memory and choices: workspaces, fallbacks, lazy builds, autotuning, a coin."""

from __future__ import annotations

from tests.redteam.honest.pythonic import CALL, python_candidate

ENTRIES = (
    python_candidate(
        "workspace",
        "A workspace by shape, for each thread, holds the sum between two steps; every call fills it anew",
        head="import threading",
        init="self.cache = {}",
        forward="""
    def forward(self, x):
        x = x.contiguous()
        key = threading.get_ident(), x.shape
        work = self.cache.get(key)
        if work is None:
            work = self.cache[key] = torch.empty_like(x)
        out = torch.empty_like(x)
        lib.bias_relu(x, self.bias, work, *sizes(x, self.bias))
        lib.bias_relu(work, torch.zeros_like(self.bias), out, *sizes(x, self.bias))
        return out
    """,
    ),
    python_candidate(
        "workspace-buffer",
        "A non-persistent buffer as a workspace, grown when needed, which torch copies: as many bytes as the kernel",
        share=0.3,
        init="""
    self.register_buffer("work", torch.empty(0), persistent=False)
    """,
        forward="""
    def forward(self, x):
        x = x.contiguous()
        if self.work.numel() < x.numel():
            self.work = torch.empty(x.numel())
        lib.bias_relu(x, self.bias, self.work, *sizes(x, self.bias))
        return self.work[: x.numel()].view(x.shape).clone()
    """,
    ),
    python_candidate(
        "weak-workspaces",
        "Workspaces in a weak dictionary, keyed by the module; torch copies the result: as many bytes as the kernel",
        share=0.3,
        head="import weakref",
        top="work = weakref.WeakKeyDictionary()",
        forward="""
    def forward(self, x):
        x = x.contiguous()
        kept = work.setdefault(self, {})
        buffer = kept.setdefault(tuple(x.shape), torch.empty_like(x))
        lib.by_columns(x, self.bias, buffer, *sizes(x, self.bias))
        return buffer.clone()
    """,
    ),
    python_candidate(
        "fallback-import",
        "Falls back to torch where the loader is missing, which it is not",
        load="""
    try:
        lib = load_cpp(SOURCE)
    except ImportError:
        lib = None
    """,
        forward="""
    def forward(self, x):
        if lib is None:
            return torch.relu(x + self.bias)
        x = x.contiguous()
        out = torch.empty_like(x)
        """
        + CALL.replace("\n    ", "\n        "),
    ),
    python_candidate(
        "fallback-launch",
        "Falls back to torch if the kernel refuses its arguments, which it does not",
        forward="""
    def forward(self, x):
        try:
            x = x.contiguous()
            out = torch.empty_like(x)
            lib.bias_relu(x, self.bias, out, *sizes(x, self.bias))
        except TypeError:
            return torch.relu(x + self.bias)
        return out
    """,
    ),
    python_candidate(
        "fallback-dtype",
        "Its own kernel for float32, torch for every other type",
        forward="""
    def forward(self, x):
        if x.dtype != torch.float32:
            return torch.relu(x + self.bias)
        x = x.contiguous()
        out = torch.empty_like(x)
        """
        + CALL.replace("\n    ", "\n        "),
    ),
    python_candidate(
        "lazy-build",
        "Builds at the first call",
        load="lib = None",
        forward="""
    def forward(self, x):
        global lib
        if lib is None:
            lib = load_cpp(SOURCE)
        x = x.contiguous()
        out = torch.empty_like(x)
        """
        + CALL.replace("\n    ", "\n        "),
    ),
    python_candidate(
        "two-builds",
        "One library per flag set, chosen by the row's length",
        load="""
    libraries = {unroll: load_cpp(SOURCE, flags=["-funroll-loops"] if unroll else ["-O2"]) for unroll in (True, False)}
    """,
        forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        libraries[x.shape[-1] % 2 == 0].bias_relu(x, self.bias, out, *sizes(x, self.bias))
        return out
    """,
    ),
    python_candidate(
        "autotune",
        "Times two right kernels at the first call of each shape and keeps the faster",
        head="import time",
        init="self.best = {}",
        forward="""
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
    """,
    ),
    python_candidate(
        "coin",
        "Tosses a coin between two kernels with the same bits, with a generator of its own",
        head="import random",
        top="coin = random.Random(7)",
        forward="""
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        coin.choice((lib.bias_relu, lib.by_columns))(x, self.bias, out, *sizes(x, self.bias))
        return out
    """,
    ),
)
"""Honest Python: what is kept between calls, none of it results."""
