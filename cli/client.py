"""The REST API as typed Python calls: what every `kernelwright` command speaks through.

    with Client("http://127.0.0.1:8080") as client:
        job = client.submit({"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}})
        job = client.job(job["id"], wait_s=30, since_version=job["version"])
        source = client.best_source(job["id"])

The calls return the API's own JSON, typed by the dictionaries of `cli.resources`.

    ClientError
    ├── Unreachable      no answer: nobody listens there, or the answer never came
    └── ApiError         an answer that says no: status, title, detail and the fields at fault
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, cast
from urllib.parse import quote

import httpx2

from cli.resources import (
    Admission,
    BestSummary,
    Budget,
    BudgetBody,
    Cancelled,
    Candidate,
    CandidateDetail,
    CandidatePage,
    Comparison,
    Cost,
    DryRun,
    Estimate,
    Event,
    EventPage,
    FieldError,
    Job,
    JobBody,
    JobPage,
    Leaderboard,
    OwnProblem,
    PlainRequest,
    Policy,
    PolicyBody,
    Problem,
    ProblemRef,
    Progress,
    Queue,
    QueueDepth,
    Stop,
    StopBody,
    Summary,
    Target,
    Worker,
)

__all__ = [
    "Admission",
    "ApiError",
    "BestSummary",
    "Budget",
    "BudgetBody",
    "Cancelled",
    "Candidate",
    "CandidateDetail",
    "CandidatePage",
    "Client",
    "ClientError",
    "Comparison",
    "Cost",
    "DryRun",
    "Estimate",
    "Event",
    "EventPage",
    "FieldError",
    "Job",
    "JobBody",
    "JobPage",
    "Leaderboard",
    "OwnProblem",
    "PlainRequest",
    "Policy",
    "PolicyBody",
    "Problem",
    "ProblemRef",
    "Progress",
    "Queue",
    "QueueDepth",
    "Stop",
    "StopBody",
    "Summary",
    "TERMINAL_STATES",
    "Target",
    "Unreachable",
    "Worker",
]

TERMINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})

# The server holds a long-poll for at most 60 s; what is added here is for the network and a busy server.
_TIMEOUT_S = 15.0
# The server sends a keepalive comment every 15 s, so a minute of silence on a stream means that it is gone.
_STREAM_SILENCE_S = 60.0


class ClientError(Exception):
    """The call to the Kernelwright API failed."""


class Unreachable(ClientError):
    """No answer from the API. Is it running (`kernelwright up`), and is the URL right?"""

    def __init__(self, base_url: str, why: str) -> None:
        super().__init__(f"no answer from {base_url} ({why}); is it running (`kernelwright up`), and is the URL right?")
        self.base_url = base_url


class ApiError(ClientError):
    """The API answered with a problem: `str(error)` is its detail with the fields at fault, ready to show."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        self.type: str = str(problem.get("type", "about:blank"))
        self.title: str = str(problem.get("title", f"HTTP {status}"))
        self.detail: str = str(problem.get("detail") or self.title)
        self.request_id: str | None = problem.get("request_id")
        self.errors: list[FieldError] = list(problem.get("errors") or [])
        # The detail of a 422 names the first few fields already.
        named = [f"{error['pointer']}: {error['detail']}" for error in self.errors]
        super().__init__("\n  ".join([self.detail, *(each for each in named if each not in self.detail)]))


class Client:
    """A synchronous client of one API server. Not shared between threads.

    Every call raises `ApiError` when the server answers with a problem, `Unreachable` when it does not answer.
    `transport` is for tests that speak to an application in the same process.
    """

    def __init__(self, base_url: str, key: str | None = None, *, transport: httpx2.BaseTransport | None = None) -> None:
        headers = {"User-Agent": "kernelwright-cli"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self.base_url = base_url.rstrip("/")
        self._http = httpx2.Client(base_url=self.base_url, headers=headers, timeout=_TIMEOUT_S, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, body: JobBody | Mapping[str, Any], *, idempotency_key: str | None = None) -> Job:
        """Submit a job. With a key, sending the same body again returns the first job instead of a second one."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return cast(Job, self._json("POST", "/v1/jobs", json=body, headers=headers))

    def dry_run(self, body: JobBody | Mapping[str, Any]) -> DryRun:
        """Validate a submission without storing anything."""
        return cast(DryRun, self._json("POST", "/v1/jobs", json=body, params={"dry_run": "true"}))

    def request(self, body: Mapping[str, Any]) -> PlainRequest:
        """Ask in plain words: `{"request": "softmax on my CPU"}`. Nothing is searched before it is confirmed."""
        return cast(PlainRequest, self._json("POST", "/v1/requests", json=body))

    def plain_request(self, request_id: str, *, wait_s: float = 0.0) -> PlainRequest:
        """A request; with `wait_s` (at most 60) once no model writes for it, or when the time is over."""
        params = {"wait": wait_s}
        path = f"/v1/requests/{_seg(request_id)}"
        return cast(PlainRequest, self._json("GET", path, params=params, extra_s=wait_s))

    def preview(self, request_id: str) -> DryRun:
        """What confirming a request would make."""
        path = f"/v1/requests/{_seg(request_id)}/confirm"
        return cast(DryRun, self._json("POST", path, params={"dry_run": "true"}))

    def confirm(self, request_id: str) -> Job:
        """Submit the job that a request proposes; again, and it is the same job. ApiError 409: nothing to confirm."""
        return cast(Job, self._json("POST", f"/v1/requests/{_seg(request_id)}/confirm"))

    def job(self, job_id: str, *, wait_s: float | None = None, since_version: int | None = None) -> Job:
        """One job. With `wait_s` (at most 60), once the version is above `since_version`, or when the time is over."""
        params = _given(wait=wait_s, since_version=since_version)
        return cast(Job, self._json("GET", f"/v1/jobs/{_seg(job_id)}", params=params, extra_s=wait_s or 0.0))

    def jobs(
        self,
        *,
        state: str | None = None,
        problem: str | None = None,
        hardware: str | None = None,
        language: str | None = None,
        label: str | None = None,
        created_after: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> JobPage:
        """A page of jobs, newest first. `label` is `key:value`, `created_after` RFC 3339."""
        params = _given(
            state=state,
            problem=problem,
            hardware=hardware,
            language=language,
            label=label,
            created_after=created_after,
            limit=limit,
            cursor=cursor,
        )
        return cast(JobPage, self._json("GET", "/v1/jobs", params=params))

    def events(self, job_id: str, *, after: int = 0, limit: int | None = None) -> EventPage:
        """A page of a job's events with a seq above `after`, oldest first."""
        params = _given(after=after, limit=limit)
        return cast(EventPage, self._json("GET", f"/v1/jobs/{_seg(job_id)}/events", params=params))

    def stream(self, job_id: str, *, after: int = 0) -> Iterator[Event]:
        """A job's events as they happen, until the job ends. Raises `Unreachable` when the connection breaks:
        call again with `after` set to the last seq seen, and nothing is missed or repeated."""
        path, headers = f"/v1/jobs/{_seg(job_id)}/events", {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx2.Timeout(_TIMEOUT_S, read=_STREAM_SILENCE_S)
        try:
            with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
                if response.is_error:
                    response.read()
                    raise _api_error(response)
                for line in response.iter_lines():
                    if line.startswith("data:"):
                        yield cast(Event, json.loads(line.removeprefix("data:")))
        except httpx2.TransportError as error:
            raise Unreachable(self.base_url, str(error) or type(error).__name__) from error

    def candidates(
        self,
        job_id: str,
        *,
        verdict: str | None = None,
        sort: Literal["-speedup", "ordinal"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> CandidatePage:
        """A page of a job's candidates, in the order they were made unless `sort` says otherwise."""
        params = _given(verdict=verdict, sort=sort, limit=limit, cursor=cursor)
        return cast(CandidatePage, self._json("GET", f"/v1/jobs/{_seg(job_id)}/candidates", params=params))

    def candidate(self, candidate_id: str) -> CandidateDetail:
        """One candidate with its source and the judge's report."""
        return cast(CandidateDetail, self._json("GET", f"/v1/candidates/{_seg(candidate_id)}"))

    def code(self, candidate_id: str, kind: str) -> str:
        """Generated code of a candidate: ttgir, llvm, ptx, sass or assembly. ApiError 404, with why, where none is."""
        return self.send("GET", f"/v1/candidates/{_seg(candidate_id)}/{_seg(kind)}").text

    def compare(self, first_id: str, second_id: str) -> Comparison:
        """Two candidates side by side: speedups, intervals, timings of each workload, the diff of their sources."""
        path = f"/v1/candidates/{_seg(first_id)}/compare/{_seg(second_id)}"
        return cast(Comparison, self._json("GET", path))

    def best(self, job_id: str) -> CandidateDetail:
        """The job's best verified candidate. ApiError 404 while there is none."""
        return cast(CandidateDetail, self._json("GET", f"/v1/jobs/{_seg(job_id)}/best"))

    def best_source(self, job_id: str) -> str:
        """The source of the job's best verified candidate. ApiError 404 while there is none."""
        return self.send("GET", f"/v1/jobs/{_seg(job_id)}/best", headers={"Accept": "text/x-python"}).text

    def certificate(self, job_id: str) -> dict[str, Any]:
        """The certificate of the job's champion, as the judge wrote it. ApiError 404 while there is none."""
        return cast(dict[str, Any], self._json("GET", f"/v1/jobs/{_seg(job_id)}/certificate"))

    def certificate_page(self, job_id: str) -> str:
        """The certificate as an HTML page. ApiError 404 while there is none."""
        return self.send("GET", f"/v1/jobs/{_seg(job_id)}/certificate", headers={"Accept": "text/html"}).text

    def cancel(self, job_id: str, *, reason: str | None = None) -> Cancelled:
        """Ask a job to stop. `changed` is false when it had ended, or was asked before."""
        body = None if reason is None else {"reason": reason}
        return cast(Cancelled, self._json("POST", f"/v1/jobs/{_seg(job_id)}/cancel", json=body))

    def rerun(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Submit what a job asked for again: a new job whose `parent_id` is the first."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return cast(Job, self._json("POST", f"/v1/jobs/{_seg(job_id)}/rerun", headers=headers))

    def problems(self) -> list[Problem]:
        """The bundled problems, without their source."""
        return cast(list[Problem], self._json("GET", "/v1/problems")["data"])

    def problem(self, name: str) -> Problem:
        """One bundled problem with its source."""
        return cast(Problem, self._json("GET", f"/v1/problems/{_seg(name)}"))

    def leaderboard(self, name: str, *, hardware: str | None = None, language: str | None = None) -> Leaderboard:
        """The champions of a problem for each source and target, and why a faster candidate is not among them."""
        params = _given(hardware=hardware, language=language)
        return cast(Leaderboard, self._json("GET", f"/v1/problems/{_seg(name)}/leaderboard", params=params))

    def workers(self) -> list[Worker]:
        """The workers that the service knows, with what they run on and what they do now."""
        return cast(list[Worker], self._json("GET", "/v1/workers")["data"])

    def set_worker(self, worker_id: str, state: Literal["draining", "active"]) -> Worker:
        """Drain a worker: it finishes what it does and claims nothing more. Or have it take work again."""
        return cast(Worker, self._json("PATCH", f"/v1/workers/{_seg(worker_id)}", json={"state": state}))

    def summary(self) -> Summary:
        """The whole service at a glance: jobs, queues, workers, today's spending, waits."""
        return cast(Summary, self._json("GET", "/v1/summary"))

    def queues(self) -> list[QueueDepth]:
        """The queues with their depth, their workers and how long work waited there lately."""
        return cast(list[QueueDepth], self._json("GET", "/v1/queues")["data"])

    def get(self, path: str, **params: Any) -> Any:
        """Any other resource, as the API's JSON; parameters that are None are left out."""
        return self._json("GET", path, params=_given(**params))

    def ready(self) -> bool:
        """True when the API answers and has its database, its Redis and the newest schema."""
        try:
            return self._http.get("/readyz").is_success
        except httpx2.TransportError:
            return False

    def _json(self, method: str, path: str, **options: Any) -> Any:
        return self.send(method, path, **options).json()

    def send(self, method: str, path: str, *, extra_s: float = 0.0, **options: Any) -> httpx2.Response:
        """One request, for calls that have no method here (`cli.outside`, `cli.record`); `options` are httpx's."""
        try:
            response = self._http.request(method, path, timeout=_TIMEOUT_S + extra_s, **options)
        except httpx2.TransportError as error:
            raise Unreachable(self.base_url, str(error) or type(error).__name__) from error
        if response.is_error:
            raise _api_error(response)
        return response


def _api_error(response: httpx2.Response) -> ApiError:
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        # Something between us and the API answered: a proxy's page has no problem document.
        problem = {"detail": f"HTTP {response.status_code} without a problem document: {response.text[:200]!r}"}
    return ApiError(response.status_code, problem)


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _seg(value: str) -> str:
    return quote(value, safe="")
