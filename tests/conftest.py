"""Settings of every test process."""

from __future__ import annotations

import os

# OpenMP's threads spin for milliseconds after each parallel region. With more test processes than cores they take the
# cores from each other's work: a setup of 1 s took 16 s (measured, three processes on two cores).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
