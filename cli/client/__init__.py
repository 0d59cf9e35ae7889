"""The REST API as typed Python calls, synchronous and asynchronous: what every `kernelwright` command speaks through.

    with Client("http://127.0.0.1:8080") as client:
        job = client.submit({"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}})
        job = client.wait(job["id"])
        source = client.best_source(job["id"])

    async with AsyncClient("http://127.0.0.1:8080") as client:
        job = await client.job(job_id)

The calls return the API's own JSON, typed by the dictionaries of `cli.client.types`. A call that fails raises one of
these (`cli.client.errors` has them all):

    ClientError
    ├── Unreachable      no answer: nobody listens there, or the answer never came
    └── ApiError         an answer that says no: NotAllowed, NotFound, Conflict, Invalid, TooManyRequests, ServerError
"""

from cli.client.asynchronous import AsyncClient
from cli.client.errors import (
    ApiError,
    ClientError,
    Conflict,
    Invalid,
    NotAllowed,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from cli.client.following import PATIENCE_S
from cli.client.job_calls import TERMINAL_STATES
from cli.client.retries import NO_RETRY, Retry
from cli.client.sync import Client
from cli.client.types import (
    BestSummary,
    Candidate,
    CandidateDetail,
    CandidatePage,
    Comparison,
    DryRun,
    Estimate,
    Event,
    EventPage,
    FieldError,
    Job,
    JobBody,
    JobPage,
    JobState,
    Json,
    Judging,
    Language,
    Leaderboard,
    OwnProblem,
    PlainRequest,
    Question,
    ServiceSummary,
    Target,
    Told,
    Verdict,
    Wait,
    Worker,
)

__all__ = [
    "NO_RETRY",
    "PATIENCE_S",
    "TERMINAL_STATES",
    "ApiError",
    "AsyncClient",
    "BestSummary",
    "Candidate",
    "CandidateDetail",
    "CandidatePage",
    "Client",
    "ClientError",
    "Comparison",
    "Conflict",
    "DryRun",
    "Estimate",
    "Event",
    "EventPage",
    "FieldError",
    "Invalid",
    "Job",
    "JobBody",
    "JobPage",
    "JobState",
    "Json",
    "Judging",
    "Language",
    "Leaderboard",
    "NotAllowed",
    "NotFound",
    "OwnProblem",
    "PlainRequest",
    "Question",
    "Retry",
    "ServerError",
    "ServiceSummary",
    "Target",
    "Told",
    "TooManyRequests",
    "Unreachable",
    "Verdict",
    "Wait",
    "Worker",
]
