"""Where a stopped process is: read from a real one, and from the text of a real map."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.judge.checks.sampled import Census, crowded, least_share, nobody
from worker.judge.runners import quiet
from worker.judge.runners.pointers import Artefacts, Process, Region, Whose, executable, is_neutral
from worker.judge.symbols import places

_MAPS = """\
00400000-0041f000 r--p 00000000 fe:00 260811                             /usr/bin/python3.11
0041f000-006d2000 r-xp 0001f000 fe:00 260811                             /usr/bin/python3.11
7f00a000-7f00b000 rwxp 00000000 00:00 0
7f00c000-7f00d000 r-xp 00001000 00:31 77                                 /tmp/5-a b.so (deleted)
7ffd1000-7ffd2000 rw-p 00000000 00:00 0                                  [stack]
"""
_SPIN = 'extern "C" void spin() { for (volatile long k = 0;; k = k + 1) {} }\nint main() { spin(); }\n'
_OVERWRITE = """
import ctypes, ctypes.util, mmap
library = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
at = ctypes.cast(library.lgamma, ctypes.c_void_p).value
page = at & -mmap.PAGESIZE
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), 2 * mmap.PAGESIZE, 7) == 0
ctypes.memmove(at, b"\\xeb\\xfe", 2)  # jump to itself
print("spinning", flush=True)
library.lgamma()
"""


@pytest.fixture(scope="module")
def spinner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    folder = tmp_path_factory.mktemp("spinner")
    (folder / "spin.cpp").write_text(_SPIN)
    subprocess.run(["g++", "-O1", "-o", str(folder / "spin"), str(folder / "spin.cpp")], check=True)
    return folder / "spin"


@pytest.fixture
def running(spinner: Path) -> Iterator[int]:
    process = subprocess.Popen([str(spinner)])
    while Path(f"/proc/{process.pid}/exe").stat().st_ino != spinner.stat().st_ino:
        pass
    os.sched_yield()
    yield process.pid
    process.kill()
    process.wait()


def test_only_executable_regions_count_and_names_may_hold_spaces() -> None:
    assert executable(_MAPS) == [
        Region(0x41F000, 0x6D2000, 0x1F000, "/usr/bin/python3.11"),
        Region(0x7F00A000, 0x7F00B000, 0, ""),
        Region(0x7F00C000, 0x7F00D000, 0x1000, "/tmp/5-a b.so (deleted)"),
    ]


@pytest.mark.parametrize(
    ("path", "neutral"),
    [
        ("/usr/bin/python3.11", True),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", True),
        ("/usr/lib/x86_64-linux-gnu/libm.so.6", True),
        ("/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30", True),
        ("/lib64/ld-linux-x86-64.so.2", True),
        ("/usr/lib/python3.11/lib-dynload/_ctypes.cpython-311-x86_64-linux-gnu.so", True),
        ("[vdso]", True),
        ("/usr/lib/x86_64-linux-gnu/libopenblas.so.0", False),
        ("/usr/lib/x86_64-linux-gnu/libmkl_core.so", False),
        ("/elsewhere/libm.so.6", False),
        ("/elsewhere/usr/libc.so.6", False),
        ("", False),
    ],
)
def test_neutral_is_a_runtime_in_a_folder_that_no_candidate_writes(path: str, neutral: bool) -> None:
    assert is_neutral(path) is neutral


def test_torchs_own_runtime_is_neutral_and_its_kernels_are_not() -> None:
    import torch

    folder = Path(torch.__file__).parent / "lib"
    assert is_neutral(str(folder / "libc10.so"))
    assert not is_neutral(str(folder / "libtorch_cpu.so"))


def test_vector_mathematics_is_neutral_wherever_it_lies() -> None:
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    functions = places(library, r"Sleef_\w*")
    assert len(functions) > 100
    assert all(is_neutral(str(library), place.start) for place in functions)
    assert not is_neutral(str(library), functions[0].start - 4096)
    assert not is_neutral(str(library), functions[-1].stop + 4096)


def test_the_loop_of_waiting_threads_is_neutral_and_what_they_work_at_is_not() -> None:
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    (waiting,) = places(library, "thread_main")
    assert is_neutral(str(library), waiting.start) and is_neutral(str(library), waiting.stop - 1)
    work = places(library, r"pthreadpool_thread_parallelize_\w*|torch::autograd::Engine::thread_main")
    assert work and not any(is_neutral(str(library), place.start) for place in work)


def test_code_that_was_written_over_a_runtimes_is_foreign(tmp_path: Path) -> None:
    script = tmp_path / "overwrite.py"
    script.write_text(_OVERWRITE)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"spinning\n"
        found = _found(process.pid, Artefacts([]))
        process.kill()
    assert found[Whose.FOREIGN] >= 5


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def _found(pid: int, built: Artefacts) -> Counter[Whose]:
    """Who was found in ten stops, between which the process has had a core."""
    found: Counter[Whose] = Counter()
    for _stop in range(10):
        os.kill(pid, signal.SIGSTOP)
        found.update(whose for whose, _name in Process(pid, built).threads())
        ran_s = quiet.ran_s(pid)
        os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 0.1  # one that sleeps has nothing to run
        while quiet.ran_s(pid) == ran_s and time.monotonic() < deadline:
            time.sleep(1e-3)
    return found


def test_a_thread_in_what_was_built_is_in_its_own_code(running: int, spinner: Path) -> None:
    assert _found(running, Artefacts([spinner]))[Whose.OWN] >= 5


def test_the_same_thread_is_in_foreign_code_when_something_else_was_built(
    running: int, spinner: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(spinner.read_bytes()[::-1])
    found = _found(running, Artefacts([other]))
    assert found[Whose.OWN] == 0
    assert found[Whose.FOREIGN] >= 5


def test_a_thread_in_a_system_call_is_nowhere() -> None:
    process = subprocess.Popen(["sleep", "60"])
    while "S (sleeping)" not in Path(f"/proc/{process.pid}/status").read_text() or "sleep" not in _name(process.pid):
        pass
    found = _found(process.pid, Artefacts([]))
    process.kill()
    process.wait()
    assert found[Whose.FOREIGN] == found[Whose.OWN] == 0


def test_a_share_is_told_only_from_enough_samples() -> None:
    assert least_share(7, 0) == 0.0
    assert least_share(60, 4) > 0.7
    assert least_share(6, 58) < 0.1
    assert least_share(0, 64) == 0.0


def test_what_glue_explains_does_not_count() -> None:
    census = Census(ran_s=0.1, calls=100)
    for _stop in range(50):
        census.add([(Whose.OWN, "a.so"), (Whose.FOREIGN, "libtorch_cpu.so"), (Whose.NEUTRAL, "libm.so.6")])
    assert census.own == census.foreign.total() == 50
    assert census.beyond(0.0) == 50
    assert census.beyond(100.0) == pytest.approx(45)  # 100 calls of 100 us are 10 ms of 100, a tenth of 50 stops
    assert census.beyond(2000.0) == 0.0


def test_own_code_is_late_only_between_calls() -> None:
    census = Census()
    census.add([(Whose.OWN, "a.so"), (Whose.OWN, "a.so")])
    census.add([(Whose.NEUTRAL, "libc.so.6")], over=True)
    assert census.late == 0
    census.add([(Whose.OWN, "a.so"), (Whose.OWN, "a.so")], over=True)
    assert (census.late, census.own) == (1, 4)


def test_more_is_wanted_while_most_of_it_is_foreign() -> None:
    census = Census(own=15, stops=64)
    assert census.wants_more(0.0)  # hardly any
    census.own = 16
    assert not census.wants_more(0.0)
    census.foreign["libtorch_cpu.so"] = 16
    assert census.wants_more(0.0)
    census.stops = 4 * 64
    assert not census.wants_more(0.0)


def test_foreign_samples_that_glue_explains_are_few() -> None:
    census = Census(claimed_s=400e-6, calls=1000, ran_s=1.0, stops=4 * 64)
    census.foreign["libtorch_cpu.so"] = 17
    assert not census.wants_more(0.0)
    assert census.beyond(36.0) == pytest.approx(7.784)
    assert census.wants_more(36.0)


def test_many_more_are_wanted_where_own_code_should_have_been_found() -> None:
    census = Census(claimed_s=40e-6, calls=1000, ran_s=0.4, stops=4 * 64)
    assert census.expected == pytest.approx(25.6)
    assert not census.missing(foreign=0.0)  # nobody else was found either
    assert not census.wants_more(0.0)
    census.foreign["libtorch_cpu.so"] = 2
    assert census.missing(foreign=1.5)
    assert census.wants_more(0.0)
    census.own = 4
    assert not census.missing(foreign=5.0)
    assert not census.wants_more(0.0)
    census.own, census.claimed_s = 0, 4e-6  # a call that is over at once: nobody need be found
    assert not census.missing(foreign=1.0)
    census.waited_s = 0.1
    assert census.waited == pytest.approx(0.25)


def test_what_glue_would_explain_is_a_doubt_when_it_is_found_at_many_stops() -> None:
    census = Census(claimed_s=400e-6, calls=1000, ran_s=1.0, stops=256, waited_s=0.5, at_once=True)
    assert census.hidden(beyond=0.0, unlisted=17.0)
    assert not Census(claimed_s=400e-6, calls=1000, ran_s=1.0, stops=256, at_once=True).hidden(0.0, 17.0)
    assert not census.hidden(beyond=0.0, unlisted=6.0)
    assert census.hidden(beyond=2.0, unlisted=6.0)
    census.own = 20
    assert not census.hidden(beyond=0.0, unlisted=17.0)


def test_own_code_that_is_never_found_is_a_doubt() -> None:
    assert nobody(own=0, expected=256.0)
    assert not nobody(own=2, expected=220.0)
    assert not nobody(own=0, expected=30.0)


def test_a_thread_that_waits_for_a_core_is_counted_as_such() -> None:
    census = Census()
    census.add([(Whose.UNSETTLED, ""), (Whose.OWN, "a.so"), (Whose.UNSETTLED, "")])
    assert (census.unsettled, census.own, census.foreign.total()) == (2, 1, 0)


def test_the_copy_of_a_result_is_nobodys_work() -> None:
    census = Census()
    census.add([(Whose.FOREIGN, "libtorch_cpu.so")], over=True)
    assert census.foreign.total() == 0
    census.add([(Whose.FOREIGN, "libtorch_cpu.so")])
    assert census.foreign.total() == 1


def test_in_a_crowd_more_foreign_samples_than_own_ones_are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1e6, 1e6, 1e6))
    assert crowded(own=2, foreign=6)
    assert not crowded(own=6, foreign=2)
    assert not crowded(own=0, foreign=3)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert not crowded(own=2, foreign=6)
