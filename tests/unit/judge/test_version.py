"""Which judge this is, told without torch, and alike by everyone who asks."""

from __future__ import annotations

import re
import subprocess
import sys

from worker.judge.version import judge_hash


def test_a_process_without_torch_names_the_same_judge() -> None:
    code = "import sys; from worker.judge.version import judge_hash; print(judge_hash(), 'torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == [judge_hash(), "False"]
    assert re.fullmatch(r"[0-9a-f]{64}", judge_hash())
