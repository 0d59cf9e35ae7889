"""Generated code over REST: the texts with their tags, where each is linked, and why there is none."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from cli.client import Client, Job
from db import generated
from tests.integration.api.conftest import BODY
from tests.integration.api.history import History

ROOT = Path(__file__).resolve().parents[3]
ASSEMBLY = "# cpp source 1 of 1, flags: none\n0000000000001130 <scaled>:\n    1130:\tvmulps (%rdi),%ymm1,%ymm0\n"
PTX = "// kernel é, for small\n.version 8.7\n"


def test_a_text_has_a_link_and_a_tag(http: httpx2.Client, client: Client, history: History, job: Job) -> None:
    candidate = client.candidate(history.evaluate(job["id"], code={"assembly": ASSEMBLY}))
    assert "code" not in (candidate["report"] or {})
    (kept,) = candidate["code"]
    assert (kept["kind"], kept["bytes"]) == ("assembly", len(ASSEMBLY))
    answer = http.get(candidate["links"]["assembly"])
    assert (answer.headers["content-type"], answer.text) == ("text/plain; charset=utf-8", ASSEMBLY)
    again = http.get(candidate["links"]["assembly"], headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", answer.headers["etag"])


def test_kinds_come_in_the_order_of_the_compiler(client: Client, history: History, job: Job) -> None:
    code = {"sass": "EXIT\n", "ptx": PTX, "llvm": "; x\n", "ttgir": "module {}\n"}
    candidate = client.candidate(history.evaluate(job["id"], code=code))
    assert [each["kind"] for each in candidate["code"]] == ["ttgir", "llvm", "ptx", "sass"]
    assert {kind: getattr(client, kind)(candidate["id"]) for kind in code} == code


def test_equal_code_is_stored_once_and_compressed(
    client: Client, history: History, job: Job, sessions: sessionmaker[Session]
) -> None:
    long = ASSEMBLY * 1000
    twins = [client.candidate(history.evaluate(job["id"], code={"assembly": long})) for _ in range(2)]
    assert twins[0]["code"] == twins[1]["code"]
    with sessions.begin() as session:
        rows = session.execute(text("SELECT size, length(compressed) FROM code_texts")).all()
    ((size, compressed),) = rows
    assert size == len(long) > 50 * compressed


def test_a_text_that_is_no_utf_8_is_stored_all_the_same(client: Client, history: History, job: Job) -> None:
    candidate = history.evaluate(job["id"], code={"assembly": "a\x00b\ud800\n"})
    assert client.assembly(candidate) == "a\ufffdb?\n"


@pytest.mark.parametrize(
    ("language", "kind", "report", "why"),
    [
        ("cpp", "assembly", {"verdict": "incorrect"}, "the verdict of this candidate is incorrect"),
        ("cpp", "assembly", {}, "judged before code was kept"),
        ("cpp", "ptx", {"code": {"assembly": ASSEMBLY}}, "a cpp kernel has no ptx: it has assembly"),
        ("triton", "sass", {"code": {"ptx": PTX}}, "could not read its sass"),
    ],
)
def test_there_is_none_for_a_reason(
    http: httpx2.Client, client: Client, history: History, language: str, kind: str, report: dict[str, object], why: str
) -> None:
    job = client.submit({**BODY, "target": {"hardware": "cpu", "language": language}})
    answer = http.get(f"/v1/candidates/{history.evaluate(job['id'], **report)}/{kind}")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:kernelwright:error:no-code")
    assert why in answer.json()["detail"]


def test_what_was_not_judged_or_is_unknown_has_none(
    http: httpx2.Client, history: History, job: Job, sessions: sessionmaker[Session]
) -> None:
    first, second = history.propose(job["id"], 2)
    assert "was not judged (state proposing)" in http.get(f"/v1/candidates/{first}/assembly").json()["detail"]
    with sessions.begin() as session:
        session.execute(
            text("UPDATE candidates SET duplicate_of = :first WHERE id = :id"), {"first": first, "id": second}
        )
    assert f"see /v1/candidates/{first}/assembly" in http.get(f"/v1/candidates/{second}/assembly").json()["detail"]
    unknown = http.get("/v1/candidates/cand_0/assembly")
    assert unknown.json()["type"] == "urn:kernelwright:error:unknown-candidate"


def test_old_code_is_deleted_as_the_page_for_operators_says(
    history: History, job: Job, sessions: sessionmaker[Session]
) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    found = re.search(r"```sql\n(DELETE FROM candidate_code.*?)```", page, re.DOTALL)
    assert found is not None
    shared, own = ASSEMBLY, PTX
    old = history.evaluate(job["id"], code={"assembly": shared, "ptx": own})
    new = history.evaluate(job["id"], code={"assembly": shared})
    with sessions.begin() as session:
        aged = "created_at = created_at - interval '1 year'"
        session.execute(text(f"UPDATE candidate_code SET {aged} WHERE candidate_id = :id"), {"id": old})
        session.execute(text("UPDATE code_texts SET used_at = used_at - interval '1 year'"))
    with sessions.begin() as session:
        for statement in found[1].split(";")[:-1]:
            session.execute(text(statement))
    with sessions.begin() as session:
        assert generated.listed(session, old) == []
        assert [each.kind for each in generated.listed(session, new)] == ["assembly"]
        assert session.scalar(text("SELECT count(*) FROM code_texts")) == 1


def test_the_page_of_a_candidate_leads_to_its_code(http: httpx2.Client, history: History, job: Job) -> None:
    hostile = ASSEMBLY + "# <script>alert(1)</script> \u202e\n"
    candidate = history.evaluate(job["id"], code={"assembly": hostile})
    own = f"/candidates/{candidate}/code/assembly"
    page = http.get(f"/candidates/{candidate}", headers={"Accept": "text/html"}).text
    assert f'hx-get="{own}"' in page and "vmulps" not in page
    answer = http.get(own, headers={"Accept": "text/html"})
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert 'id="text"' in answer.text and "vmulps" in answer.text and '<span class="nf">' in answer.text
    assert "<script>alert" not in answer.text and "\u202e" not in answer.text
    again = http.get(own, headers={"Accept": "text/html", "If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    none = http.get(f"/candidates/{candidate}/code/sass", headers={"Accept": "text/html"})
    assert (none.status_code, none.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "a cpp kernel has no sass" in none.text


def test_a_very_long_text_is_shown_without_colours(http: httpx2.Client, history: History, job: Job) -> None:
    candidate = history.evaluate(job["id"], code={"assembly": ASSEMBLY * 4000})
    answer = http.get(f"/candidates/{candidate}/code/assembly", headers={"Accept": "text/html"})
    assert answer.text.count("vmulps") == 4000 and '<span class="nf">' not in answer.text
