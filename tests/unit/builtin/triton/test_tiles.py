"""Where operands lie on tiles of rows and columns, and how many passes a streamed row takes."""

from __future__ import annotations

import pytest

from tests.unit.builtin.references import BY_NAME
from worker.builtin.expressions import Operand, Program
from worker.builtin.families import Pointwise, Rowwise, recognise
from worker.builtin.triton.pointwise import uniform_suffix
from worker.builtin.triton.stream import online_pairs, passes
from worker.builtin.triton.tiles import Group, Place, place_of


@pytest.mark.parametrize(
    ("flags", "row_dims", "place"),
    [
        ((False, False), 1, Place("matrix")),
        ((True, False), 1, Place("column")),
        ((None, True, False), 1, Place("column")),
        ((False, True), 1, Place("row")),
        ((True, True), 1, Place("scalar")),
        ((False, False), 2, Place("matrix")),
        ((True, False, True, True), 2, Place("mixed", (Group(1, 2),))),
        ((True, False, False), 1, Place("mixed", (Group(1, 2), Group(2, 3)))),
        ((False, True, False), 3, Place("mixed", (Group(0, 1), Group(2, 3)))),
    ],
)
def test_place(flags: tuple[bool | None, ...], row_dims: int, place: Place) -> None:
    operand = Operand("x", "input", ("x",), "float", len(flags), broadcast=flags)
    assert place_of(operand, len(flags), row_dims) == place


def test_the_accumulator_of_a_product_is_there_already() -> None:
    assert place_of(Operand("acc", "input", ("acc",), "float", 2, broadcast=(False, False)), 2, 1).kind == "given"


def program(name: str) -> Program:
    bindings = next(m.bindings for m in recognise(BY_NAME[name].source, "cpu") if m.family in ("rowwise", "pointwise"))
    assert isinstance(bindings, Rowwise | Pointwise)
    return bindings.program


def test_columns_are_the_dimensions_in_which_operands_agree() -> None:
    assert uniform_suffix(program("batch_norm")) == 2
    assert uniform_suffix(program("bias_gelu")) == 1


@pytest.mark.parametrize(
    ("name", "alone", "online"),
    [("softmax", 2, 1), ("softmax_by_hand", 2, 1), ("layer_norm", 2, 1), ("rms_norm", 1, 1), ("logsumexp", 2, 2)],
)
def test_reductions_that_have_an_online_form_share_a_pass(name: str, alone: int, online: int) -> None:
    rows = program(name)
    assert len(passes(rows, {})) == alone
    assert len(passes(rows, online_pairs(rows))) == online
