"""What is broken on purpose in the ledger, its locks and its schema, one at a time, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
VARIABLE: Final = "KERNELWRIGHT_TESTS_MUTATION"
"""Names the mutation that a test process plants."""
_NAME: Final = "-- name: "


class Stale(Exception):
    """The text that a mutation replaces is not there any more: look at what became of it, and mutate that."""

    def __init__(self, mutation: str, where: str) -> None:
        super().__init__(f"{mutation}: its text is no longer in {where}. {self.__doc__}")


@dataclass(frozen=True, slots=True)
class Mutation:
    """Replaces `old` by `new` wherever it stands in `file` (`db/ledger.sql finish` is one named statement of it).

    Without a file `new` is DDL, run on the migrated schema. `caught_by`: tests of which each must fail.
    """

    name: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    @property
    def path(self) -> Path:
        return ROOT / self.file.partition(" ")[0]

    @property
    def statement(self) -> str:
        return self.file.partition(" ")[2]

    def apply(self, source: str) -> str:
        """The mutated text of the file or of the statement. Raises Stale."""
        if self.old not in source:
            raise Stale(self.name, self.file)
        return source.replace(self.old, self.new)

    def check(self) -> None:
        """Raises Stale when there is nothing to replace."""
        if self.file:
            source = self.path.read_text(encoding="utf-8")
            if self.statement:
                _, found, source = source.partition(f"{_NAME}{self.statement}\n")
                source = source.partition(_NAME)[0]
            self.apply(source)


def _of(file: str, *tests: str) -> tuple[str, ...]:
    return tuple(f"tests/integration/db/{file}.py::{test}" for test in tests)


def _sql(name: str, statement: str, old: str, new: str, caught_by: tuple[str, ...]) -> Mutation:
    return Mutation(name, f"db/ledger.sql {statement}", old, new, caught_by)


def _schema(name: str, ddl: str, *tests: str) -> Mutation:
    return Mutation(name, "", "", ddl, _of("test_backstops", *tests))


_LATE = "test_every_other_late_move_is_refused"
_TOKEN = "AND lease_token = :token "
_ATTEMPTS = ("attempt >= max_attempts", "attempt > max_attempts")
_REFUSED = "test_the_schema_itself_refuses_what_would_count_twice"

MUTATIONS: Final = (
    # Who holds the work.
    _sql("finish without the token", "finish", _TOKEN, "", _of("test_ledger", f"{_LATE}[finish]")),
    _sql(
        "renew without the token", "renew", "AND work.lease_token = :token ", "", _of("test_ledger", f"{_LATE}[renew]")
    ),
    _sql("hold without the token", "held", _TOKEN, "", _of("test_ledger", f"{_LATE}[start]")),
    _sql("give back without the token", "give_back", _TOKEN, "", _of("test_ledger", f"{_LATE}[give_back]")),
    _sql(
        "store an evaluation without the token",
        "store_evaluation",
        _TOKEN,
        "",
        _of("test_ledger", "test_a_late_writer_is_fenced_and_its_result_is_not_stored"),
    ),
    _sql(
        "reap without looking at the lease again",
        "reap",
        " AND lease_expires_at < now()",
        "",
        _of("test_races", "test_a_lease_that_is_renewed_while_the_reaper_waits_is_left_alone"),
    ),
    _sql(
        "reap leases that hold",
        "expired",
        " AND lease_expires_at < now()",
        "",
        _of("test_races", "test_a_reaper_does_not_lock_jobs_whose_leases_hold"),
    ),
    _sql(
        "a claim leaves the lease as it was",
        "claim",
        "lease_expires_at = now() + make_interval(secs => :lease_s)",
        "lease_expires_at = now()",
        _of("test_recovery", "test_an_expired_lease_is_taken_back_and_rung"),
    ),
    # Who may claim it.
    _sql(
        "claim what is not queued",
        "claim",
        "AND ready.state = 'queued' ",
        "",
        _of("test_ledger", "test_a_duplicate_doorbell_finds_nothing"),
    ),
    _sql(
        "claim before it is due",
        "claim",
        " AND ready.not_before <= now()",
        "",
        _of("test_races", "test_a_doorbell_that_rings_too_early_finds_nothing"),
    ),
    _sql(
        "claim the next before it is due",
        "claim_next",
        " AND ready.not_before <= now()",
        "",
        _of("test_ledger", "test_delayed_work_waits"),
    ),
    _sql(
        "claim for a job that is being cancelled",
        "claim",
        "AND jobs.cancel_requested",
        "AND false",
        _of("test_races", "test_a_doorbell_of_a_job_that_is_being_cancelled_finds_nothing"),
    ),
    _sql(
        "claim the next for a job that is being cancelled",
        "claim_next",
        "SELECT NOT jobs.cancel_requested",
        "SELECT true",
        _of("test_ledger", "test_work_of_a_job_that_is_being_cancelled_is_not_claimed_but_its_advance_is"),
    ),
    _sql(
        "claim while draining",
        "claim_next",
        "WHERE NOT EXISTS (SELECT FROM workers WHERE workers.id = :owner"
        " AND workers.state IN ('draining', 'quarantined'))",
        "",
        _of("test_workers", "test_a_draining_worker_gets_no_work_and_stays_draining"),
    ),
    _sql(
        "the next waits for a claim that is being made",
        "claim_next",
        " SKIP LOCKED",
        "",
        _of("test_races", "test_a_claim_passes_over_what_another_is_claiming"),
    ),
    _sql(
        "a claim waits for a claim that is being made",
        "claim",
        " SKIP LOCKED",
        "",
        _of("test_races", "test_a_second_doorbell_does_not_wait_for_the_first"),
    ),
    _sql(
        "no turns between keys",
        "claim_next",
        "ORDER BY priority DESC, running, served_at NULLS FIRST, share_of",
        "ORDER BY priority DESC, share_of",
        _of("test_fairness", "test_one_worker_serves_the_keys_in_turns_and_each_keys_work_in_its_order"),
    ),
    _sql(
        "no priorities",
        "claim_next",
        "ORDER BY priority DESC, running",
        "ORDER BY running",
        _of("test_fairness", "test_priority_goes_before_turns_and_each_queue_has_its_own"),
    ),
    # What becomes of it.
    _sql(
        "one attempt more after lost leases",
        "reap",
        *_ATTEMPTS,
        _of(
            "test_recovery",
            "test_an_evaluation_that_kills_its_worker_three_times_is_an_infra_error_and_the_job_goes_on",
        ),
    ),
    _sql(
        "one attempt more after failures",
        "give_back",
        *_ATTEMPTS,
        _of("test_recovery", "test_counted_failures_use_up_the_attempts"),
    ),
    _sql(
        "faults of the machine for ever",
        "give_back",
        "returned >= :max_returns",
        "false",
        _of("test_recovery", "test_a_fault_of_the_machine_costs_no_attempt_for_a_few_times"),
    ),
    _sql(
        "the reaper cancels the advance that it takes back",
        "drop_queued_twin",
        "AND state = 'queued' ",
        "",
        _of("test_recovery", "test_an_expired_advance_replaces_the_one_that_was_queued_meanwhile"),
    ),
    _sql(
        "a worker does not hear of a cancel",
        "renew",
        "RETURNING jobs.cancel_requested",
        "RETURNING false",
        _of("test_ledger", "test_renewing_extends_the_lease_and_tells_of_a_cancel"),
    ),
    _sql(
        "running work outlives its job",
        "cancel_outstanding",
        "IN ('queued', 'running')",
        "IN ('queued')",
        _of("test_recovery", "test_burying_work_of_a_finished_job_changes_nothing[evaluate]"),
    ),
    _sql(
        "an advance queued twice",
        "enqueue",
        "ON CONFLICT (job_id) WHERE kind = 'advance' AND state = 'queued' DO NOTHING",
        "",
        _of("test_ledger", "test_a_job_has_one_queued_advance_and_may_get_another_while_one_runs"),
    ),
    _sql(
        "bells that ring all the time",
        "to_ring",
        "AND (due.rung_at IS NULL OR due.rung_at < now() - make_interval(secs => :older_than_s))",
        "",
        _of("test_ledger", "test_lost_doorbells_are_rung_again_and_no_other"),
    ),
    # Locks, counts and money.
    Mutation(
        "no lock of the job",
        "db/events.py",
        "SELECT pg_advisory_xact_lock(hashtextextended(:job_id, 0))",
        "SELECT :job_id",
        _of("test_races", "test_two_plans_of_one_job_number_their_candidates_one_after_the_other"),
    ),
    Mutation(
        "no lock of the reaper",
        "db/recovery.py",
        "pg_try_advisory_xact_lock(hashtextextended('kernelwright reaper', 0))",
        "true",
        _of("test_recovery", "test_one_reaper_works_at_a_time"),
    ),
    Mutation(
        "an event without a new version",
        "db/events.py",
        "version = version + 1",
        "version = version",
        _of("test_events", "test_a_reader_that_pages_while_many_write_misses_nothing"),
    ),
    Mutation(
        "an idempotency key that the second request takes over",
        "db/creating.sql create",
        "WHERE idempotency_keys.created_at <= now() - make_interval(secs => :ttl_s)",
        "",
        _of("test_races", "test_the_second_of_two_requests_with_one_key_waits_for_the_first"),
    ),
    Mutation(
        "an idempotency key that never ends",
        "db/creating.sql known",
        "AND created_at > now() - make_interval(secs => :ttl_s)",
        "",
        _of("test_jobs", "test_another_body_under_the_key_is_refused_until_the_key_is_a_day_old"),
    ),
    Mutation(
        "a call beyond the budget",
        "db/budgets.py",
        "job.cost_usd >= job.budget_usd",
        "job.cost_usd > job.budget_usd",
        _of("test_budgets", "test_a_job_starts_no_call_beyond_a_cap[fields0-record0-usd]"),
    ),
    Mutation(
        "a call booked twice",
        "db/llm_calls.py",
        "if call.state != LlmCallState.STARTED:",
        "if False:",
        _of("test_llm_calls", "test_a_call_is_booked_once_however_often_it_is_finished"),
    ),
    Mutation(
        "two answers of record to one question",
        "db/llm_calls.py",
        "LlmCallState.FINISHED if earlier is None else LlmCallState.SUPERSEDED",
        "LlmCallState.FINISHED",
        _of("test_llm_calls", "test_two_attempts_that_both_paid_are_both_booked_and_the_first_answer_stands"),
    ),
    # The schema, should a statement be wrong one day.
    _schema(
        "no unique evaluation",
        "ALTER TABLE evaluations DROP CONSTRAINT uq_evaluations_candidate_id",
        f"{_REFUSED}[evaluation]",
    ),
    _schema("no unique finished call", "DROP INDEX uq_llm_calls_finished", f"{_REFUSED}[finished call]"),
    _schema(
        "no unique work of a kind",
        "ALTER TABLE work DROP CONSTRAINT uq_work_candidate_id_kind",
        f"{_REFUSED}[work of a kind]",
    ),
    _schema(
        "no unique idempotency key",
        "ALTER TABLE idempotency_keys DROP CONSTRAINT pk_idempotency_keys",
        f"{_REFUSED}[idempotency key]",
    ),
    _schema("no unique source", "DROP INDEX uq_candidates_job_id_source_hash", f"{_REFUSED}[source of a job]"),
    _schema("running without a token", "ALTER TABLE work DROP CONSTRAINT ck_work_lease", f"{_REFUSED}[lease]"),
)
