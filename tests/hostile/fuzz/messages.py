"""Hostile messages: random bytes, mutated valid ones, wrong types, deep nesting, huge lengths, replays. Seeded."""

from __future__ import annotations

import json
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

ESCAPES = "\x1b]0;owned\x07\x1b[2J<script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x00\ud800"

ANSWERS: dict[str, dict[str, Any]] = {
    "settings": {"random state": "4f2a", "float32 precision": "highest", "gradients": True, "default dtype": "float32"},
    "provenance": {"entries": [["aten::relu", False, 3, 120.5], ["own:kernel", True, 1, 2.0]], "events": 4,
                   "span_us": 130.0},
    "recorded": {"kernels": [{"name": "kernel", "registers": 32, "stack_bytes": 0, "shared_bytes": 0, "num_warps": 4}],
                 "error": None},
    "sanitize": {"code": 0, "report": "ERROR SUMMARY: 0 errors", "summary": ["ERROR SUMMARY: 0 errors"], "saved": True},
    "empty": {},
}  # fmt: skip
"""What an honest runner answers to some questions."""


def framed(body: bytes, length: int | None = None) -> bytes:
    """A message on the wire, with another length than its own where one is given."""
    return struct.pack("!I", len(body) if length is None else length) + body


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()


class Forge:
    """Makes one hostile message after another."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._makers: list[Callable[[], bytes]] = [
            self.noise, self.mutated, self.mutated, self.wrong_length, self.nested, self.not_numbers, self.twice,
            self.odd_text, self.failure, self.failure, self.build, self.answer, self.answer, self.answer, self.pair,
            self.foreign, self.large,
        ]  # fmt: skip

    def message(self) -> bytes:
        """The bytes that the runner writes to its control socket."""
        return self.rng.choice(self._makers)()

    def noise(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((0, 1, 3, 4, 5, 8, 64, 300)))

    def valid(self) -> bytes:
        return _text({"done": self.rng.choice(list(ANSWERS.values()))})

    def mutated(self) -> bytes:
        """A valid message with some bytes turned, dropped, doubled or moved."""
        data = bytearray(framed(self.valid()))
        for _each in range(self.rng.randint(1, 6)):
            at = self.rng.randrange(len(data) + 1)
            match self.rng.randrange(4):
                case 0 if at < len(data):
                    data[at] ^= 1 << self.rng.randrange(8)
                case 1:
                    del data[at : at + self.rng.randint(1, 8)]
                case 2:
                    data[at:at] = data[at : at + self.rng.randint(1, 16)]
                case _:
                    data[at:at] = self.rng.randbytes(self.rng.randint(1, 4))
        return bytes(data)

    def wrong_length(self) -> bytes:
        body = self.valid()
        near = len(body) + self.rng.randint(-4, 4)
        return framed(body, self.rng.choice((0, 1, max(0, near), 4 << 20, (4 << 20) + 1, 1 << 31, 0xFFFFFFFF)))

    def nested(self) -> bytes:
        depth = self.rng.choice((8, 30, 34, 200, 500, 900, 990, 5_000, 40_000))
        left, right = self.rng.choice((("[", "]"), ('{"a":', "}")))
        inner = left * depth + ("1" if left != "[" else "") + right * depth
        place = self.rng.choice(('{"done":{"entries":%s}}', '{"failed":["E"],"message":%s}', '{"failed":%s}',
                                '{"build":"cpp","source":%s,"flags":[]}', '{"done":{"default dtype":%s}}'))  # fmt: skip
        return framed((place % inner).encode())

    def not_numbers(self) -> bytes:
        number = self.rng.choice(
            ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 5000, "1" * 400, "-0", "1e-400")
        )
        place = self.rng.choice(('{"done":{"entries":[["k",false,%s,1.0]],"events":1}}', '{"done":%s}',
                                 '{"done":{"entries":[["k",false,1,%s]],"span_us":%s}}',
                                 '{"done":{"kernels":[{"name":"k","registers":%s}]}}'))  # fmt: skip
        return framed(place.replace("%s", number).encode())

    def twice(self) -> bytes:
        body = self.rng.choice(('{"done":{},"done":1}', '{"done":1,"done":{}}', '{"failed":["E"],"done":{}}',
                                '{"build":"cpp","done":{}}', '{"done":{},"failed":[]}',
                                '{"build":1,"build":"cpp"}'))  # fmt: skip
        return framed(body.encode())

    def odd_text(self) -> bytes:
        encoding = self.rng.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-7"))
        body = json.dumps({"failed": ["Ünïcode"], "message": "é" * self.rng.randint(1, 40)}, ensure_ascii=False)
        return framed(body.encode(encoding))

    def failure(self) -> bytes:
        kinds = self.rng.choice(
            ([], [1], ["E", 2], "E", {}, None, ["E" * 10_000], [ESCAPES], ["BuildError", []], [None])
        )
        message = self.rng.choice(("out of memory", ESCAPES, "x" * 100_000, None, 5, ["a"], {"b": ESCAPES}))
        return framed(_text({"failed": kinds, "message": message, "trace": self.rng.choice((ESCAPES, 1, None, [[]]))}))

    def build(self) -> bytes:
        language = self.rng.choice(("cpp", "cuda", "triton", "../../x", "", ESCAPES, 5, None, ["cpp"], "machine_code"))
        source = self.rng.choice(("int x;", ESCAPES, "", 7, None, "\x00", "#" * 100_000))
        flags = self.rng.choice(([], ["-O3"], "-O3", [1, None, {}], [["-O3"]], None, ["-fplugin=x"] * 200, [ESCAPES]))
        asked = framed(_text({"build": language, "source": source, "flags": flags}))
        return asked * self.rng.choice((1, 1, 2, 5)) + self.rng.choice((b"", framed(self.valid())))

    def answer(self) -> bytes:
        """An answer of the right form with values of the wrong kind in it."""
        value = json.loads(json.dumps(self.rng.choice(list(ANSWERS.values()))))
        for _each in range(self.rng.randint(1, 3)):
            value = self._changed(value)
        return framed(_text({"done": value}))

    def _changed(self, value: Any) -> Any:
        odd = self.rng.choice(
            (None, True, -1, 1 << 70, 1e308, -0.0, "", ESCAPES, [], {}, [[]], {"": {}}, "9" * 5000, 0.5)
        )
        if isinstance(value, dict) and value and self.rng.random() < 0.9:
            key = self.rng.choice(list(value))
            if self.rng.random() < 0.15:
                return {name: each for name, each in value.items() if name != key} | {ESCAPES: odd}
            return value | {key: self._changed(value[key])}
        if isinstance(value, list) and value and self.rng.random() < 0.8:
            at = self.rng.randrange(len(value))
            return [*value[:at], self._changed(value[at]), *value[at + self.rng.randint(0, 1) :]]
        return odd

    def pair(self) -> bytes:
        """More than was asked for: replays, and answers in advance."""
        return framed(self.valid()) * self.rng.randint(2, 4)

    def foreign(self) -> bytes:
        return self.rng.choice((
            framed(pickle.dumps({"done": {}})), b"GET / HTTP/1.1\r\n\r\n", framed(b""), framed(b"null"), framed(b"[]"),
            framed(b'"done"'), framed(b"1"), framed(b"{}"), framed(b'{"done"'), framed(b'{"done":{}}\x00'),
            framed(b"{'done': {}}"), framed(b'{"done":{}} {"done":{}}'), framed(b"\xff\xfe{}"), framed(b'{"ok":true}'),
            framed(_text({"verdict": "ok", "speedup": 100.0})),
            framed(_text({"done": {"verdict": "ok", "speedup": 9}})),
        ))  # fmt: skip

    def large(self) -> bytes:
        size = self.rng.choice((1_000, 1_000, 1_000, 20_000))
        return framed(_text({"done": {"entries": [["k" * 50, False, 1, 1.0]] * (size // 70), "events": size}}))
