"""What is remembered of a job for polls, and when it is forgotten."""

from __future__ import annotations

import time

import pytest

from api import glances
from api.glances import Glance, Glances

NOW = Glance('"7"', {"ETag": '"7"'})


class Ear:
    """Whether changes are heard."""

    listening = True


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def known(ear: Ear) -> Glances:
    return Glances(lambda: ear.listening)


def test_what_was_read_is_known_until_the_job_changes(known: Glances) -> None:
    assert known.of("job") is None
    known.remember("job", known.reading("job"), NOW)
    known.changed("another")
    assert known.of("job") == NOW
    known.changed("job")
    assert known.of("job") is None


def test_what_was_read_before_a_change_is_not_kept_after_it(known: Glances) -> None:
    mark = known.reading("job")
    known.changed("job")
    known.remember("job", mark, NOW)
    assert known.of("job") is None


def test_of_two_that_read_at_once_the_later_is_kept(known: Glances) -> None:
    first, second = known.reading("job"), known.reading("job")
    known.remember("job", first, Glance('"6"', {}))
    assert known.of("job") is None
    known.remember("job", second, NOW)
    assert known.of("job") == NOW


def test_while_nobody_listens_nothing_is_remembered_or_known(known: Glances, ear: Ear) -> None:
    known.remember("job", known.reading("job"), NOW)
    ear.listening = False
    assert known.of("job") is None
    known.remember("other", known.reading("other"), NOW)
    ear.listening = True
    assert known.of("other") is None
    known.changed(None)  # what happened meanwhile
    assert known.of("job") is None


def test_a_lost_notification_costs_as_long_as_it_was_good_for(known: Glances) -> None:
    known.remember("job", known.reading("job"), NOW, good_for_s=0.05)
    assert known.of("job") == NOW
    time.sleep(0.06)
    assert known.of("job") is None
    known.remember("job", known.reading("job"), NOW, good_for_s=0.0)
    assert known.of("job") is None


def test_it_does_not_grow_without_end(known: Glances, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glances, "MOST", 3)
    for number in range(10):
        known.remember(f"job{number}", known.reading(f"job{number}"), NOW)
        known.reading(f"read{number}")
    assert len(known._known) <= 3
    assert len(known._reading) <= 3
