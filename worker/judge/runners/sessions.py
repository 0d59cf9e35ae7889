"""The judge's handle on a runner: start it, speak to it, turn everything it can do wrong into a fault."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from worker.judge.runners import bell_reader, placing, quiet
from worker.judge.runners.freezing import Freezer, Stillness
from worker.judge.verdict import Fault, Verdict
from worker.languages import FORMS
from worker.runner import protocol, sandbox

LOG_BYTES = 64 << 10
"""What is kept of a candidate's output: the tail. The rest is read and dropped, so that 1 GB of it costs nothing."""

_TAKING_S = 20.0
"""For a runner to take the answer to a build that it asked for: one that reads none fills the socket, and the judge
would wait for it as long as it lives."""

_TURN_S = 300.0
"""What a runner may do with a device that it has alone: time all that a matrix product may be made of, at most."""

_MEANWHILE_S = 0.05
_TO_SLEEP_S = 1e-3
"""Between two looks at what there is to do while an answer is awaited."""

Builder = Callable[[str, str, list[str]], str]
"""(language, source, flags) -> path of the artefact; raises BuildFailed."""


class BuildFailed(Exception):
    """The compiler refused the candidate's source. The message is the compiler's own, without local paths."""


class Zygote:
    """The process that forks runners, for any thread. Restarted by its owner when it dies.

    To be started by a thread that lives as long as it: the kernel ends it with that.
    """

    def __init__(self, environment: dict[str, str], level: str | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "worker.runner.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),  # the judge's own standard output carries reports
        )
        theirs.close()
        self._asking = threading.Lock()
        hello, _fds = protocol.receive_message(ours, timeout_s=120)
        self.level: str = level or hello["level"]

    def spawn(self, confinement: sandbox.Confinement, environment: dict[str, str]) -> Runner:
        """Fork a confined runner."""
        control, control_theirs = socket.socketpair()
        bell, bell_theirs = socket.socketpair()
        output, output_theirs = os.pipe()
        message = {"op": "spawn", "confinement": confinement.to_json(), "environment": environment}
        fds = (control_theirs.fileno(), bell_theirs.fileno(), output_theirs)
        try:
            pid = self._ask(message, fds)["pid"]
        finally:
            control_theirs.close()
            bell_theirs.close()
            os.close(output_theirs)
        return Runner(self, pid, control, bell, output, confinement.limits)

    def reap(self, pid: int) -> int:
        """End a runner and return its exit code."""
        return int(self._ask({"op": "reap", "pid": pid})["code"])

    def close(self) -> None:
        """End the zygote and everything that it forked."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        try:
            with self._asking:
                protocol.send_message(self._socket, message, fds)
                answer, _fds = protocol.receive_message(self._socket, timeout_s=60)
        except (protocol.PeerClosed, protocol.PeerTimeout) as gone:
            raise Fault(Verdict.INFRA_ERROR, "the zygote died") from gone
        return answer


class Output:
    """What a runner prints. A thread reads all of it and keeps the tail."""

    def __init__(self, read_end: int) -> None:
        os.set_blocking(read_end, False)
        self._pipe = os.fdopen(read_end, "rb", buffering=0)
        self._tail = b""
        self._reading = threading.Lock()
        self.reader = threading.Thread(target=self._drain, daemon=True)
        self.reader.start()

    def tail(self) -> bytes:
        """With what lies in the pipe now: a verdict may come before the thread had its turn."""
        self._read()
        return self._tail

    def _drain(self) -> None:
        waiting = select.poll()
        waiting.register(self._pipe, select.POLLIN)
        while self._read():
            waiting.poll()
        with self._reading:
            self._pipe.close()

    def _read(self) -> bool:
        """Read what the pipe holds; False at its end."""
        with self._reading:
            if self._pipe.closed:
                return False
            data = self._pipe.read(LOG_BYTES)  # as much as a pipe holds: a flood costs one wake-up for each 64 KiB
            self._tail = (self._tail + (data or b""))[-LOG_BYTES:]
            return data != b""


class Runner:
    """One untrusted process. Every method raises Fault when it dies, hangs, lies or fails."""

    def __init__(
        self, zygote: Zygote, pid: int, control: socket.socket, bell: socket.socket, output: int, limits: sandbox.Limits
    ) -> None:
        self._zygote, self._pid, self._control, self._bell, self._limits = zygote, pid, control, bell, limits
        self._output = Output(output)
        self.build: Builder | None = None
        self.build_s = 0.0
        self.builds: list[tuple[str, str, list[str], str]] = []
        """(language, source, flags, path of the artefact) of all that was built for it."""
        self._runner_pid: int | None = None
        self._open = True
        self._freezer = Freezer(pid)
        self._answered = False
        self._bell_inode: int | None = None
        """Of the bell's other end, once it was asked for; 0 where the kernel does not tell."""
        self.off_the_bell = False
        """Whether it has left the bell because a call failed, and takes messages again."""
        self.meanwhile: Callable[[], float] | None = None
        """Done before a message and now and then while its answer is awaited: the seconds for which it kept the runner
        from working."""
        self.turn: Callable[[], contextlib.AbstractContextManager[object]] | None = None
        """Has the device alone for it when it asks for that, as runners of baselines may."""
        self.away: Callable[[], contextlib.AbstractContextManager[object]] | None = None
        """Entered while something is built for it: it needs no device then."""

    def ask(self, message: dict[str, Any], timeout_s: float, fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """Send a control message and wait for its answer, serving builds and turns on the device meanwhile (their time
        is not counted)."""
        self._refuse_when_dead()
        self.give_way()
        try:
            protocol.send_message(self._control, message, fds, timeout_s)
            deadline = time.monotonic() + timeout_s
            while True:
                deadline += self._stopped_s(deadline)
                answer, extra = protocol.receive_message(self._control, timeout_s=deadline - time.monotonic())
                protocol.close_all(extra)
                if "build" not in answer and "turn" not in answer:
                    return self._result(answer)
                started = time.monotonic()
                if "build" in answer:
                    with self.away() if self.away is not None else contextlib.nullcontext():
                        reply = self._built(answer)
                    self._hand_over(reply)
                else:
                    self._give_turn()
                deadline += time.monotonic() - started
        except (protocol.PeerClosed, protocol.PeerTimeout, protocol.ProtocolError) as broken:
            raise self._fault(broken, timeout_s, str(message["op"])) from broken

    def ring(
        self,
        command: int,
        timeout_s: float,
        *,
        flags: int = 0,
        count: int = 0,
        lead: int = 0,
        first: int = 0,
        calls: int = 0,
        number: int = 0,
        spin_s: float = 0.0,
        then: Callable[[], None] | None = None,
    ) -> float:
        """Ring the bell, wait for the answer (so long without sleeping), and return the seconds between on the judge's
        clock. `then` is called when the bell has been rung."""
        self._refuse_when_dead()
        try:
            protocol.refuse_surplus(self._bell)
            start = time.perf_counter()
            protocol.ring_bell(
                self._bell, command, flags=flags, count=count, lead=lead, first=first, calls=calls, number=number
            )
            if then is not None:
                then()
            answer = protocol.await_bell(self._bell, timeout_s, spin_s=spin_s)
            elapsed_s = time.perf_counter() - start
            if answer == protocol.OK:
                return elapsed_s
            failure, extra = protocol.receive_message(self._control, timeout_s=5)
            self.off_the_bell = True
        except (protocol.PeerClosed, protocol.PeerTimeout, protocol.ProtocolError) as broken:
            raise self._fault(broken, timeout_s, "call") from broken
        protocol.close_all(extra)
        raise self._failure(failure)

    @property
    def artefacts(self) -> list[Path]:
        """What was built for it."""
        return [Path(path) for _language, _source, _flags, path in self.builds]

    @property
    def own_artefacts(self) -> list[Path]:
        """Those whose functions are all the candidate's: an extension has what torch's headers define as well."""
        return [Path(path) for language, _source, _flags, path in self.builds if language not in FORMS]

    @contextlib.contextmanager
    def handed_builds(self) -> Iterator[tuple[list[list[Any]], tuple[int, ...]]]:
        """All that was built, as (language, source, flags, name), and open descriptors of the artefacts in that order:
        the cache that they lie in is closed to every runner. Raises ValueError for more than one message carries."""
        if len(self.builds) > protocol.MAX_FDS:
            raise ValueError(f"{len(self.builds)} artefacts are more than one message carries")
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(Path(path).open("rb")) for *_what, path in self.builds]
            named = [[*what, Path(path).name] for *what, path in self.builds]
            yield named, tuple(file.fileno() for file in files)

    @property
    def dead(self) -> bool:
        """Whether the process has ended."""
        return not self._open

    def give_way(self) -> None:
        """Let a timing that waits go first: for a judge that computes for long while it lends its runner the device."""
        if self.meanwhile is not None:
            self.meanwhile()

    def freeze(self) -> None:
        """Stop it and all its threads until `thaw`: nothing of it runs while others are timed."""
        self._freezer.freeze()

    def thaw(self) -> None:
        """Let it run again."""
        self._freezer.thaw()

    @property
    def stillness(self) -> Stillness:
        """Whether it was still in its stops, all that have ended."""
        return self._freezer.stillness

    def ran_s(self) -> float:
        """Seconds of processor time that it and all its descendants have used."""
        return sum(quiet.ran_s(pid) for pid in quiet.runner_tree(self._pid))

    def spread_workers(self) -> int:
        """On a CPU: bind its OpenMP workers to cores of their own; how many were found. It has to rest."""
        return placing.spread(self._pid, sorted(os.sched_getaffinity(self._pid)))

    @property
    def process(self) -> int | None:
        """The process that runs the candidate, as the judge's system knows it; None when it has ended."""
        if self._runner_pid is None:
            self._runner_pid = quiet.runner_of(self._pid)
        return self._runner_pid

    def asleep(self) -> bool:
        """Whether its main thread sleeps at the bell, or soon does; yes also where the machine does not tell."""
        if self._bell_inode is None:
            self._bell_inode = bell_reader.peer_inode(self._bell) or 0
        if not self._bell_inode or self.process is None:
            return True
        until = time.perf_counter() + _TO_SLEEP_S
        try:
            while bell_reader.socket_waited_on(self.process) != self._bell_inode:
                if time.perf_counter() > until:
                    return False
        except OSError:
            return True
        return True

    def waited_s(self) -> float:
        """Seconds for which its threads were ready but had no core, since it started."""
        return quiet.waited_s(self.process) if self.process is not None else 0.0

    def log(self) -> str:
        """The tail of what it printed."""
        return self._output.tail().decode(errors="replace")

    def close(self) -> int:
        """End it and everything that it started; returns the exit code."""
        if not self._open:
            return 0
        self._open = False
        self._freezer.thaw()
        self._control.close()
        self._bell.close()
        return self._zygote.reap(self._pid)

    def _stopped_s(self, deadline: float) -> float:
        """Wait for an answer, doing what there is to do `meanwhile`; the seconds that the runner lost by it."""
        lost_s = 0.0
        while self.meanwhile is not None and time.monotonic() < deadline + lost_s:
            if select.select([self._control], [], [], _MEANWHILE_S)[0]:
                break
            lost_s += self.meanwhile()
        return lost_s

    def _refuse_when_dead(self) -> None:
        if not self._open:
            raise Fault(Verdict.LAUNCH_ERROR, "the runner has ended", self.log())

    def _result(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._answered = True
        if isinstance(answer.get("done"), dict):
            return dict(answer["done"])
        raise self._failure(answer)

    def _built(self, request: dict[str, Any]) -> Path | str:
        """Build what was asked for: the artefact, or the compiler's message."""
        started = time.monotonic()
        language, source, flags = request.get("build"), request.get("source"), request.get("flags")
        well_formed = isinstance(language, str) and isinstance(source, str) and isinstance(flags, list)
        if self.build is None or not well_formed:
            raise Fault(Verdict.SUSPICIOUS, "a malformed build request", self.log())
        try:
            path = Path(self.build(str(language), str(source), [str(flag) for flag in flags or []]))
        except BuildFailed as failed:
            return str(failed)[:16_000]
        finally:
            self.build_s += time.monotonic() - started
        self.builds.append((str(language), str(source), [str(flag) for flag in flags or []], str(path)))
        return path

    def _hand_over(self, built: Path | str) -> None:
        """The artefact's bytes as a descriptor: no runner can read the cache, which holds other candidates' work."""
        if isinstance(built, str):
            protocol.send_message(self._control, {"error": built}, (), _TAKING_S)
            return
        with built.open("rb") as artefact:
            protocol.send_message(self._control, {"name": built.name}, (artefact.fileno(),), _TAKING_S)

    def _give_turn(self) -> None:
        """The device, until the runner says that it has done with it."""
        if self.turn is None:
            raise Fault(Verdict.SUSPICIOUS, "a candidate's runner asked for a turn on the device", self.log())
        with self.turn():
            protocol.send_message(self._control, {"turn": True}, (), _TAKING_S)
            answer, extra = protocol.receive_message(self._control, _TURN_S)
            protocol.close_all(extra)
        if answer != {"turn": False}:
            reason = f"the runner did not end its turn on the device but sent {str(answer)[:200]}"
            raise Fault(Verdict.SUSPICIOUS, reason, self.log())

    def _failure(self, answer: dict[str, Any]) -> Fault:
        kinds = answer.get("failed")
        if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) for kind in kinds):
            return Fault(Verdict.SUSPICIOUS, "the runner sent a message that is not part of the protocol", self.log())
        message = str(answer.get("message", ""))[:2000]
        log = (str(answer.get("trace", "")) + self.log())[-LOG_BYTES:]
        return Fault(_verdict_of(kinds, message), f"{kinds[0][:80]}: {message}", log)

    def _fault(self, broken: Exception, timeout_s: float, doing: str) -> Fault:
        """Why the conversation ended: a timeout, a protocol break, or the exit code of the dead runner."""
        if isinstance(broken, protocol.PeerTimeout):
            self.close()
            return Fault(Verdict.TIMEOUT, f"no answer to {doing!r} within {timeout_s:.0f} s", self.log())
        if isinstance(broken, protocol.ProtocolError):
            self.close()
            return Fault(Verdict.SUSPICIOUS, f"the runner broke the protocol: {broken}", self.log())
        code = self.close()
        if code == sandbox.EXIT_SETUP and self._answered:
            code = 1  # the sandbox was up: the candidate chose this number
        return _fault_of_exit(code, self._limits, doing, self.log())


def _fault_of_exit(code: int, limits: sandbox.Limits, doing: str, log: str) -> Fault:
    if code == sandbox.EXIT_SETUP:
        return Fault(Verdict.INFRA_ERROR, f"the sandbox could not be set up: {log.strip()[-300:]}", log)
    if code == sandbox.EXIT_MEMORY:
        return Fault(Verdict.LAUNCH_ERROR, f"used more than {limits.memory_bytes / 2**30:.0f} GiB of memory", log)
    if code == sandbox.EXIT_DEADLINE:
        return Fault(Verdict.TIMEOUT, f"lived longer than {limits.wall_s:.0f} s", log)
    if code in (128 + 11, 128 + 7, 128 + 4):  # SIGSEGV, SIGBUS, SIGILL
        return Fault(Verdict.ILLEGAL_ACCESS, f"killed by signal {code - 128} during {doing!r}", log)
    if code > 128:
        return Fault(Verdict.LAUNCH_ERROR, f"killed by signal {code - 128} during {doing!r}", log)
    return Fault(Verdict.LAUNCH_ERROR, f"exited with code {code} during {doing!r}", log)


_ILLEGAL = ("illegal memory access", "misaligned address", "illegal instruction", "invalid program counter",
            "illegal address", "unspecified launch failure")  # fmt: skip
_BUILD_KINDS = {"BuildError", "SyntaxError", "CompilationError", "CompileTimeAssertionFailure"}


def _verdict_of(kinds: list[str], message: str) -> Verdict:
    if _BUILD_KINDS & set(kinds):
        return Verdict.BUILD_ERROR
    if any(text in message for text in _ILLEGAL):
        return Verdict.ILLEGAL_ACCESS
    return Verdict.INCORRECT if "ContractError" in kinds else Verdict.LAUNCH_ERROR


def runner_environment(threads: int, *, gpu: bool) -> dict[str, str]:
    """A runner's whole environment: no secrets, no paths of ours, caches in its private scratch ($SCRATCH)."""
    environment = {
        "PATH": "/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "USER": "nobody",  # asked for by torch, and a runner's user has no line in /etc/passwd
        "OMP_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "CUDA_CACHE_DISABLE": "0",
    }
    folders = {
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TORCH_EXTENSIONS_DIR": "extensions",
    }
    environment |= {name: f"$SCRATCH/{folder}" for name, folder in folders.items()}
    if gpu:
        inherited = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES")
        environment |= {name: os.environ[name] for name in inherited if name in os.environ}
    return environment


STEADY_ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(64 << 30), "MALLOC_TOP_PAD_": str(64 << 20)}
"""Settings that glibc reads once, at a process's start. Without them a large output is mapped and unmapped by every
call, and the page faults (not the kernel) are timed: eager residual + RMSNorm at 4096 x 1024 dropped from 15-17 ms to
1.5-3.3 ms when they were set (measured)."""

_SPINS = "4000"
"""How often an idle OpenMP thread looks for work before it sleeps: 50 us, enough from one operator to the next. GNU's
default of 300,000 is 4 ms, and there are two runtimes in a runner, torch's and that of compiled C++. On two cores the
idle threads of one kept the other's from their core, after each thaw too: calls of 1.6 ms took 4 to 19 ms in a third
of the samples, with an interval of 0.54 to 1.83; now 1.42 to 1.72 (measured)."""


def zygote_environment(project_root: Path, threads: int) -> dict[str, str]:
    """The zygote's environment, and so what every runner's allocator does and how many threads torch has there."""
    gpu_names = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CUDA_HOME")
    return (
        {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join([str(project_root), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": str(threads),
            "GOMP_SPINCOUNT": _SPINS,
        }
        | STEADY_ALLOCATOR
        | {name: os.environ[name] for name in gpu_names if name in os.environ}
    )
