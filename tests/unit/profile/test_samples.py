"""What threads were found in, counted: whose time it is, and how many of them work."""

from __future__ import annotations

import pytest

from worker.judge.runners.pointers import Place, Whose
from worker.profile.samples import FEWEST, Samples

OWN = Place(Whose.OWN, "7-ab12.so", 0, 0x1110)
MATH = Place(Whose.NEUTRAL, "libm.so.6")
SPINS = Place(Whose.NEUTRAL, "libgomp.so.1.0.0")
PYTHON = Place(Whose.NEUTRAL, "python3.11")
LIBC = Place(Whose.NEUTRAL, "libc.so.6")
TORCH = Place(Whose.FOREIGN, "libtorch_cpu.so")


def shares(*looks: list[Place]) -> dict[str, float | None]:
    samples = Samples()
    for places in looks * FEWEST:
        samples.add(places)
    return samples.metrics()


@pytest.mark.parametrize(
    ("places", "share"),
    [
        ([OWN, OWN], "device_share"),
        ([SPINS, OWN], "device_share"),
        ([MATH], "device_share"),
        ([OWN, TORCH], "device_share"),
        ([SPINS, TORCH], "foreign_share"),
        ([PYTHON, SPINS], "python_share"),
        ([SPINS, SPINS], "waiting_share"),
        ([LIBC, SPINS], None),
    ],
)
def test_each_look_has_one_owner(places: list[Place], share: str | None) -> None:
    found = shares(places)
    owners = {name: found[name] for name in ("device_share", "foreign_share", "python_share", "waiting_share")}
    assert owners == {name: float(name == share) for name in owners}


def test_threads_that_spin_do_not_work() -> None:
    found = shares([OWN, SPINS], [OWN, OWN], [SPINS, SPINS])
    assert found["threads_busy"] == 1.5
    assert found["waiting_share"] == pytest.approx(1 / 3)


def test_the_math_library_is_a_share_of_the_kernel() -> None:
    assert shares([OWN, MATH], [OWN, OWN])["math_share"] == 0.25
    assert shares([PYTHON])["math_share"] is None


def test_places_in_own_code_are_kept_by_library() -> None:
    samples = Samples()
    samples.add([OWN, Place(Whose.OWN, "8-cd.so", 1, 0x20), OWN])
    assert samples.offsets == {0: [0x1110, 0x1110], 1: [0x20]}


def test_few_looks_say_nothing() -> None:
    samples = Samples()
    for _look in range(FEWEST - 1):
        samples.add([OWN])
    assert samples.metrics() == {}
    samples.add([OWN])
    assert samples.metrics()["device_share"] == 1.0
