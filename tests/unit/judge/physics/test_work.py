"""The least work of a call, on references whose bytes can be counted by hand."""

from __future__ import annotations

import textwrap

import pytest
import torch

from worker.judge.exhibits import Exhibit, Exhibits
from worker.judge.physics import work as work_module
from worker.judge.physics.work import least_work
from worker.judge.reference.problem import Problem


def exhibit_of(model: str, inputs: str, spec: str = "{}") -> Exhibit:
    """The only workload of a problem whose Model is `model` and whose get_inputs returns `inputs`."""
    source = (
        f"import torch\nfrom torch import nn\nSPEC = {spec}\n"
        f"class Model(nn.Module):\n{textwrap.indent(textwrap.dedent(model), '    ')}\n"
        f"def get_inputs():\n    return {inputs}\n"
        "def get_init_inputs():\n    return []\n"
    )
    (only,) = Exhibits(Problem(source, "counted"), "cpu", "cpu", 1).workloads
    return only


def test_every_input_of_a_sum_counts_and_so_does_the_output() -> None:
    work = least_work(exhibit_of("def forward(self, x, y):\n    return x + y", "[torch.randn(64, 32)] * 2"))
    assert work.input_bytes == 2 * 64 * 32 * 4
    assert work.output_bytes == 64 * 32 * 4
    assert work.bytes_moved == 3 * 64 * 32 * 4
    assert work.flops == 0
    assert work.note == ""


def test_of_a_table_only_the_rows_that_are_looked_up_count_and_indices_count_nothing() -> None:
    only = exhibit_of(
        "def forward(self, ids, table):\n    return table[ids]",
        "[torch.randint(500, (40,)), torch.randn(500, 16)]",
        '{"domains": {"ids": {"index": 500}}}',
    )
    rows = len(torch.unique(only.timed[0].inputs[0]))
    assert rows < 500
    assert least_work(only).input_bytes == rows * 16 * 4


def test_an_input_that_has_no_influence_counts_nothing() -> None:
    work = least_work(exhibit_of("def forward(self, x, y):\n    return x * 2 + 0 * y", "[torch.randn(64, 32)] * 2"))
    assert work.input_bytes == 64 * 32 * 4


def test_terms_that_cancel_do_not_count_as_read() -> None:
    work = least_work(exhibit_of("def forward(self, x, y):\n    return x + (y - y)", "[torch.randn(64, 32)] * 2"))
    assert work.input_bytes == 64 * 32 * 4


def test_a_product_counts_its_parameters_and_its_operations() -> None:
    model = """
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 24).bfloat16().float())
    def forward(self, x):
        return x @ self.weight
    """
    work = least_work(exhibit_of(model, "[torch.randn(64, 48)]"))
    assert work.input_bytes == (64 * 48 + 48 * 24) * 4
    assert work.flops == 2 * 64 * 48 * 24


def test_a_call_with_a_backward_counts_cotangents_and_gradients() -> None:
    model = "def forward(self, x, y):\n    return x * y"
    work = least_work(exhibit_of(model, "[torch.randn(64, 32), torch.randn(64, 32)]", '{"backward": True}'))
    assert work.input_bytes == 3 * 64 * 32 * 4  # x, y and the cotangent
    assert work.output_bytes == 3 * 64 * 32 * 4  # the product and two gradients


def test_a_reference_that_writes_into_its_argument_is_counted_all_the_same() -> None:
    work = least_work(exhibit_of("def forward(self, x):\n    return x.mul_(2)", "[torch.randn(64, 32)]"))
    assert work.input_bytes == 64 * 32 * 4


def test_a_reference_without_derivative_counts_its_outputs_and_says_so() -> None:
    work = least_work(exhibit_of("def forward(self, x):\n    return torch.argsort(x)", "[torch.randn(64, 32)]"))
    assert work.input_bytes == 0
    assert work.output_bytes == 64 * 32 * 8


def test_large_inputs_are_not_probed_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(work_module._PROBE_LIMIT_BYTES, "cpu", 1 << 20)
    work = least_work(exhibit_of("def forward(self, x):\n    return x * 2", "[torch.randn(600, 600)]"))
    assert work.input_bytes == 0
    assert "1 MiB" in work.note
