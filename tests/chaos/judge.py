"""A judge process that judges nothing: it answers the questions of `worker.judge.client` from a hash of the source.

Only the harness starts it (`tests.chaos.evaluator`). A real judgement takes seconds of a core; here what is under test
is all that happens around it, and thousands of candidates must pass in minutes. Like the real one it works with a file
in its home, says `infra_error` when the disk refuses, and ends when its standard input closes or its worker dies.

    python -m tests.chaos.judge HOME HARDWARE LONGEST_S
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from worker.judge.report import Evaluation
from worker.judge.verdict import Verdict

_PR_SET_PDEATHSIG = 1
_SCRATCH_BYTES = 64 * 1024
GPU_S = 0.25
"""What every evaluation says it held the device for: a recount is then a product."""


def main() -> None:
    """Answer requests until the standard input closes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    home, _hardware, longest_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    for line in sys.stdin:
        request = json.loads(line)
        answer = _answer(request["ask"], request["what"], home, longest_s)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _answer(question: str, what: dict[str, Any], home: Path, longest_s: float) -> dict[str, Any]:
    if question == "fingerprint":
        return {"report": {"fingerprint": hashlib.sha256(what["source"].encode()).hexdigest()}}
    if question != "evaluate":
        return {"infra_error": f"the stub cannot {question}"}
    try:
        # Without a name, as files in a runner's namespace: nothing of it is left, whoever is killed.
        with tempfile.TemporaryFile(dir=home) as scratch:
            scratch.write(bytes(_SCRATCH_BYTES))
        draw = int.from_bytes(hashlib.sha256(what["candidate_source"].encode()).digest()[:4]) / 2**32
        time.sleep(longest_s * (0.2 + 0.8 * draw))
    except OSError as error:
        return {"infra_error": f"the scratch folder: {error.strerror}"}
    return {"report": _report(what["candidate_id"], draw).to_json()}


def _report(candidate_id: str, draw: float) -> Evaluation:
    if draw < 0.3:
        return Evaluation(candidate_id, verdict=Verdict.INCORRECT, reason="the stub says so", gpu_s=GPU_S)
    if draw < 0.4:
        return Evaluation(candidate_id, verdict=Verdict.BUILD_ERROR, reason="the stub says so", gpu_s=GPU_S)
    speedup = 0.5 + draw
    return Evaluation(
        candidate_id,
        verdict=Verdict.OK,
        timed=True,
        latency_us=10.0 / speedup,
        baselines_us={"eager": 10.0},
        baseline="eager",
        speedup=speedup,
        ci95=(speedup * 0.99, speedup * 1.01),
        gpu_s=GPU_S,
    )


if __name__ == "__main__":
    main()
