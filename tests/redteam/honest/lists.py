"""What counts, searches, and adds up rows of any length, as it should be."""

from __future__ import annotations

from tests.redteam.entry import HONEST, Entry
from tests.redteam.kernels import candidate

ENTRIES: tuple[Entry, ...] = (
    Entry("honest-list-histogram", 0, "Counts of 64 bits", "histogram", "cpp", candidate("histogram"), HONEST),
    Entry(
        "honest-list-ragged-sum", 0, "Rows as long as they are", "ragged_sum", "cpp", candidate("ragged_sum"), HONEST
    ),
    Entry("honest-list-keyed", 0, "Binary search among all keys", "keyed", "cpp", candidate("keyed"), HONEST),
)
