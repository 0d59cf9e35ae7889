"""Forged messages from real runners in their sandbox, and candidates that forge messages under the whole judge."""

from __future__ import annotations

from tests.hostile.fuzz.messages import Forge
from tests.hostile.ground import Ground
from worker.judge.verdict import Fault, Verdict

_SAYS = """
import os, socket
sockets = []
for name in os.listdir("/proc/self/fd"):
    try:
        if os.readlink(f"/proc/self/fd/{{name}}").startswith("socket:"):
            sockets.append(int(name))
    except OSError:
        pass
control, bell = (socket.socket(fileno=os.dup(each)) for each in sorted(sockets)[:2])
bell.setblocking(False)
{where}.sendall({data!r})
{then}
from torch import nn
class ModelNew(nn.Module):
    pass
"""


_ENDS = (("control", ""), ("control", "os._exit(0)"), ("bell", ""), ("control", "1 / 0"))


def from_processes(ground: Ground, count: int, seed: int) -> list[str]:
    """So many runners, each of which says something forged while it is loaded; what was wrong with what came of it."""
    forge, wrong = Forge(seed), []
    for _each in range(count):
        where, then = forge.rng.choice(_ENDS)
        runner = ground.runner()
        message = {"op": "load", "subject": "forger", "class": "ModelNew", "compile": None}
        try:
            runner.ask({"op": "settings", "advance": False}, 30)
            source = _SAYS.format(where=where, data=forge.message(), then=then)
            runner.ask(message | {"source": source}, 3)
            runner.ask({"op": "settings", "advance": False}, 3)
            runner.ring(ord("C"), 1)
            wrong.append(f"an idle runner answered the bell after {source[-400:]!r}")
        except Fault as fault:
            if fault.verdict in (Verdict.OK, Verdict.INFRA_ERROR):
                wrong.append(f"{fault.verdict}: {fault.reason[:200]}")
        except Exception as crash:  # noqa: BLE001 - what this looks for
            wrong.append(f"{type(crash).__name__}: {crash}")
        finally:
            runner.close()
    return wrong


_MODEL = """
import json, os, socket, struct, sys, threading
import torch
from torch import nn
sockets = sorted(int(n) for n in os.listdir("/proc/self/fd")
                 if os.path.exists(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}").startswith("socket:"))
control, bell = (socket.socket(fileno=os.dup(each)) for each in sockets[:2])
def say(message):
    body = json.dumps(message).encode()
    control.sendall(struct.pack("!I", len(body)) + body)
class ModelNew(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(SIZE))
        AT_START
    def forward(self, x, *others):
        AT_CALL
        return torch.zeros_like(x)
AT_LOAD
"""
_SAID = {
    "done-in-advance": {"AT_LOAD": 'for _each in range(2000):\n    say({"done": {}})'},
    "done-at-every-call": {"AT_CALL": 'say({"done": {}})'},
    "verdict": {"AT_CALL": 'say({"done": {"verdict": "ok", "passed": True, "speedup": 9.0}})'},
    "report-line": {"AT_CALL": 'os.write(1, b\'\\n{"report": {"verdict": "ok", "speedup": 9.0}}\\n\')'},
    "bell-in-advance": {"AT_LOAD": "bell.send(bytes(4096))"},
    "bell-at-every-call": {"AT_CALL": "bell.send(bytes(1))"},
    "bell-and-done": {"AT_CALL": 'bell.send(bytes(1))\n        say({"done": {}})'},
    "talking-thread": {"AT_START": 'threading.Thread(target=lambda: [say({"done": {}}) for _ in range(5000)], '
                                   "daemon=True).start()"},
    "no-kinds": {"AT_CALL": 'say({"failed": []})'},
    "deep-failure": {"AT_CALL": 'body = b\'{"failed":["E"],"message":\' + b"[" * 600 + b"]" * 600 + b"}"\n'
                                '        control.sendall(struct.pack("!I", len(body)) + body)'},
    "infra-error-by-exit-code": {"AT_CALL": "os._exit(252)"},
    "infra-error-at-load": {"AT_LOAD": "os._exit(252)"},
    "builds-without-reading": {"AT_LOAD": 'for _each in range(40):\n'
                                          '    say({"build": "cpp", "source": "#error " + "x" * 9000, "flags": []})'},
    "escapes": {"AT_CALL": 'raise RuntimeError("\\x1b]0;owned\\x07<script>alert(1)</script>\\x00\\ud800" * 3)'},
}  # fmt: skip
FORGERS = tuple(_SAID)


def forger(name: str, size: int) -> str:
    """A candidate whose results are all zero and that says what it should not."""
    source = _MODEL.replace("SIZE", str(size))
    for place in ("AT_LOAD", "AT_START", "AT_CALL"):
        source = source.replace(place, _SAID[name].get(place, "pass"))
    return source
