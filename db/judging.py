"""The seed of a job's judge: the same for all candidates of a job, so that they are compared on the same inputs.

Nobody is told it while the job runs: an outside agent knows the job's id and its seed, so it must follow from neither.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from db.models import Job

SEED_BITS: Final = 48


def new_judge_seed() -> int:
    """A seed for a new job. From the system's entropy and not from injected dice: it is a secret."""
    return secrets.randbits(SEED_BITS)


def judge_seed(job: Job) -> int:
    """The seed of the job's judge. Of a job from before seeds were stored it follows from the job's id and seed."""
    if job.judge_seed is not None:
        return job.judge_seed
    digest = hashlib.sha256(f"{job.id} {job.seed}".encode()).digest()
    return int.from_bytes(digest[: SEED_BITS // 8], "big")
