"""An agent that thinks: it takes every question that is open, and answers each half a minute later."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.economy.variants import Variant
from cli.client import ApiError, Client, Question, Unreachable

POLL_S = 0.5


class Agent(threading.Thread):
    """Submits a job and answers its questions until it is told to stop."""

    def __init__(
        self, url: str, body: Mapping[str, Any], answers: Iterator[Variant], think_s: float, stop: threading.Event
    ) -> None:
        super().__init__(name="agent", daemon=True)
        self._url, self._body, self._answers = url, body, answers
        self._think_s, self._stop_it = think_s, stop
        self.answered: set[str] = set()
        """The candidates that are answers of its."""
        self.controls: set[str] = set()
        """Those of them that are its control."""

    def run(self) -> None:
        """Ask, and leave each question to a timer."""
        with Client(self._url) as client:
            job_id = client.submit(self._body)["id"]
            while not self._stop_it.wait(POLL_S):
                try:
                    questions = client.ask(job_id, limit=6)
                except (ApiError, Unreachable):
                    continue
                for question in questions:
                    timer = threading.Timer(self._think_s, self._tell, (job_id, question, next(self._answers)))
                    timer.daemon = True
                    timer.start()

    def _tell(self, job_id: str, question: Question, answer: Variant) -> None:
        if self._stop_it.is_set():
            return
        self.answered.add(question["candidate_id"])
        if answer.is_control:
            self.controls.add(question["candidate_id"])
        with Client(self._url) as client:
            client.tell(job_id, question["candidate_id"], question["token"], source=answer.source)
