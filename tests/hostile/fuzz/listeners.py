"""The judge's side of a conversation with a runner that is not there: what a forged message meets, what comes of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker.judge import ahead
from worker.judge.certificate.system import sanitizers
from worker.judge.checks import provenance, settings
from worker.judge.runners.sessions import BuildFailed, Runner
from worker.judge.verdict import Fault, Verdict
from worker.runner import protocol, sandbox
from worker.runner.protocol import MAX_DEPTH, MAX_MESSAGE_BYTES

Listener = Callable[[Runner], object]


class NoZygote:
    """Reaps what never ran."""

    def reap(self, _pid: int) -> int:
        return 0


class _Bench:
    """A workbench of which only the runner is asked."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def run(self, *_what: object) -> None:
        """Nothing."""


def _provenance(runner: Runner) -> object:
    listed = runner.ask({"op": "provenance.end"}, 1)
    provenance._number(listed, "events"), provenance._number(listed, "span_us")
    return provenance._entries(listed, frozenset({"kernel"}), inductor=False)


def _settings(runner: Runner) -> object:
    found, now = settings.read(runner), {"random state": "4f2a", "gradients": True}
    return [name for name in found if found[name] != now.get(name)]


LISTENERS: dict[str, Listener] = {
    "plain": lambda runner: runner.ask({"op": "run"}, 1),
    "settings": _settings,
    "provenance": _provenance,
    "ahead": lambda runner: ahead.built_kernels(_Bench(runner), "candidate", "sm_90a"),  # type: ignore[arg-type]
    "sanitize": lambda runner: sanitizers._errors(sanitizers._checked(runner.ask({"op": "x"}, 1))["summary"]),
}
"""Who reads answers, each with its own idea of what they hold."""


class Conversation:
    """A real `Runner` over real sockets, whose other end is ours."""

    def __init__(self, artefact: Path) -> None:
        control, self.control = socket.socketpair()
        bell, self.bell = socket.socketpair()
        output, self.output = os.pipe()
        self.runner = Runner(NoZygote(), 1 << 22, control, bell, output, sandbox.Limits())  # type: ignore[arg-type]
        self.runner.build = self._build
        self._artefact = artefact

    def _build(self, language: str, source: str, _flags: list[str]) -> str:
        if language != "cpp" or "x" not in source:
            raise BuildFailed(source[:20_000])
        return str(self._artefact)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_what: object) -> None:
        self.control.close()
        self.bell.close()
        os.close(self.output)
        self.runner.close()
        self.runner._output.reader.join()

    def says(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """What the runner sends, and that it sends no more."""
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        if descriptors and data:
            socket.send_fds(self.control, [data[:1]], list(descriptors))
            data = data[1:]
        self.control.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while data:
                data = data[self.control.send(data) :]
        self.control.shutdown(socket.SHUT_WR)


def true_answer(data: bytes) -> bool:
    """The oracle, written apart from the protocol: whether the first message that is no build request is an answer."""
    while len(data) >= 4:
        length = int.from_bytes(data[:4], "big")
        body, data = data[4 : 4 + length], data[4 + length :]
        if length > MAX_MESSAGE_BYTES or len(body) < length:
            return False
        try:
            found = json.loads(body)
            strict = "NaN" not in repr(json.loads(body, parse_constant=lambda _name: "NaN"))
        except (ValueError, RecursionError):
            return False
        if not isinstance(found, dict) or not strict or _depth(found) > MAX_DEPTH + 1:
            return False
        if "build" not in found:
            return isinstance(found.get("done"), dict)
        if not (isinstance(found["build"], str) and isinstance(found.get("source"), str)
                and isinstance(found.get("flags"), list)):  # fmt: skip
            return False
    return False


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        each, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(each, dict | list):
            waiting += [(inner, depth + 1) for inner in (each.values() if isinstance(each, dict) else each)]
    return deepest


class Tally:
    """What came of the messages."""

    def __init__(self, artefact: Path) -> None:
        """`artefact`: what every build gives."""
        self.verdicts: Counter[str] = Counter()
        self.crashes: list[str] = []
        self.forgeries: list[str] = []
        self.artefact = artefact

    def told(self, listener: str, data: bytes, descriptors: tuple[int, ...]) -> None:
        """One message for one listener."""
        with Conversation(self.artefact) as conversation:
            conversation.says(data, descriptors)
            try:
                LISTENERS[listener](conversation.runner)
            except Fault as fault:
                self.verdicts[str(fault.verdict)] += 1
                if fault.verdict in (Verdict.OK, Verdict.INFRA_ERROR):
                    self.forgeries.append(f"{listener}: {fault.verdict}: {data[:200]!r}")
            except Exception as crash:  # noqa: BLE001 - what this looks for
                self.crashes.append(f"{listener}: {type(crash).__name__}: {crash}: {data[:200]!r}")
            else:
                self.verdicts["answered"] += 1
                if not true_answer(data):
                    self.forgeries.append(f"{listener}: accepted {data[:200]!r}")

    def rung(self, before: bytes, after: bytes, then: bytes) -> None:
        """Bell answers: some that wait before the bell was rung, some after it, and then a control message."""
        with Conversation(self.artefact) as conversation:
            if before:
                conversation.bell.send(before)
            answering = threading.Thread(target=_answers, args=(conversation, after))
            answering.start()
            conversation.says(then)
            try:
                conversation.runner.ring(protocol.CALL, 2.0 if after else 0.02)  # 20 ms for nobody who will answer
            except Fault as fault:
                self.verdicts[str(fault.verdict)] += 1
            except Exception as crash:  # noqa: BLE001 - what this looks for
                self.crashes.append(f"bell: {type(crash).__name__}: {crash}")
            else:
                self.verdicts["rung"] += 1
                if before or after[:1] != protocol.OK:
                    self.forgeries.append(f"bell: accepted {before!r} {after!r}")
            finally:
                answering.join()


def _answers(conversation: Conversation, answer: bytes) -> None:
    """Answer the bell as soon as it is rung."""
    with contextlib.suppress(OSError):
        if select.select([conversation.bell], [], [], 2.0 if answer else 0.05)[0]:
            conversation.bell.recv(64)
            conversation.bell.send(answer)
