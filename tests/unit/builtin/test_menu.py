"""What the menu holds, and that what won in a family before goes to its front."""

from __future__ import annotations

from problems.catalog import bundled
from worker.builtin.menu import NotOffered, Seed, begun_with, menu

SPACE = """
BLOCK = 64
WAYS = 2
TUNABLES = {"BLOCK": [32, 64, 128], "WAYS": [1, 2]}
CONSTRAINTS = ["BLOCK * WAYS <= 128"]
"""


def seed(name: str, source: str, kind: str = "recipe") -> Seed:
    return Seed(kind, name, f"The plan of {name}.", lambda: source)


def refuses() -> str:
    raise NotOffered("not after all")


PLAIN, SPACED = seed("plain", "x = 1\n"), seed("spaced", SPACE)
MENU = [Seed("recipe", "refusing", "", refuses), PLAIN, SPACED, seed("inductor", SPACE, "compiler")]


def test_the_first_recipe_that_takes_a_winner_begins_with_it() -> None:
    front, *rest = begun_with(MENU, [{"OTHER": 1}, {"BLOCK": 128, "WAYS": 1}, {"BLOCK": 32, "WAYS": 1}])
    assert front.make() == SPACE.replace("BLOCK = 64", "BLOCK = 128").replace("WAYS = 2", "WAYS = 1")
    assert (front.kind, front.name) == ("recipe", "spaced")
    assert front.plan == "The plan of spaced. Begins with what won in its family before: BLOCK=128, WAYS=1."
    assert rest == MENU


def test_one_that_begins_so_anyway_only_moves() -> None:
    front, *rest = begun_with(MENU, [{"BLOCK": 64, "WAYS": 2}])
    assert front.make() == SPACE
    assert rest == [each for each in MENU if each is not SPACED]


def test_a_winner_that_no_recipe_takes_changes_nothing() -> None:
    forbidden, unknown = {"BLOCK": 128, "WAYS": 2}, {"BLOCK": 96, "WAYS": 1}
    assert begun_with(MENU, [forbidden, unknown, {"BLOCK": 32}, {}]) == MENU
    assert begun_with(MENU, []) == MENU


def test_a_problem_whose_gradients_count_has_no_forward_pass_offered() -> None:
    """Recipes and the compiler's kernels are forward passes: rmsnorm_residual refused three of them in a row."""
    softmax = bundled()["softmax"].source  # its gradients count
    alone = softmax.replace('"backward": True', '"backward": False')
    assert menu(softmax, "softmax", "nvidia-h200", "triton") == []
    assert [each.kind for each in menu(alone, "softmax", "nvidia-h200", "triton")][-1:] == ["compiler"]
