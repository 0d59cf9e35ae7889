"""The API describes itself whole: each operation has a summary, an example of the promised shape, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from api import (
    archive_examples,
    archive_schemas,
    asking_schemas,
    candidate_schemas,
    comparison_schemas,
    event_schemas,
    examples,
    health,
    job_schemas,
    key_examples,
    key_schemas,
    knowledge_examples,
    knowledge_schemas,
    leaderboard_schemas,
    problem_schemas,
    recording_examples,
    recording_schemas,
    request_schemas,
    service_examples,
    summary_schemas,
    webhook_examples,
    webhook_schemas,
    worker_schemas,
)
from api.app import create_app
from db.settings import Settings

APP = create_app(Settings())
DOCUMENT = APP.openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}


def test_the_surface_is_this_and_no_other() -> None:
    assert sorted(OPERATIONS) == [
        "DELETE /v1/keys/{name}",
        "DELETE /v1/webhooks/{webhook_id}",
        "GET /healthz",
        "GET /metrics",
        "GET /readyz",
        "GET /v1/audit",
        "GET /v1/candidates",
        "GET /v1/candidates/{candidate_id}",
        "GET /v1/candidates/{candidate_id}/assembly",
        "GET /v1/candidates/{candidate_id}/compare/{other_id}",
        "GET /v1/candidates/{candidate_id}/knowledge",
        "GET /v1/candidates/{candidate_id}/llvm",
        "GET /v1/candidates/{candidate_id}/log",
        "GET /v1/candidates/{candidate_id}/package",
        "GET /v1/candidates/{candidate_id}/proposal",
        "GET /v1/candidates/{candidate_id}/ptx",
        "GET /v1/candidates/{candidate_id}/sass",
        "GET /v1/candidates/{candidate_id}/source",
        "GET /v1/candidates/{candidate_id}/ttgir",
        "GET /v1/jobs",
        "GET /v1/jobs/{job_id}",
        "GET /v1/jobs/{job_id}/best",
        "GET /v1/jobs/{job_id}/candidates",
        "GET /v1/jobs/{job_id}/certificate",
        "GET /v1/jobs/{job_id}/decisions",
        "GET /v1/jobs/{job_id}/events",
        "GET /v1/jobs/{job_id}/judging",
        "GET /v1/jobs/{job_id}/package",
        "GET /v1/jobs/{job_id}/proposals",
        "GET /v1/jobs/{job_id}/tree",
        "GET /v1/keys",
        "GET /v1/knowledge",
        "GET /v1/knowledge/lessons",
        "GET /v1/knowledge/lessons/{lesson_id}",
        "GET /v1/knowledge/uplift",
        "GET /v1/problems",
        "GET /v1/problems/{name}",
        "GET /v1/problems/{name}/leaderboard",
        "GET /v1/queues",
        "GET /v1/requests/{request_id}",
        "GET /v1/summary",
        "GET /v1/webhooks",
        "GET /v1/webhooks/{webhook_id}",
        "GET /v1/webhooks/{webhook_id}/deliveries",
        "GET /v1/webhooks/{webhook_id}/deliveries/{delivery_id}",
        "GET /v1/workers",
        "PATCH /v1/webhooks/{webhook_id}",
        "PATCH /v1/workers/{worker_id}",
        "POST /v1/jobs",
        "POST /v1/jobs/{job_id}/ask",
        "POST /v1/jobs/{job_id}/cancel",
        "POST /v1/jobs/{job_id}/renew",
        "POST /v1/jobs/{job_id}/rerun",
        "POST /v1/jobs/{job_id}/tell",
        "POST /v1/keys",
        "POST /v1/keys/{name}/rotate",
        "POST /v1/requests",
        "POST /v1/requests/{request_id}/confirm",
        "POST /v1/webhooks",
        "POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/retry",
        "POST /v1/webhooks/{webhook_id}/rotate",
        "POST /v1/webhooks/{webhook_id}/test",
    ]


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_has_a_summary_a_description_and_an_example(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation["summary"] and operation["description"]
    good = [answer for status, answer in operation["responses"].items() if status in ("200", "201", "202")]
    assert good
    for answer in good:
        assert answer["content"], name
        assert all("example" in media for media in answer["content"].values()), name


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_error_is_a_problem_document_with_an_example(name: str) -> None:
    errors = {status: each for status, each in OPERATIONS[name]["responses"].items() if int(status) >= 400}
    assert {"422", "500", "503"} <= set(errors)
    for status, answer in errors.items():
        media = answer["content"]["application/problem+json"]
        assert list(answer["content"]) == ["application/problem+json"]
        assert media["schema"] == {"$ref": "#/components/schemas/ProblemDocument"}
        assert {each["value"]["status"] for each in media["examples"].values()} == {int(status)}


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    missing = {reference for reference in references(DOCUMENT) if reference.rpartition("/")[2] not in schemas}
    assert missing == set()
    assert "HTTPValidationError" not in schemas


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from references(each)


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (job_schemas.Job, examples.JOB),
        (job_schemas.Job, examples.JOB_AGAIN),
        (job_schemas.JobPage, examples.JOB_PAGE),
        (job_schemas.DryRun, examples.DRY_RUN),
        (job_schemas.Cancelled, examples.CANCELLED),
        (request_schemas.PlainRequest, examples.REQUEST),
        (candidate_schemas.Candidate, examples.CANDIDATE),
        (candidate_schemas.CandidateDetail, examples.CANDIDATE_DETAIL),
        (candidate_schemas.CandidatePage, examples.CANDIDATE_PAGE),
        (archive_schemas.ArchivePage, archive_examples.ARCHIVE_PAGE),
        (event_schemas.EventPage, examples.EVENT_PAGE),
        (problem_schemas.ProblemSource, examples.PROBLEM_SOURCE),
        (worker_schemas.Worker, examples.WORKER),
        (knowledge_schemas.FoundItems, knowledge_examples.FOUND),
        (knowledge_schemas.LessonPage, knowledge_examples.LESSON_PAGE),
        (knowledge_schemas.LessonDetail, knowledge_examples.LESSON_DETAIL),
        (knowledge_schemas.Uplift, knowledge_examples.UPLIFT),
        (knowledge_schemas.Recalled, knowledge_examples.RECALLED),
        (asking_schemas.Questions, recording_examples.QUESTIONS),
        (asking_schemas.Told, recording_examples.TOLD),
        (asking_schemas.Renewed, recording_examples.RENEWED),
        (recording_schemas.DecisionPage, recording_examples.DECISION_PAGE),
        (recording_schemas.ProposalPage, recording_examples.PROPOSAL_PAGE),
        (recording_schemas.SearchTree, recording_examples.SEARCH_TREE),
        (recording_schemas.Judging, recording_examples.JUDGING),
        (comparison_schemas.Comparison, service_examples.COMPARISON),
        (leaderboard_schemas.Leaderboard, service_examples.LEADERBOARD),
        (summary_schemas.QueueDepth, service_examples.QUEUE),
        (summary_schemas.ServiceSummary, service_examples.SUMMARY),
        (key_schemas.KeyList, key_examples.KEY_LIST),
        (key_schemas.KeyWithToken, key_examples.MADE),
        (key_schemas.KeyWithToken, key_examples.ROTATED),
        (key_schemas.KeyRevoked, key_examples.REVOKED),
        (key_schemas.AuditPage, key_examples.AUDIT_PAGE),
        (webhook_schemas.WebhookPage, webhook_examples.WEBHOOK_PAGE),
        (webhook_schemas.WebhookWithSecret, webhook_examples.MADE),
        (webhook_schemas.WebhookWithSecret, webhook_examples.ROTATED),
        (webhook_schemas.WebhookDeleted, webhook_examples.DELETED),
        (webhook_schemas.Delivery, webhook_examples.QUEUED),
        (webhook_schemas.DeliveryPage, webhook_examples.DELIVERY_PAGE),
        (webhook_schemas.DeliveryDetail, webhook_examples.DELIVERY_DETAIL),
        (health.Health, examples.HEALTH),
        (health.Ready, examples.READY),
    ],
)
def test_examples_are_what_the_model_would_answer(model: type[BaseModel], example: dict[str, Any]) -> None:
    assert model.model_validate(example).model_dump(mode="json") == example


def test_the_document_is_made_once() -> None:
    assert isinstance(APP, FastAPI)
    assert APP.openapi() is DOCUMENT


def test_no_parameter_is_said_to_take_null() -> None:
    operations = [operation for each in APP.openapi()["paths"].values() for operation in each.values()]
    schemas = [parameter["schema"] for each in operations for parameter in each.get("parameters", ())]
    assert schemas and not [schema for schema in schemas if {"type": "null"} in schema.get("anyOf", ())]
