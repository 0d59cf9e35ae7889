"""The judge process: one JSON request a line on standard input, one JSON answer a line on standard output.

Started by `worker.judge.client.Judge`: python -m worker.judge HOME HARDWARE MINIMUM_SANDBOX [eager] [no-profile] [code]
It has no database, no network and no secrets; logs go to standard error. It ends when its standard input closes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import structlog
import torch

from problems.catalog import ProblemError
from worker.judge.referee import Referee
from worker.judge.report import EvaluationRequest
from worker.judge.room import GRACE_S
from worker.judge.runners.processes import RefereeOptions, SandboxTooWeak
from worker.judge.verdict import Fault, ReferenceFailed, ReferenceFull, Verdict
from worker.runner.kernel_calls import PR_SET_PDEATHSIG, prctl
from worker.runner.memory import CudaDriverError

_LOOK_S = 1.0


def main() -> None:
    """Answer requests until the standard input closes."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a reference prints goes to the log, not between the answers
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    home, hardware, minimum, *switches = sys.argv[1:]
    options = RefereeOptions(
        Path(home),
        hardware,
        minimum,
        eager_only="eager" in switches,
        profile="no-profile" not in switches,
        code="code" in switches,
    )
    referee = Referee(options)
    grace_s = GRACE_S
    try:
        while line := _next_line(referee, grace_s):
            request = json.loads(line)
            grace_s = _grace_s(request["ask"])
            answer = _answer(referee, request)
            failure = _failure(answer)
            if request["ask"] in ("evaluate", "certify"):
                referee.learn_of_room(failure)
            answer |= {"over": failure is not None or referee.lost}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            if answer["over"]:
                break
            referee.make_room(idle=False)
    finally:
        referee.close()


def _grace_s(question: str) -> float:
    """For how long the next question is waited for before others may have this judge's room: a certificate is the end
    of a job."""
    return 0.0 if question == "certify" else GRACE_S


def _next_line(referee: Referee, grace_s: float) -> str:
    """The next request; nothing when there will be none. While none comes for so long, others may have this judge's
    memory."""
    began = time.monotonic()
    while not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        referee.make_room(idle=time.monotonic() - began >= grace_s)
    return sys.stdin.readline()


def _ask(referee: Referee, question: str, what: dict[str, Any]) -> dict[str, Any]:
    if question == "admit":
        return {"report": referee.admit(**what)}
    if question == "measure":
        return {"report": referee.measure(EvaluationRequest(**what["request"]), what["source"])}
    if question == "fingerprint":
        return {"report": {"fingerprint": referee.fingerprint(EvaluationRequest(**what))}}
    if question == "rest":
        referee.rest()
        return {"report": {}}
    if question == "certify":
        return {"report": referee.certify(EvaluationRequest(**what))}
    return {"report": referee.evaluate(EvaluationRequest(**what)).to_json()}


def _failure(answer: dict[str, Any]) -> str | None:
    """Why the machine failed, if it did: then this process ends, and the next one makes everything anew."""
    report = answer.get("report") or {}
    failed = report.get("reason") if report.get("verdict") == Verdict.INFRA_ERROR else None
    return answer.get("infra_error", failed)


def _answer(referee: Referee, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return _ask(referee, request["ask"], request["what"])
    except ReferenceFull as full:
        crowded = {"infra_error": f"the device is out of memory: {full}"}
        return crowded if referee.crowded else {"problem_error": str(full)}
    except (ReferenceFailed, ProblemError) as refused:
        return {"problem_error": str(refused)}
    except SandboxTooWeak as weak:
        return {"infra_error": str(weak)}
    except (torch.OutOfMemoryError, CudaDriverError) as full:
        return {"infra_error": f"the device has no memory left for this problem: {full}"}
    except Fault as fault:  # a fault outside a candidate's own judgement: the baselines' runner, the zygote
        return {"infra_error": f"{fault.reason}\n{fault.log[-2000:]}"}


if __name__ == "__main__":
    main()
