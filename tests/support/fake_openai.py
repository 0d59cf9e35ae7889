"""A real HTTP server that speaks OpenAI's chat completions and embeddings, and answers from a script.

In a test:

    with FakeOpenAI([Answer(content="..."), Answer(status=429, headers={"Retry-After": "2"})]) as server:
        ... api_base=server.base_url ...
    server.requests        # what was asked, in order

As a process, for a worker in another one (SIGTERM or Ctrl-C ends it; the first line on stdout is JSON with `base_url`):

    python -m tests.support.fake_openai --port 0 --script script.json

A script is a JSON list of answers, each an object with the fields of `Answer`. Answers are used in order, each once
unless it says `"repeat": true`; one with a `match` only for requests whose text matches that regular expression. A
request that finds no answer gets a 400 that says so. An answer to a request for embeddings has the vectors of its
script, or for each text one that follows from its hash. `GET /requests` tells what was asked so far.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server does with one request."""

    content: str | None = None
    source: str | None = None
    """A candidate: it is put into a fenced block after a plan of one line."""
    source_file: str | None = None
    """The same from a file."""
    finish_reason: str = "stop"
    refusal: str | None = None
    usage: Mapping[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 1000, "completion_tokens": 500})
    vectors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of texts to embed, by a regular expression that they match; others get one that follows from their hash."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    """Sent as it is (a string) or as JSON, in place of a completion."""
    error: str | None = None
    """The message of an OpenAI error body."""
    error_code: str | None = None
    hang_s: float = 0.0
    """Wait so long before answering. Closing the server ends the wait and the connection."""
    match: str | None = None
    repeat: bool = False

    def text(self) -> str | None:
        """The message's content."""
        source = Path(self.source_file).read_text() if self.source_file else self.source
        return self.content if source is None else f"A kernel from the script.\n\n```python\n{source}```\n"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked."""

    path: str
    body: Mapping[str, Any]
    authorization: str | None

    @property
    def text(self) -> str:
        """All messages, or all texts to embed, one after another."""
        return "\n".join([*(str(message["content"]) for message in self.body.get("messages", [])), *self.texts])

    @property
    def texts(self) -> list[str]:
        """The texts to embed."""
        return [str(text) for text in self.body.get("input", [])]


class FakeOpenAI:
    """The server and its script. Use it as a context manager, or `start` and `close` it."""

    def __init__(self, answers: Iterable[Answer] = (), port: int = 0) -> None:
        self.requests: list[Request] = []
        self._answers = list(answers)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def base_url(self) -> str:
        """What a client takes as its `api_base`."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def start(self) -> None:
        """Serve, in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving and let go of hanging requests."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> FakeOpenAI:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(self, request: Request) -> Answer:
        """The script's next answer for the request."""
        with self._lock:
            self.requests.append(request)
            for index, answer in enumerate(self._answers):
                if answer.match is None or re.search(answer.match, request.text):
                    return answer if answer.repeat else self._answers.pop(index)
        return Answer(status=400, error="the script has no answer for this request")

    def wait(self, seconds: float) -> bool:
        """Wait; true when the server is closing and nobody listens any more."""
        return self._closing.wait(seconds)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
                request = Request(self.path, body, self.headers.get("Authorization"))
                answer = fake.answer(request)
                if answer.hang_s and fake.wait(answer.hang_s):
                    self.close_connection = True
                    return
                with suppress(ConnectionError):  # a client that gave up, or was killed, waits for nothing
                    self._send(answer.status, _payload(answer, request), answer.headers)

            def do_GET(self) -> None:
                asked = [{"path": r.path, "body": r.body} for r in fake.requests]
                self._send(200, json.dumps(asked).encode(), {})

            def _send(self, status: int, payload: bytes, headers: Mapping[str, str]) -> None:
                self.send_response_only(status)
                own = {"Date": self.date_time_string(), "Content-Type": "application/json"}
                for name, value in {**own, **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet: tests read stderr."""

        return Handler


def _payload(answer: Answer, request: Request) -> bytes:
    if answer.body is not None:
        return answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
    if answer.status >= 400:
        message = answer.error or f"scripted status {answer.status}"
        kind = "server_error" if answer.status >= 500 else "invalid_request_error"
        return json.dumps({"error": {"message": message, "type": kind, "code": answer.error_code}}).encode()
    if request.path.endswith("/embeddings"):
        return json.dumps(_embeddings(answer, request)).encode()
    completion: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": request.body.get("model", ""),
        "choices": [
            {
                "index": 0,
                "finish_reason": answer.finish_reason,
                "message": {"role": "assistant", "content": answer.text(), "refusal": answer.refusal},
            }
        ],
    }
    if answer.usage is not None:
        total = answer.usage.get("prompt_tokens", 0) + answer.usage.get("completion_tokens", 0)
        completion["usage"] = {"total_tokens": total, **answer.usage}
    return json.dumps(completion).encode()


def _embeddings(answer: Answer, request: Request) -> dict[str, Any]:
    vectors = [_vector(answer, text) for text in request.texts]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    found: dict[str, Any] = {"object": "list", "model": request.body.get("model", ""), "data": data}
    if answer.usage is not None:
        tokens = answer.usage.get("prompt_tokens", 0)
        found["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
    return found


def _vector(answer: Answer, text: str) -> list[float]:
    for pattern, vector in answer.vectors.items():
        if re.search(pattern, text):
            return list(vector)
    return [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:8]]


def main() -> None:
    """Serve a script until a signal comes."""
    parser = argparse.ArgumentParser(description="An OpenAI-compatible server that answers from a script")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--script", type=Path, required=True, help="JSON: a list of answers")
    arguments = parser.parse_args()
    answers = [Answer(**answer) for answer in json.loads(arguments.script.read_text())]
    done = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        done.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with FakeOpenAI(answers, arguments.port) as server:
        sys.stdout.write(json.dumps({"base_url": server.base_url}) + "\n")
        sys.stdout.flush()
        done.wait()


if __name__ == "__main__":
    main()
