"""The words of the service: every state, verdict and queue name, once. Tables, API and workers use no others."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Verdict(StrEnum):
    """What the judge found. `infra_error` says nothing about the candidate and never counts against it."""

    OK = "ok"
    BUILD_ERROR = "build_error"
    LAUNCH_ERROR = "launch_error"
    ILLEGAL_ACCESS = "illegal_access"
    TIMEOUT = "timeout"
    INCORRECT = "incorrect"
    NONDETERMINISTIC = "nondeterministic"
    SUSPICIOUS = "suspicious"
    INFRA_ERROR = "infra_error"


class JobState(StrEnum):
    """Where a job is. It ends as `succeeded` with a verified best, as `failed` without one, or as `cancelled`."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """True when the job will never change again."""
        return self in TERMINAL_JOB_STATES


TERMINAL_JOB_STATES: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class StopReason(StrEnum):
    """Why a job ended."""

    TARGET_REACHED = "target_reached"
    BUDGET_CANDIDATES = "budget_candidates"
    BUDGET_USD = "budget_usd"
    BUDGET_WALL = "budget_wall"
    BUDGET_GPU = "budget_gpu"
    BUDGET_CALLS = "budget_calls"
    BUDGET_TOKENS = "budget_tokens"
    BUDGET_KEY = "budget_key"
    STAGNATED = "stagnated"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    ERROR = "error"


class CandidateState(StrEnum):
    """Where a candidate is; what was found about it is the verdict of its evaluation."""

    PROPOSING = "proposing"
    QUEUED = "queued"
    EVALUATING = "evaluating"
    EVALUATED = "evaluated"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class Failure(StrEnum):
    """Why a proposer produced no candidate. `provider_error` is also one that crashed or whose worker was lost.

    `budget`: a cap forbade the call, nothing was asked and nothing paid.
    """

    NO_CODE = "no_code"
    TRUNCATED = "truncated"
    DIFF_FAILED = "diff_failed"
    REFUSED = "refused"
    PROVIDER_ERROR = "provider_error"
    EXHAUSTED = "exhausted"
    DUPLICATE = "duplicate"
    BUDGET = "budget"


class CodeKind(StrEnum):
    """Kinds of generated code, in the order in which a compiler makes them."""

    TTGIR = "ttgir"
    LLVM = "llvm"
    PTX = "ptx"
    SASS = "sass"
    ASSEMBLY = "assembly"


class WorkKind(StrEnum):
    """What a unit of work does to its job."""

    ADVANCE = "advance"
    ADMIT = "admit"
    PROPOSE = "propose"
    EVALUATE = "evaluate"
    CERTIFY = "certify"
    LEARN = "learn"


class AdmissionVerdict(StrEnum):
    """What the judge says of a problem before a search is paid for."""

    ADMITTED = "admitted"
    WARNED = "admitted with warnings"
    REFUSED = "refused"


class WorkState(StrEnum):
    """Where a unit of work is. `dead` used up its attempts; `done`, `dead` and `cancelled` are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class WorkerState(StrEnum):
    """`draining` takes no new work; `quarantined` none either, since its device failed; `gone` has been silent for a
    minute."""

    ACTIVE = "active"
    DRAINING = "draining"
    QUARANTINED = "quarantined"
    GONE = "gone"


class Scope(StrEnum):
    """What an API key may do: change what is searched, look at things, or everything (`admin`: keys and fleet too)."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"


class AuditAction(StrEnum):
    """What the audit log tells of."""

    JOB_SUBMIT = "job.submit"
    JOB_CANCEL = "job.cancel"
    KEY_CREATE = "key.create"
    KEY_CHANGE = "key.change"
    KEY_ROTATE = "key.rotate"
    KEY_REVOKE = "key.revoke"
    WORKER_DRAIN = "worker.drain"
    WORKER_RESUME = "worker.resume"
    WEBHOOK_CREATE = "webhook.create"
    WEBHOOK_CHANGE = "webhook.change"
    WEBHOOK_ROTATE = "webhook.rotate"
    WEBHOOK_DELETE = "webhook.delete"
    WEBHOOK_DISABLE = "webhook.disable"


class RequestState(StrEnum):
    """Where a request in plain words is: `queued` and `writing` wait for a model, `failed` found nothing to propose."""

    QUEUED = "queued"
    WRITING = "writing"
    PROPOSED = "proposed"
    CONFIRMED = "confirmed"
    FAILED = "failed"


class LlmCallState(StrEnum):
    """`superseded` was paid for, but another call for the same proposal had finished first."""

    STARTED = "started"
    FINISHED = "finished"
    SUPERSEDED = "superseded"


class Operator(StrEnum):
    """How a candidate came from its parents."""

    SEED = "seed"
    TRANSLATE = "translate"
    REPAIR = "repair"
    REFINE = "refine"
    REWRITE = "rewrite"
    CROSSOVER = "crossover"
    TUNE = "tune"
    PORT = "port"


class Proposer(StrEnum):
    """Who wrote a candidate."""

    BUILTIN = "builtin"
    LLM = "llm"
    ASK_TELL = "ask/tell"


class SearchPolicy(StrEnum):
    """How a job is searched; `default` is what the service recommends."""

    DEFAULT = "default"
    UCT = "uct"
    ISLANDS = "islands"
    ARCHIVE = "archive"
    GREEDY = "greedy"
    BEST_OF_N = "best_of_n"
    RANDOM = "random"


class Language(StrEnum):
    """The kernel languages: `cpp` for cpu targets only, `cuda` for GPUs only, `triton` for both (not timed on cpu)."""

    CPP = "cpp"
    TRITON = "triton"
    CUDA = "cuda"


class LessonKind(StrEnum):
    """`change` is an edit and what it did to speed; `failure` an error, and what repaired it."""

    CHANGE = "change"
    FAILURE = "failure"


class LessonState(StrEnum):
    """Only `confirmed` lessons are retrieved; `quarantined` ones are contradicted."""

    TENTATIVE = "tentative"
    CONFIRMED = "confirmed"
    QUARANTINED = "quarantined"


class Says(StrEnum):
    """What one candidate says on a lesson."""

    FASTER = "faster"
    SLOWER = "slower"
    UNCLEAR = "unclear"
    OCCURRED = "occurred"
    FIXED = "fixed"
    NOT_FIXED = "not_fixed"


class ItemKind(StrEnum):
    """What the knowledge base holds."""

    KERNEL = "kernel"
    LESSON = "lesson"
    FACT = "fact"


class EventType(StrEnum):
    """What can be read in a job's event log."""

    JOB_CREATED = "job.created"
    JOB_STARTED = "job.started"
    JOB_IMPROVED = "job.improved"
    JOB_CANCEL_REQUESTED = "job.cancel_requested"
    JOB_SEARCH_ENDED = "job.search_ended"
    JOB_FINISHED = "job.finished"
    PROBLEM_ADMITTED = "problem.admitted"
    PROBLEM_REFUSED = "problem.refused"
    CANDIDATE_CREATED = "candidate.created"
    CANDIDATE_ASKED = "candidate.asked"
    CANDIDATE_PROPOSED = "candidate.proposed"
    CANDIDATE_REJECTED = "candidate.rejected"
    CANDIDATE_EVALUATING = "candidate.evaluating"
    CANDIDATE_EVALUATED = "candidate.evaluated"
    CANDIDATE_CERTIFIED = "candidate.certified"
    CANDIDATE_CERTIFICATE_REFUSED = "candidate.certificate_refused"
    LLM_FINISHED = "llm.finished"
    WORK_RETURNED = "work.returned"
    WORK_REQUEUED = "work.requeued"
    WORK_DEAD = "work.dead"
    WORK_FENCED = "work.fenced"


class WebhookType(StrEnum):
    """The events that a webhook may be told of, in the words of the event log: the few that are about a whole job."""

    JOB_CREATED = EventType.JOB_CREATED.value
    JOB_STARTED = EventType.JOB_STARTED.value
    JOB_IMPROVED = EventType.JOB_IMPROVED.value
    JOB_CANCEL_REQUESTED = EventType.JOB_CANCEL_REQUESTED.value
    JOB_SEARCH_ENDED = EventType.JOB_SEARCH_ENDED.value
    JOB_FINISHED = EventType.JOB_FINISHED.value


class DeliveryState(StrEnum):
    """Where a webhook's delivery is: `waiting` for its first or next attempt, or at its end."""

    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class DisabledWhy(StrEnum):
    """Why a webhook is told nothing: its owner said so, the endpoint answered 410, or it failed for days."""

    OWNER = "owner"
    GONE = "gone"
    FAILING = "failing"


CPU: Final = "cpu"
QUEUE_CONTROL: Final = "control"
QUEUE_LLM: Final = "llm"
QUEUE_ASK: Final = "ask"
"""Proposals that wait for an outside agent. No worker serves it and nobody is rung for it."""
QUEUE_CPU: Final = "cpu"


def target_queue(hardware: str) -> str:
    """The queue on which candidates for this hardware are evaluated: `cpu`, or `gpu.<hardware>`."""
    return QUEUE_CPU if hardware == CPU else f"gpu.{hardware}"


def queue_hardware(queue: str) -> str | None:
    """The hardware behind a queue, or None for queues that need none (`control`, `llm`)."""
    if queue == QUEUE_CPU:
        return CPU
    return queue.removeprefix("gpu.") if queue.startswith("gpu.") else None
