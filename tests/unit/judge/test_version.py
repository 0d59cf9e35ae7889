"""Which judge this is: the hash on a certificate and the hash beside an admission are the same."""

from __future__ import annotations

import re

from worker.judge.certificate import compose
from worker.judge.version import judge_hash


def test_certificates_and_admissions_name_the_judge_alike() -> None:
    assert judge_hash() == compose.judge_hash()
    assert re.fullmatch("[0-9a-f]{64}", judge_hash())
