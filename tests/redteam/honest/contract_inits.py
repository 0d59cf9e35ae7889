"""Constructors that candidates share."""

from __future__ import annotations

THRESHOLD_INIT = """
def __init__(self):
    super().__init__()
    self.limit = nn.Parameter(torch.tensor(0.5))
"""
