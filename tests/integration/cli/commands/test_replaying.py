"""`replay --job`: a search by a model, an outside agent, the tuner and a seed, run again on its record over REST."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx2
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import ledger, llm_calls
from db.ledger import Claim
from db.llm_calls import CallRecord
from db.proposals import CALL_KEY
from db.settings import Settings
from search.prompts import build_prompt
from search.recording import request_record
from tests.integration.cli.commands.conftest import Kernelwright
from tests.integration.worker.conftest import broker, configured
from tests.support.ledger import OWNER, evaluate, propose
from tests.support.outside import BODY, Outside, file_answer
from worker import proposing
from worker.briefing import read_brief

__all__ = ["broker", "configured"]

MODEL = "openai/scripted"
SEED = 'TUNABLES = {"BLOCK": [64, 128, 256]}\nBLOCK = 128\n\n\nclass ModelNew: ...\n'
VERDICTS = ["ok", "incorrect", "ok", "build_error"]


class Search:
    """One job from its submission to its end, each unit of work by the code that production runs for it. Made up are
    the judge's reports, what the built-in seed and the tuner found, and the models' calls: each was paid for by an
    attempt that died."""

    def __init__(self, outside: Outside, **body: Any) -> None:
        self.outside = outside
        self.judged = self.called = 0
        self.job_id = outside.submit(**BODY | body)

    def run(self) -> str:
        """To the end; the job's id."""
        for _ in range(200):
            if not self._step():
                return self.job_id
        raise AssertionError("the job never ended")

    def _step(self) -> bool:
        with self.outside.sessions.begin() as session:
            query = (
                "SELECT id, kind, queue, candidate_id FROM work"
                " WHERE state = 'queued' AND kind <> 'learn' ORDER BY id LIMIT 1"
            )
            work = session.execute(text(query)).one_or_none()
        if work is None:
            return False
        if work.kind == "advance":
            self.outside.advance()
        elif work.kind == "evaluate":
            self._judge(work.candidate_id)
        elif work.queue == "ask":
            (question,) = self.outside.ask(self.job_id)
            self.outside.tell(question, answer=file_answer(question["candidate_id"])).raise_for_status()
        else:
            self._propose(work.id, work.candidate_id)
        return True

    def _judge(self, candidate_id: str) -> None:
        verdict = VERDICTS[self.judged % len(VERDICTS)]
        self.judged += 1
        speedup = 1 + self.judged / 7 if verdict == "ok" else None
        workloads = [{"name": "small", "latency_us": 3.25, "sol_fraction": 1 / (2 + self.judged)}]
        evaluate(self.outside.sessions, candidate_id, verdict=verdict, speedup=speedup, workloads=workloads)

    def _propose(self, work_id: str, candidate_id: str) -> None:
        with self.outside.sessions.begin() as session:
            operator, proposer = session.execute(
                text("SELECT operator, proposer FROM candidates WHERE id = :id"), {"id": candidate_id}
            ).one()
        if proposer == "builtin":
            propose(self.outside.sessions, candidate_id, f"{SEED}# {operator}: {candidate_id}\n", tunable=True)
            return
        with self.outside.sessions.begin() as session:
            claim = ledger.claim(session, work_id, OWNER)
        assert claim is not None
        if proposer == "llm":
            self._call(claim)
        proposing.propose(self.outside.here, claim)

    def _call(self, claim: Claim) -> None:
        with self.outside.sessions.begin() as session:
            request = read_brief(session, claim).request
            call_id = llm_calls.start_call(session, claim.candidate, CALL_KEY, MODEL, request=request_record(request))
            prompt = build_prompt(request)
            self.called += 1
            code = file_answer(claim.candidate, plan="split it in parts")
            record = CallRecord(
                model=MODEL,
                prompt=json.dumps([dict(message) for message in prompt.messages]),
                answer="Let us talk about loops." if self.called == 2 else code,
                cost_usd=Decimal("0.0123456789"),
                prompt_version=prompt.version,
                finish_reason="stop",
            )
            llm_calls.finish_call(session, call_id, record)


@pytest.fixture
def searched(url: str, configured: Settings, sessions: sessionmaker[Session]) -> Iterator[str]:
    """A job that has ended; its id."""
    with httpx2.Client(base_url=url, timeout=30) as http:
        outside = Outside(http, configured, sessions)
        body = {"models": [MODEL, "ask/tell"], "budget": {"candidates": 14}, "policy": {"search": "uct"}}
        yield Search(outside, **body, certify=False, admit=False, seed=3).run()
        outside.here.close()


def test_a_search_is_the_same_again_and_whatever_was_changed_is_found(
    kernelwright: Kernelwright, searched: str, sessions: sessionmaker[Session]
) -> None:
    same = kernelwright("replay", "--job", searched, "--json")
    assert (same.returncode, same.stderr) == (0, "")
    found = json.loads(same.stdout)
    assert found["differences"] == []
    with sessions.begin() as session:
        made = dict(session.execute(text("SELECT proposer, count(*) FROM candidates GROUP BY 1")).all())
        assert min(made["llm"], made["ask/tell"]) >= 3 and made["builtin"] >= 1, made
        assert found["prompts"] == found["answers"] == made["llm"] + made["ask/tell"]
        assert found["expansions"] == sum(made.values())
        ids = {proposer: list(_ids(session, proposer)) for proposer in made}
        session.execute(text("UPDATE candidates SET source = source || '#' WHERE id = :id"), {"id": ids["llm"][-1]})
        session.execute(
            text("UPDATE asks SET prompt = replace(prompt, 'softmax', 'softmin') WHERE candidate_id = :id"),
            {"id": ids["ask/tell"][0]},
        )
        session.execute(text("UPDATE candidates SET model = 'openai/other' WHERE id = :id"), {"id": ids["llm"][0]})
        session.execute(text("DELETE FROM decisions WHERE id = (SELECT max(id) FROM decisions)"))
        session.execute(
            text(
                "UPDATE decisions SET view = jsonb_set(view::jsonb, '{slots}', '1')::json"
                " WHERE id = (SELECT min(id) FROM decisions)"
            )
        )
        ordinals = dict(session.execute(text("SELECT id, ordinal FROM candidates")).all())
    changed = kernelwright("replay", "--job", searched)
    assert changed.returncode == 1
    lines = changed.stdout.splitlines()
    assert any(line.startswith(f"candidate {ordinals[ids['llm'][-1]]}: the answer's source differs") for line in lines)
    assert any(line.startswith(f"candidate {ordinals[ids['ask/tell'][0]]}: the user message differs") for line in lines)
    assert any(line.startswith(f"candidate {ordinals[ids['llm'][0]]}: is seed by openai/other") for line in lines)
    assert any(line.startswith("decision 1: was seed by ") for line in lines)


def _ids(session: Session, proposer: str) -> Iterator[str]:
    query = text("SELECT id FROM candidates WHERE proposer = :proposer AND source IS NOT NULL ORDER BY ordinal")
    return iter(session.scalars(query, {"proposer": proposer}).all())


def test_what_cannot_be_replayed_says_so(kernelwright: Kernelwright, job: dict[str, Any]) -> None:
    asked = kernelwright("replay", "--job", job["id"])
    assert (asked.returncode, asked.stderr) == (1, f"{job['id']}: no decision is on record\n")
    both = kernelwright("replay", "cand_1", "--job", job["id"])
    assert (both.returncode, "either a candidate, or a job" in both.stderr) == (2, True)
