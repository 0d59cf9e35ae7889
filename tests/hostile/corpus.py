"""All attempts, and the few of them that `make test` runs."""

from __future__ import annotations

from tests.hostile.attempt import Attempt
from tests.hostile.attempts import builds, descriptors, files, kernel, network, processes, resources, writes

ATTEMPTS: tuple[Attempt, ...] = tuple(
    attempt
    for module in (network, files, writes, processes, resources, kernel, descriptors, builds)
    for attempt in module.ATTEMPTS
)

QUICK = (
    "tcp-loopback", "unix-abstract", "unix-datagram-from-pair", "read-by-path", "read-memory", "read-environment",
    "other-candidates-memory", "write-baselines-cache", "make-control-group-below", "kill-by-pid",
    "double-fork-survivor", "clone-user", "memory-in-memfds", "descriptors-with-junk", "surrogate-source",
)  # fmt: skip
"""At the default level: one or two of each topic, and those that once succeeded."""
