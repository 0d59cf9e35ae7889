"""The ledger beside a dictionary: any order of moves, by whoever holds a claim or held one once, leaves both the same.

Time is Postgres': a lease runs out and a delay is over because the machine sets their time in the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import candidates, jobs, ledger, recovery, workers
from db.account_models import ApiKey
from db.candidates import NewCandidate, Proposed
from db.ledger import Claim, Fenced
from db.vocabulary import StopReason, WorkerState, WorkKind
from db.workers import WorkerFacts
from tests.support.ledger import new_job, report
from tests.support.ledger_model import Model, ModelJob, Unit
from tests.support.schema import empty

Sessions = sessionmaker[Session]
KEYS = ("", "key_a", "key_b")
WORKERS = ("worker_1", "worker_2")
MOVES = (*["claim"] * 4, *["finish"] * 4, *["stumble"] * 3, "more_work", *["beat"] * 2, "operate")
QUEUES = st.sampled_from([("cpu",), ("control",), ("cpu", "control")])
PRIORITIES = st.sampled_from([0, 5, -1])
ATTEMPTS = 2
"""Instead of 3, or 10 for an advance: the last one is to come within an example."""
_ROWS = text(
    "SELECT id, kind, queue, job_id, candidate_id, priority, state, attempt, returned, lease_token"
    " FROM work ORDER BY id"
)
_JOBS = text(
    "SELECT jobs.id, cancel_requested, finished_at IS NOT NULL AS ended, version,"
    " (SELECT count(*) FROM events WHERE job_id = jobs.id) AS events,"
    " ARRAY(SELECT candidate_id FROM evaluations WHERE job_id = jobs.id) AS evaluated FROM jobs"
)


class LedgerMachine(RuleBasedStateMachine):
    """Each rule is one move in one transaction, on both sides; then every row is compared."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__()
        self.sessions = sessions
        self.model = Model(ATTEMPTS)
        self.claims: list[Claim] = []
        self.number = 0

    @initialize(keys=st.permutations(KEYS), priority=PRIORITIES)
    def set_up(self, keys: list[str], priority: int) -> None:
        with self.sessions.begin() as session:
            session.add_all(ApiKey(id=key, name=key, token_hash=key) for key in KEYS if key)
            for name in WORKERS:
                workers.register(session, WorkerFacts(name, "box", 7, ("cpu", "control")))
        for key in keys[:2]:
            self.plan(self.submit(key, priority), 2, due=True)

    @rule(move=st.sampled_from(MOVES), data=st.data())
    def step(self, move: str, data: st.DataObject) -> None:
        """One rule for all moves: of many, Hypothesis leaves most out of each example, and few moves would meet."""
        if move in ("finish", "stumble") and not self.claims:
            move = "claim"
        getattr(self, move)(data)

    # --- jobs ---

    def live_jobs(self) -> list[str]:
        return [job_id for job_id, job in self.model.jobs.items() if not job.ended]

    def more_work(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 3))
        if len(self.live_jobs()) < data.draw(st.sampled_from([1, 3])):
            job_id = self.submit(data.draw(st.sampled_from(KEYS)), data.draw(PRIORITIES))
            self.plan(job_id, count, due=True)
        elif self.live_jobs():
            self.plan(data.draw(st.sampled_from(self.live_jobs())), count, due=data.draw(st.booleans()))

    def submit(self, key: str, priority: int) -> str:
        with self.move() as session:
            job = jobs.create_job(session, new_job(key_id=key or None, priority=priority)).job
            self.model.jobs[job.id] = ModelJob(key, priority)
            self.model.wake(job.id)
        return job.id

    def plan(self, job_id: str, count: int, *, due: bool) -> None:
        """What an advance does, which looks before whether the job has ended."""
        new = NewCandidate("seed", "builtin", "cpu", delay_s=0 if due else 3600)
        with self.move() as session:
            job = jobs.fetch_job(session, job_id)
            for candidate in candidates.add_candidates(session, job, [new] * count):
                self.model.add(Unit(WorkKind.PROPOSE, "cpu", job_id, candidate, job.priority, due=due))

    def operate(self, data: st.DataObject) -> None:
        what = data.draw(st.sampled_from(["drain", "ripen", "stop"]))
        if what == "drain":
            self.drain_or_resume(data.draw(st.sampled_from(WORKERS)))
        elif what == "ripen":
            self.ripen()
        else:
            job_id = data.draw(st.sampled_from(list(self.model.jobs)))
            self.stop(
                job_id, data.draw(st.sampled_from([StopReason.CANCELLED, StopReason.EXHAUSTED, StopReason.ERROR]))
            )

    def stop(self, job_id: str, why: StopReason) -> None:
        """A cancel asks for the end, the others are it. Also of a job that has ended."""
        with self.move() as session:
            if why is StopReason.CANCELLED:
                assert jobs.cancel_job(session, job_id) == self.model.cancel(job_id)
            else:
                ended = self.model.finish_job(job_id, error=why is StopReason.ERROR)
                assert jobs.finish_job(session, job_id, why) == ended

    # --- claims ---

    def claim(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(WORKERS))
        how = data.draw(st.sampled_from(["next", "next", "twice", "by id"]))
        if how == "by id":
            self.claim_by_id(data.draw(st.sampled_from(sorted(self.model))), owner)
        elif how == "twice":
            self.claim_twice_at_once(data.draw(QUEUES), commits=data.draw(st.booleans()))
        else:
            self.claim_next(data.draw(QUEUES), owner)

    def claim_next(self, queues: tuple[str, ...], owner: str) -> None:
        with self.move() as session:
            claim = ledger.claim_next(session, queues, owner)
            self.claimed(claim, [] if owner in self.model.draining else self.model.next(queues))

    def claim_twice_at_once(self, queues: tuple[str, ...], *, commits: bool) -> None:
        """The second transaction begins and ends while the first, which may roll back, has its row locked."""
        owners = [name for name in WORKERS if name not in self.model.draining]
        if not owners:
            return
        with self.sessions() as first:
            one = ledger.claim_next(first, queues, owners[0])
            held = self.model[one.id] if one else None
            assert held in (self.model.next(queues) or [None])
            may_be = self.model.next(queues, without=held)
            with self.sessions.begin() as second:
                second.execute(text("SET LOCAL lock_timeout = '5s'"))
                two = ledger.claim_next(second, queues, owners[-1])
            if commits:
                first.commit()
                self.claimed(one, [held] if held else [])
        self.claimed(two, may_be)

    def claim_by_id(self, work_id: str, owner: str) -> None:
        unit = self.model[work_id]
        with self.move() as session:
            self.claimed(ledger.claim(session, work_id, owner), [unit] if self.model.claimable(unit) else [])

    def claimed(self, claim: Claim | None, may_be: list[Unit]) -> None:
        if claim is None:
            assert may_be == []
            return
        unit = self.model[claim.id]
        assert unit in may_be
        self.model.take(unit, claim.token)
        assert claim.attempt == unit.attempt
        self.claims.append(claim)

    # --- what holders do, those that no longer hold included ---

    def a_claim(self, data: st.DataObject) -> Claim:
        """Mostly one that holds. A zombie may go on after its lease ran out, but not after its work was taken back."""
        holding = [claim for claim in self.claims if self.look_up(claim)[1]]
        zombie = data.draw(st.sampled_from([False, False, False, True]))
        return data.draw(st.sampled_from(self.claims if zombie or not holding else holding))

    def finish(self, data: st.DataObject) -> None:
        claim = self.a_claim(data)
        if claim.kind is WorkKind.PROPOSE:
            self.propose(claim, data.draw(st.sampled_from(["new", "new", "same", "reject"])))
        else:
            self.settle(claim)

    def stumble(self, data: st.DataObject) -> None:
        what = data.draw(st.sampled_from(["give back", "lapse", "renew"]))
        claim = self.a_claim(data)
        if what == "give back":
            self.give_back(claim, counts=data.draw(st.booleans()), due=data.draw(st.sampled_from([True, True, False])))
        elif what == "lapse":
            self.expire(claim)
        else:
            self.renew(claim)

    def renew(self, claim: Claim) -> None:
        unit, held = self.look_up(claim)
        with self.move() as session:
            cancelled = held and self.model.jobs[unit.job].cancelled
            assert ledger.renew(session, claim) == ledger.Renewal(held, cancelled)
            unit.lapsed = unit.lapsed and not held

    def settle(self, claim: Claim) -> None:
        unit, held = self.look_up(claim)
        with self.fenced_unless(held), self.move() as session:
            if claim.kind is WorkKind.EVALUATE:
                candidates.store_evaluation(session, claim, report(speedup=1.0 + self.number))
            else:
                ledger.settle(session, claim)
            self.model.end(unit, "done")
            if claim.kind is WorkKind.EVALUATE:
                self.model.evaluated(unit)

    def propose(self, claim: Claim, how: str) -> None:
        unit, held = self.look_up(claim)
        job = self.model.jobs[unit.job]
        self.number += 1
        source = "same" if how == "same" else f"x = {self.number}"
        with self.fenced_unless(held), self.move() as session:
            if how == "reject":
                candidates.reject_candidate(session, claim, "no_code")
            else:
                candidates.store_proposal(session, claim, Proposed(source, source_hash=source), queue="cpu")
            self.model.end(unit, "done")
            if how != "reject" and source not in job.sources:
                job.sources.add(source)
                self.model.add(Unit(WorkKind.EVALUATE, "cpu", unit.job, unit.candidate, job.priority))
            self.model.wake(unit.job)

    def give_back(self, claim: Claim, *, counts: bool, due: bool) -> None:
        unit, held = self.look_up(claim)
        with self.fenced_unless(held), self.move() as session:
            recovery.give_back(session, claim, "it broke", delay_s=0 if due else 3600, count_attempt=counts)
            self.model.give_back(unit, counts=counts, due=due)

    def look_up(self, claim: Claim) -> tuple[Unit, bool]:
        unit = self.model[claim.id]
        return unit, unit.token == claim.token

    # --- what happens to leases and delays ---

    def expire(self, claim: Claim) -> None:
        unit, held = self.look_up(claim)
        with self.move() as session:
            ended = text("UPDATE work SET lease_expires_at = now() - interval '1 s' WHERE lease_token = :token")
            session.execute(ended, {"token": claim.token})
            unit.lapsed = unit.lapsed or held

    def beat(self, data: st.DataObject) -> None:
        """Take back, wake, ring again."""
        with self.move() as session:
            reaped = recovery.reap(session)
            assert (reaped.requeued, reaped.dead) == self.model.reap()
        with self.move() as session:
            idle = self.model.idle()
            assert recovery.wake_idle_jobs(session) == idle
            for job_id in idle:
                self.model.wake(job_id)
        with self.sessions.begin() as session:
            rung = {doorbell.work_id for doorbell in ledger.to_ring(session, 0, per_queue=1000)}
        assert rung == {unit.id for unit in self.model.values() if unit.state == "queued" and unit.due}

    def ripen(self) -> None:
        """All delays are over."""
        with self.sessions.begin() as session:
            session.execute(text("UPDATE work SET not_before = now() WHERE not_before > now()"))
        for unit in self.model.values():
            unit.due = True

    def drain_or_resume(self, worker: str) -> None:
        drains = worker not in self.model.draining
        with self.sessions.begin() as session:
            assert workers.drain_or_resume(session, worker, WorkerState.DRAINING if drains else WorkerState.ACTIVE)
        (self.model.draining.add if drains else self.model.draining.discard)(worker)

    # --- the comparison ---

    @contextmanager
    def fenced_unless(self, held: bool) -> Iterator[None]:
        if held:
            yield
        else:
            with pytest.raises(Fenced):
                yield

    @contextmanager
    def move(self) -> Iterator[Session]:
        """One transaction. What it queued is then matched, in order, with what the model says it must have queued."""
        with self.sessions.begin() as session:
            yield session
            session.execute(text("UPDATE work SET max_attempts = :n WHERE max_attempts <> :n"), {"n": ATTEMPTS})
            made = [row for row in session.execute(_ROWS) if row.id not in self.model]
            for row, unit in zip(made, self.model.fresh, strict=True):
                unit.id = row.id
            self.model.update({unit.id: unit for unit in self.model.fresh})
            self.model.fresh.clear()

    @invariant()
    def every_row_is_as_the_model_says(self) -> None:
        with self.sessions.begin() as session:
            rows = {row.id: tuple(row)[1:] for row in session.execute(_ROWS)}
            found = session.execute(_JOBS).all()
        assert rows == {
            u.id: (u.kind, u.queue, u.job, u.candidate, u.priority, u.state, u.attempt, u.returned, u.token)
            for u in self.model.values()
        }
        assert all(row.version == row.events + 1 for row in found)
        assert all(len(row.evaluated) == len(set(row.evaluated)) for row in found), "two evaluations of record"
        assert {row.id: (row.cancel_requested, row.ended, set(row.evaluated)) for row in found} == {
            job_id: (job.cancelled, job.ended, job.evaluated) for job_id, job in self.model.jobs.items()
        }

    def teardown(self) -> None:
        empty(str(self.sessions.kw["bind"].url.render_as_string(hide_password=False)))


@pytest.mark.parametrize(
    ("examples", "steps"), [(8, 50), pytest.param(60, 60, marks=pytest.mark.exhaustive)], ids=["quick", "long"]
)
def test_the_ledger_does_what_a_dictionary_does(sessions: Sessions, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: LedgerMachine(sessions),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            # Without shrinking: that takes minutes, and the moves of a failure are printed as they were.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
