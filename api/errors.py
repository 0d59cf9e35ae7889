"""Every way in which the API says no, as one tree; it feeds the OpenAPI document and the problem+json answers.

    ApiError                       status, title and type are the class's; its docstring is the default detail
    ├── BrokenJson        400      the body is no JSON
    ├── MissingKey        401      no key, where one is needed
    ├── UnknownKey        401      a key that nobody gave out, or that is over
    ├── ScrapeRefused     401      metrics asked for from another machine, without the token
    ├── MissingScope      403      a key that may not do this
    ├── CrossSite         403      another site's page, in the browser of somebody who may
    ├── BudgetUsed        403      a cap of the API key is used up
    ├── NotFound          404      nothing at this address
    │   ├── UnknownJob  UnknownCandidate  UnknownProblem  UnknownRequest  UnknownLesson  UnknownQuestion
    │   ├── NoSuchKey  UnknownWorker  UnknownWebhook  UnknownDelivery
    │   └── NoBestYet  NoCertificate  NoSource  NoLog  NoCode
    ├── WrongMethod       405
    ├── Conflict          409      right in form, and not possible as things stand
    │   ├── NotProposed            a request that has nothing to confirm now
    │   ├── KeyExists  KeyOver     API keys, by their names
    │   ├── TooManyWebhooks  WebhookOff
    │   └── JobEnded  NotAsking  StaleToken  ToldBefore  WorkerGone  NotPackable
    ├── BodyTooLarge      413
    ├── NotJson           415      a body that does not say that it is JSON
    ├── BrokenRequest 400  RequestTooSlow 408  TargetTooLong 414  HeadTooLarge 431   before any route: api.connections
    ├── Invalid           422      fields or parameters at fault, each with a pointer
    │   ├── KeyReused     422      an Idempotency-Key that was used for another body
    │   └── Refused       422      a problem that the judge has refused on this hardware
    ├── QuotaUsed         429      too many jobs of this key, in flight or within a day
    ├── TooManyRequests   429      more requests than a key, or an address without one, may send in a time
    │   └── TooManyStreams         more event streams than a key may hold open
    ├── Internal          500      a fault of ours; what it was stays in the server's log
    └── Unavailable       503      the database cannot be reached now
        ├── TooSlow       503      the database did not answer in time
        └── NotReady      503      what /readyz found missing

An answer is application/problem+json (RFC 9457): {type, title, status, detail, instance, request_id, errors}.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

# Pydantic describes a TypedDict in OpenAPI only with this twin of the standard one, until Python 3.12.
from typing_extensions import TypedDict

MEDIA_TYPE = "application/problem+json"

Responses = dict[int | str, dict[str, Any]]
"""What FastAPI takes as an operation's `responses`."""


class FieldError(TypedDict):
    """What is at fault: `pointer` is a JSON pointer into the body (`#/budget/usd`) or a query parameter (`?limit`)."""

    pointer: str
    detail: str


class ProblemDocument(TypedDict):
    """The body of every answer that says no."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: NotRequired[list[FieldError]]


class ApiError(Exception):
    """The request could not be served."""

    status: int = 500
    title: str = "The request could not be served"
    slug: str = "error"

    def __init__(
        self,
        detail: str | None = None,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.detail = detail or self.default_detail()
        self.errors = list(errors)
        self.headers = dict(headers or {})
        super().__init__(self.detail)

    @classmethod
    def default_detail(cls) -> str:
        """The docstring in one line: what happened and what to do."""
        return " ".join(inspect.cleandoc(cls.__doc__ or "").split())

    def document(self, instance: str, request_id: str) -> ProblemDocument:
        """The answer's body; `instance` is the path that was asked for."""
        document = ProblemDocument(
            type=f"urn:kernelwright:error:{self.slug}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            instance=instance,
            request_id=request_id,
        )
        if self.errors:
            document["errors"] = self.errors
        return document


class BrokenJson(ApiError):
    """The body is not JSON in UTF-8, or it nests too deeply, or holds a number of thousands of digits."""

    status = 400
    title = "Broken JSON"
    slug = "broken-json"


class MissingKey(ApiError):
    """This needs a key: send the header `Authorization: Bearer kw_live_...` (with curl: -H "Authorization: Bearer
    $KEY"; the command line reads KERNELWRIGHT_KEY). An operator makes one: kernelwright keys NAME --create"""

    status = 401
    title = "Key needed"
    slug = "missing-key"


class UnknownKey(ApiError):
    """The Authorization header has no key of this service: send `Bearer` and a key."""

    status = 401
    title = "Unknown key"
    slug = "unknown-key"


class ScrapeRefused(ApiError):
    """Metrics are for scrapes from the server's own machine, and for those that send `Authorization: Bearer` with the
    token that the server was given as KERNELWRIGHT_METRICS_TOKEN."""

    status = 401
    title = "Scrape refused"
    slug = "scrape-refused"


class MissingScope(ApiError):
    """The key may not do this; the detail names the scope that is needed."""

    status = 403
    title = "Scope missing"
    slug = "missing-scope"


class CrossSite(ApiError):
    """A page of another site sent this from a browser. Programs send their key as `Authorization: Bearer ...`."""

    status = 403
    title = "Sent by another site"
    slug = "cross-site"


class BudgetUsed(ApiError):
    """A cap of this API key is used up by its jobs together. Its owner can have it raised."""

    status = 403
    title = "Budget used up"
    slug = "budget-used"


class QuotaUsed(ApiError):
    """A quota of jobs of this API key is used up; Retry-After says when to try again. Its owner can have it raised."""

    status = 429
    title = "Quota used up"
    slug = "quota-used"


class TooManyRequests(ApiError):
    """Too many requests: Retry-After says when to send the next one."""

    status = 429
    title = "Too many requests"
    slug = "too-many-requests"


class TooManyStreams(TooManyRequests):
    """Too many event streams of this key are open here: end one, or poll with ?wait=."""

    title = "Too many streams"
    slug = "too-many-streams"


class NotFound(ApiError):
    """There is nothing at this address. The addresses are listed in /openapi.json and shown at /docs."""

    status = 404
    title = "Not found"
    slug = "not-found"


class UnknownJob(NotFound):
    """There is no job with this id. GET /v1/jobs lists the jobs."""

    title = "Unknown job"
    slug = "unknown-job"


class UnknownCandidate(NotFound):
    """There is no candidate with this id. GET /v1/jobs/{id}/candidates lists a job's candidates."""

    title = "Unknown candidate"
    slug = "unknown-candidate"


class UnknownProblem(NotFound):
    """There is no bundled problem with this name. GET /v1/problems lists them."""

    title = "Unknown problem"
    slug = "unknown-problem"


class UnknownRequest(NotFound):
    """There is no request with this id. POST /v1/requests makes one."""

    title = "Unknown request"
    slug = "unknown-request"


class UnknownLesson(NotFound):
    """There is no lesson with this id. GET /v1/knowledge/lessons lists them."""

    title = "Unknown lesson"
    slug = "unknown-lesson"


class UnknownQuestion(NotFound):
    """This job never asked an outside agent for a candidate with this id. POST .../ask hands out the open ones."""

    title = "Unknown question"
    slug = "unknown-question"


class UnknownWorker(NotFound):
    """There is no worker with this id. GET /v1/workers lists those that are alive."""

    title = "Unknown worker"
    slug = "unknown-worker"


class UnknownWebhook(NotFound):
    """There is no webhook with this id, or it is another key's. GET /v1/webhooks lists yours."""

    title = "Unknown webhook"
    slug = "unknown-webhook"


class UnknownDelivery(NotFound):
    """This webhook has no delivery with this id; 30 days after they ended they are dropped. GET
    /v1/webhooks/{id}/deliveries lists them."""

    title = "Unknown delivery"
    slug = "unknown-delivery"


class NoSuchKey(NotFound):
    """There is no key of this name. GET /v1/keys lists the keys."""

    title = "No such key"
    slug = "no-such-key"


class NoBestYet(NotFound):
    """No candidate of this job is verified yet. GET /v1/jobs/{id}?wait=30 tells when that changes."""

    title = "No best candidate yet"
    slug = "no-best-yet"


class NoCertificate(NotFound):
    """This job has no certificate now; the detail says whether and when there will be one."""

    title = "No certificate"
    slug = "no-certificate"


class NoSource(NotFound):
    """This candidate has no source: it is still being proposed, or its proposer gave none (see its `failure`)."""

    title = "No source"
    slug = "no-source"


class NoLog(NotFound):
    """This candidate has no log: it was not evaluated yet (see its `state`)."""

    title = "No log"
    slug = "no-log"


class NoCode(NotFound):
    """There is no such generated code of this candidate; the detail says why."""

    title = "No generated code"
    slug = "no-code"


class WrongMethod(ApiError):
    """This address does not take this method; the Allow header says which it takes."""

    status = 405
    title = "Method not allowed"
    slug = "method-not-allowed"


class Conflict(ApiError):
    """This is not possible as things stand; the detail says why and what to do."""

    status = 409
    title = "Conflict"
    slug = "conflict"


class KeyExists(Conflict):
    """There is a key of this name already, perhaps a revoked one: take another name, or rotate that key."""

    title = "Key exists"
    slug = "key-exists"


class KeyOver(Conflict):
    """This key is revoked, and that is for good: make another."""

    title = "Key revoked"
    slug = "key-over"


class TooManyWebhooks(Conflict):
    """A key has at most 50 webhooks: remove one, or have one receiver pass things on."""

    title = "Too many webhooks"
    slug = "too-many-webhooks"


class WebhookOff(Conflict):
    """This webhook is disabled, so nothing is sent to it: PATCH it with {"enabled": true} first."""

    title = "Webhook disabled"
    slug = "webhook-off"


class NotProposed(Conflict):
    """This request has nothing to confirm now; its `state` says whether something is still being written."""

    title = "Nothing to confirm"
    slug = "not-proposed"


class JobEnded(Conflict):
    """This job has ended or is ending: it asks nothing more, and what is told now comes too late."""

    title = "Job ended"
    slug = "job-ended"


class NotPackable(Conflict):
    """This kernel cannot be packaged: only a certified one can, and the detail says what is missing."""

    title = "Not packable"
    slug = "not-packable"


class NotAsking(Conflict):
    """This job asks no outside agents. Submit one with "ask/tell" among its `models`."""

    title = "Not asking"
    slug = "not-asking"


class StaleToken(Conflict):
    """This token no longer holds the candidate: its lease ran out. POST .../ask gives it again with a new token, unless
    another agent was faster; the same answer can then be told with that one."""

    title = "Stale token"
    slug = "stale-token"


class ToldBefore(Conflict):
    """With this token another answer was told before, and that one counts. POST .../ask for another candidate."""

    title = "Told before"
    slug = "told-before"


class WorkerGone(Conflict):
    """This worker has left or fell silent: there is nothing to drain or to resume. A new one registers by itself."""

    title = "Worker gone"
    slug = "worker-gone"


class BodyTooLarge(ApiError):
    """The body is larger than this server accepts."""

    status = 413
    title = "Body too large"
    slug = "body-too-large"


class NotJson(ApiError):
    """send JSON: curl --json @job.json, or add -H 'Content-Type: application/json'"""

    status = 415
    title = "Not JSON"
    slug = "not-json"


class Invalid(ApiError):
    """The request does not fit; `errors` names each field or parameter at fault."""

    status = 422
    title = "Invalid request"
    slug = "invalid"


class KeyReused(Invalid):
    """This Idempotency-Key was used for another body. Use a new key for a new job, or send the first body again."""

    title = "Idempotency-Key reused"
    slug = "idempotency-key-reused"


class Refused(Invalid):
    """The judge has examined this problem on this hardware before and refused it; the detail says why."""

    title = "Problem refused"
    slug = "problem-refused"


class Internal(ApiError):
    """The server failed on this request. Tell its operator the request_id: the log has what happened."""

    status = 500
    title = "Internal error"
    slug = "internal"


class Unavailable(ApiError):
    """The service cannot reach its database now. Nothing was stored; try again in a few seconds."""

    status = 503
    title = "Unavailable"
    slug = "unavailable"

    def __init__(self, detail: str | None = None, *, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(detail, errors=errors, headers={"Retry-After": "2"})


class TooSlow(Unavailable):
    """The database did not answer this in time: it is busy, or another change to the same thing takes long. Nothing was
    stored; try again in a few seconds, and if it happens again ask for less (a filter, a smaller `limit`)."""

    title = "Too slow"
    slug = "too-slow"


class NotReady(Unavailable):
    """This process cannot do its work now; `errors` names what is missing."""

    title = "Not ready"
    slug = "not-ready"


def invalid(pointer: str, detail: str) -> Invalid:
    """An `Invalid` with one thing at fault, its text in the detail too, so that a reader of one line sees it."""
    return Invalid(f"{pointer}: {detail}", errors=[FieldError(pointer=pointer, detail=detail)])


def from_status(status: int, detail: str | None, headers: Mapping[str, str] | None) -> ApiError:
    """The error for a bare HTTP status, as the framework raises it for an unknown path or a wrong method."""
    for kind in (NotFound, WrongMethod, Conflict, BodyTooLarge, NotJson, Invalid, BrokenJson):
        if kind.status == status:
            # The framework's own texts ("Not Found", "error parsing the body") say less than our docstrings.
            return kind(None if kind in (NotFound, WrongMethod, BrokenJson) else detail, headers=headers)
    error = ApiError(detail, headers=headers)
    error.status = status
    return error


def responses(*kinds: type[ApiError]) -> Responses:
    """The OpenAPI `responses` of an operation that may answer with these errors, examples included."""
    described: Responses = {}
    for kind in kinds:
        entry = described.setdefault(kind.status, {"description": kind.title, "content": {MEDIA_TYPE: _media()}})
        if kind.title not in entry["description"]:
            entry["description"] += f"; {kind.title[0].lower()}{kind.title[1:]}"
        example = kind().document("/v1/...", "req_0197f0c2a4b87d6e")
        entry["content"][MEDIA_TYPE]["examples"][kind.slug] = {"summary": kind.title, "value": example}
    return described


def _media() -> dict[str, Any]:
    return {"schema": {"$ref": "#/components/schemas/ProblemDocument"}, "examples": {}}
