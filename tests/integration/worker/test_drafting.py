"""A model writes the reference for a request, through a real HTTP server; what goes wrong leaves the matcher's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from db import keys, requests
from db.account_models import PlainRequest
from db.requests import NewRequest
from problems.catalog import bundled, outline
from tests.support.fake_openai import Answer, FakeOpenAI
from worker.drafting import draft
from worker.runtime import Runtime

# litellm leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MODEL = "openai/writer"
SOURCE = bundled()["softmax"].source
USAGE = {"prompt_tokens": 1000, "completion_tokens": 500}
WRITES = Answer(content=f"Over rows.\n\n```python\n{SOURCE}```\n", usage=USAGE)
REST: dict[str, Any] = {
    "job": {"budget": {"candidates": 3}},
    "target": {"hardware": "cpu", "language": "cpp"},
    "notes": ["no hardware was named: cpu is assumed"],
}
MATCHED = {"by": "matcher"}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FakeOpenAI]:
    with FakeOpenAI(request.param) as server:
        price = {"usd_per_mtok_in": "100", "usd_per_mtok_out": "200"}
        options = {"api_base": server.base_url, "api_key": "sk-none", **price}
        monkeypatch.setenv("KERNELWRIGHT_LLM_MODELS", json.dumps({"*": options}))
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        yield server


def asked(here: Runtime, **fields: Any) -> str:
    new = NewRequest(**{"words": "conv2d with relu", "proposal": None, "rest": REST, "model": MODEL, **fields})
    with here.sessions.begin() as session:
        return requests.create_request(session, new).id


def seen(here: Runtime, request_id: str) -> PlainRequest:
    with here.sessions.begin() as session:
        row = requests.get_request(session, request_id)
    assert row is not None
    return row


def drafted(here: Runtime, **fields: Any) -> PlainRequest:
    request_id = asked(here, **fields)
    draft(here, request_id)
    return seen(here, request_id)


@pytest.mark.parametrize("served", [[WRITES]], indirect=True)
def test_a_models_reference_is_proposed_with_a_whole_job(here: Runtime, served: FakeOpenAI) -> None:
    row = drafted(here)
    proposal = row.proposal or {}
    assert (row.state, row.error, row.lease_token) == ("proposed", None, None)
    assert (proposal["by"], proposal["notes"][-1]) == ("model", "the model says: Over rows.")
    assert outline(proposal["source"], proposal["name"]).source == SOURCE
    assert proposal["job"]["problem"] == {"name": "convolution_relu", "source": SOURCE}
    assert proposal["job"]["budget"] == {"candidates": 3}
    assert (row.calls, row.tokens_in, row.tokens_out, row.cost_usd) == (1, 1000, 500, Decimal("0.2"))
    assert "conv2d with relu" in served.requests[0].text


BROKEN = Answer(content=f"```python\nimport os\n{SOURCE}```\n", usage=USAGE)


@pytest.mark.parametrize("served", [[BROKEN, WRITES]], indirect=True)
def test_a_file_with_a_fault_is_sent_back_once_with_its_fault(here: Runtime, served: FakeOpenAI) -> None:
    row = drafted(here)
    assert (row.state, row.calls, row.cost_usd) == ("proposed", 2, Decimal("0.4"))
    assert "it imports os" in served.requests[1].text
    assert "it imports os" not in served.requests[0].text


@pytest.mark.parametrize(
    ("served", "said"),
    [([BROKEN, BROKEN], "it imports os"), ([Answer(status=401, error="no such key")], "no such key")],
    indirect=["served"],
)
@pytest.mark.parametrize(("proposal", "state"), [(None, "failed"), (MATCHED, "proposed")])
def test_a_model_that_brings_nothing_leaves_what_the_matcher_found(
    here: Runtime, served: FakeOpenAI, said: str, proposal: dict[str, Any] | None, state: str
) -> None:
    row = drafted(here, proposal=proposal)
    assert (row.state, row.proposal) == (state, proposal)
    assert said in (row.error or "")


@pytest.mark.parametrize("served", [[]], indirect=True)
def test_a_cap_of_the_key_forbids_the_call(here: Runtime, served: FakeOpenAI) -> None:
    with here.sessions.begin() as session:
        token = keys.create_key(session, "team", {"calls": 1})
        key_id = keys.find_key(session, token)
    request_id = asked(here, key_id=key_id)
    with here.sessions.begin() as session:
        session.execute(text("UPDATE requests SET calls = 1"))
    draft(here, request_id)
    row = seen(here, request_id)
    assert (row.state, row.error) == ("failed", "the cap on calls of the API key is used up")
    assert served.requests == []


@pytest.mark.parametrize("served", [[WRITES]], indirect=True)
def test_a_writer_that_was_lost_is_replaced_and_a_late_one_changes_nothing(here: Runtime, served: FakeOpenAI) -> None:
    request_id = asked(here)
    with here.sessions.begin() as session:
        late = requests.claim_draft(session, request_id)
        assert requests.claim_draft(session, request_id) is None, "it is held"
    assert late is not None
    expire(here)
    with here.sessions.begin() as session:
        assert [bell.work_id for bell in requests.reap_requests(session)] == [request_id]
        assert requests.reap_requests(session) == []
    draft(here, request_id)
    with pytest.raises(requests.DraftLost), here.sessions.begin() as session:
        requests.finish_draft(session, late, None, "late")
    assert seen(here, request_id).error is None
    draft(here, request_id)
    assert len(served.requests) == 1, "a repeated doorbell finds nothing to do"


def test_a_request_whose_writers_are_lost_twice_is_ended(here: Runtime) -> None:
    request_id = asked(here, proposal=MATCHED)
    for _ in range(requests.MAX_ATTEMPTS):
        with here.sessions.begin() as session:
            assert requests.claim_draft(session, request_id) is not None
        expire(here)
        with here.sessions.begin() as session:
            requests.reap_requests(session)
    row = seen(here, request_id)
    assert (row.state, row.error) == ("proposed", "its writer was lost 2 times")


def expire(here: Runtime) -> None:
    with here.sessions.begin() as session:
        session.execute(text("UPDATE requests SET lease_expires_at = now() - interval '1 s', rung_at = NULL"))
