"""/v1/knowledge: what is found, lessons with their evidence, and uplift; and the command that shows them."""

from __future__ import annotations

import json

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

from cli import main
from cli.client import ApiError, Client, Job
from db import knowledge, lessons, meanings
from db.knowledge import NewUse
from db.lessons import NewEvidence, Settled
from problems.catalog import bundled
from search.knowledge.embedding import HashingEmbedder, pack
from tests.integration.api.conftest import EMBEDDER
from tests.integration.api.history import History

ERROR = "cannot: error: '_mm512_foo_ps' was not declared in this scope (build_error)"
FACETS = {"language": "cpp", "hardware_kin": "x86", "op_family": "", "bound": ""}
TARGET = {"hardware": "cpu", "language": "cpp"}


@pytest.fixture
def lesson_id(sessions: sessionmaker[Session], history: History, job: Job) -> str:
    """A confirmed lesson with one piece of evidence."""
    candidate_id = history.evaluate(job["id"], verdict="build_error", timed=False)
    embedder = HashingEmbedder()
    settled = Settled(
        state="confirmed",
        title=ERROR,
        text=f"{ERROR}. Seen in 2 independent jobs.",
        terms="mm512 foo declared scope",
        evidence=1,
        supporting=2,
        opposing=0,
        effect_log=0.0,
        effect_low=-0.1,
        effect_high=0.1,
        notes=(),
        last_confirmed=None,
        embedder=embedder.name,
        embedding=embedder.embed("mm512 foo declared scope"),
    )
    with sessions.begin() as session:
        found = lessons.store_lesson(session, ERROR, kind="failure", key="abc", **FACETS)
        lessons.add_evidence(session, found, job["id"], job["id"], [NewEvidence(candidate_id, None, "occurred")])
        lessons.settle_lesson(session, found, settled)
    return found


def test_what_is_known_for_a_problem_comes_with_the_ranks_of_its_parts(client: Client, lesson_id: str) -> None:
    found = client.get("/v1/knowledge", **TARGET, problem="softmax", limit=3)["data"]
    assert [item["id"] for item in found if item["kind"] == "lesson"] == [lesson_id]
    facts = [item for item in found if item["kind"] == "fact"]
    assert [fact["rank"] for fact in facts] == [1, 2, 3]
    assert any("softmax" in fact["id"] for fact in facts)
    assert all("structured" in item["ranks"] and item["text"] for item in found)


def test_what_is_known_for_a_problem_comes_with_the_meaning_where_both_have_a_vector(
    client: Client, lesson_id: str, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        claimed = meanings.claim(session, EMBEDDER)
        assert {item.item_id for item in claimed} == {lesson_id, f"problem:{bundled()['softmax'].source_hash}"}
    for stored in (claimed[:1], claimed[1:]):
        (lesson,) = [
            item
            for item in client.get("/v1/knowledge", **TARGET, problem="softmax")["data"]
            if item["kind"] == "lesson"
        ]
        assert "meaning" not in lesson["ranks"]
        with sessions.begin() as session:
            meanings.store(session, EMBEDDER, stored, [pack([1.0, 2.0])], None)
    found = client.get("/v1/knowledge", **TARGET, problem="softmax")["data"]
    assert [item["ranks"].get("meaning") for item in found if item["kind"] == "lesson"] == [1]


def test_an_error_message_finds_its_lesson_by_spelling(client: Client, lesson_id: str) -> None:
    found = client.get("/v1/knowledge", **TARGET, q="error: '_mm512_fooo_ps' was not declared")["data"]
    (lesson,) = [item for item in found if item["kind"] == "lesson"]
    assert lesson["id"] == lesson_id and lesson["ranks"]["trigram"] == 1
    other = client.get("/v1/knowledge", hardware="nvidia-h100", language="triton", q="error")["data"]
    assert "lesson" not in {item["kind"] for item in other}


def test_lessons_are_listed_and_shown_with_their_evidence(client: Client, lesson_id: str, job: Job) -> None:
    assert [lesson["id"] for lesson in client.get("/v1/knowledge/lessons", state="confirmed")["data"]] == [lesson_id]
    assert client.get("/v1/knowledge/lessons", state="quarantined")["data"] == []
    shown = client.get(f"/v1/knowledge/lessons/{lesson_id}")
    assert (shown["op_family"], shown["effect"], shown["retired"]) == (None, 1.0, None)
    assert [(row["says"], row["job_id"]) for row in shown["evidence_rows"]] == [("occurred", job["id"])]


def test_lessons_come_page_by_page(client: Client, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        made = [lessons.store_lesson(session, "x", kind="failure", key=str(n), **FACETS) for n in range(5)]
    seen: list[str] = []
    cursor = None
    while cursor is not None or not seen:
        page = client.get("/v1/knowledge/lessons", limit=2, cursor=cursor)
        seen += [lesson["id"] for lesson in page["data"]]
        cursor = page["next_cursor"]
    assert seen == made[::-1]


def test_uplift_and_what_came_up_are_shown(
    client: Client, history: History, job: Job, sessions: sessionmaker[Session]
) -> None:
    empty = client.get("/v1/knowledge/uplift")
    assert (empty["items"], empty["overall"]["gained"], empty["overall"]["shown"]["proposals"]) == ([], None, 0)
    right = [history.evaluate(job["id"], speedup=2.0) for _ in range(3)]
    wrong = [history.evaluate(job["id"], verdict="incorrect", timed=False) for _ in range(2)]
    with sessions.begin() as session:
        for candidate_id in right + wrong:
            on = candidate_id in right
            use = NewUse("fact:roofline-first", "fact", 1, 0.5, on, "Roofline first", "text", {"text": 1})
            knowledge.store_uses(session, candidate_id, retrieval=on, uses=[use])
    found = client.get("/v1/knowledge/uplift")
    assert found["overall"]["correctness"]["estimate"] == 1.0
    (item,) = found["items"]
    assert (item["id"], item["title"], item["retired"]) == ("fact:roofline-first", "Roofline first", None)
    assert item["gained"]["estimate"] == pytest.approx(0.693, abs=0.001)
    told = client.get(f"/v1/candidates/{right[0]}/knowledge")
    assert (told["retrieval"], told["data"][0]["shown"], told["data"][0]["ranks"]) == (True, True, {"text": 1})
    assert client.get(f"/v1/candidates/{wrong[0]}/knowledge")["retrieval"] is False


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/v1/knowledge?hardware=cpu", 422, "language"),
        ("/v1/knowledge?hardware=cpu&language=cpp&problem=nothing", 404, "softmax"),
        ("/v1/knowledge?hardware=cpu&language=cpp&familly=softmax", 422, "familly"),
        ("/v1/knowledge/lessons?cursor=abc", 422, "cursor"),
        ("/v1/knowledge/lessons/lesson_0", 404, "lessons lists them"),
        ("/v1/candidates/cand_0/knowledge", 404, "candidates"),
    ],
)
def test_what_cannot_be_answered_is_said(http: httpx2.Client, path: str, status: int, detail: str) -> None:
    answer = http.get(path)
    assert answer.status_code == status
    assert detail in json.dumps(answer.json())


def test_an_unknown_problem_is_an_error_of_the_client(client: Client) -> None:
    with pytest.raises(ApiError, match="no bundled problem"):
        client.get("/v1/knowledge", **TARGET, problem="nothing")


def test_the_command_shows_items_lessons_and_uplift(url: str, lesson_id: str) -> None:
    def said(*arguments: str) -> str:
        result = CliRunner().invoke(main.app, ["knowledge", *arguments, "--url", url])
        assert result.exit_code == 0, result.output
        return result.output

    items = said("--problem", "softmax")
    assert "kind\trank\tscore" in items and lesson_id in items and "fact:softmax" in items
    listed = said("--lessons")
    assert f"{lesson_id}\tconfirmed\t2 for, 0 against" in listed
    assert "all retrieval\t0/0\t0/0" in said("--uplift")
    # The server's log of its last request may come after the answer: both run in this process.
    (answer,) = (line for line in said("--uplift", "--json").splitlines() if line.startswith("{"))
    assert json.loads(answer)["items"] == []
