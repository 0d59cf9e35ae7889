"""What g++ made of a C++ source: the loops of the machine code, their instructions, and why some were not vectorised.

The source is built once more with two flags that change no instruction (`-g1` for line numbers, and the vectoriser's
remarks), taken apart with objdump, and answered as JSON. Addresses are therefore those of the library that was judged:
where its threads were found says which loop is hot (`worker.profile.loops`).

Not a kernel language: a candidate cannot ask for it. Built like one, so that compiler and objdump meet hostile source
inside the build sandbox only.

The remarks are `-fopt-info-vec-optimized-missed` and not `-all`: the notes in between are 90 % of the text and say what
the vectoriser thought, not what it did. Compiling takes as long as the first time (0.2 to 1 s for the bundled recipes).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from worker.languages.cpp import LANGUAGE as CPP
from worker.runner import kernelwright

MAX_LOOPS, MAX_LINES, MAX_REMARKS = 2_000, 20_000, 500
_FLAGS = ("-g1", "-fopt-info-vec-optimized-missed")
_TIMEOUT_S = 20
_TORCH_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(?:torch|ATen|c10)/", re.MULTILINE)
_REMARK = re.compile(r"^kernel\.cpp:(\d+):\d+: (optimized|missed):\s+(.*)$")
_NOISE = re.compile(r"statement clobbers memory|^couldn't vectorize loop$|basic block part")
"""Said of every call, beside every other remark about a loop, and of straight code."""
_LINE = re.compile(r"^\S+\s+(\d+)\s+0x([0-9a-f]+)")
_SECTION = re.compile(r"^\s*\d+\s+\.text\s+[0-9a-f]+\s+([0-9a-f]+)\s+[0-9a-f]+\s+([0-9a-f]+)")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(?:(?:notrack|bnd|rep\w*|lock|cs|ds)\s+)*(\S+)\s*(.*)$")
_JUMP = re.compile(r"j\w+|loop\w*")
_REGISTER = re.compile(r"%([xyz])mm\d")
_WIDTHS = {"x": 16, "y": 32, "z": 64}
_MOVES = re.compile(r"v?(mov|broadcast|extract|insert|perm|unpck|shuf|blend|zero|punpck|lddqu|alignr|palignr|p?xor)\w*")
_SCALAR = re.compile(r"\w+(ss|sd)")
_GATHER, _DIVIDE = re.compile(r"vp?gather\w+"), re.compile(r"v?(div|sqrt)[ps][sd]|i?div[lq]?")


class CppReport:
    """The loops of a C++ source as JSON: `shift`, `loops`, `lines` and `remarks` (see `analysis`)."""

    name = "cpp_report"
    suffix = ".report"
    """Not .json: beside an artefact lies the cache's own record of that name."""

    def check_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """The flags that C++ may be built with. Raises FlagRefused."""
        return CPP.check_flags(flags)

    def toolchain(self) -> str:
        """That of C++: the report is of the very code that it builds. Raises ToolchainMissing."""
        return CPP.toolchain()

    def prepare(self) -> None:
        """Nothing: compiler and objdump are processes of their own."""

    def build(self, source: str, flags: Sequence[str], arch: str, out_dir: Path) -> Path:
        """`report.json` in `out_dir`. Raises BuildError, also for sources that include torch's headers: reading those
        takes 10 to 20 s, and a profile is not worth that."""
        if _TORCH_HEADER.search(source):
            raise kernelwright.BuildError("includes torch's headers: too long to build once more for a report")
        if shutil.which("objdump") is None:
            raise kernelwright.ToolchainMissing("objdump was not found on PATH")
        library, log = kernelwright.compile_cpp(source, (*self.check_flags(flags), *_FLAGS), out_dir)
        report = analysis(log, *(_objdump(library, *what) for what in (("-h",), ("--dwarf=decodedline",), ("-d",))))
        (out_dir / "report.json").write_text(json.dumps(report), encoding="utf-8")
        (out_dir / "build.log").write_text("", encoding="utf-8")
        return out_dir / "report.json"

    def describe(self) -> dict[str, Any]:
        """That of C++."""
        return CPP.describe()


def analysis(log: str, headers: str, lines: str, code: str) -> dict[str, Any]:
    """The report, from the compiler's log and three listings of objdump's.

    `shift`: address less offset in the file. `loops`: of every backward jump `start` and `end` (addresses, inclusive)
    and `mix` (instructions by kind). `lines`: (address, line of the source) in order. `remarks`: (line, kind, text).
    """
    section = next((match for match in map(_SECTION.match, headers.splitlines()) if match), None)
    rows = [(int(match[2], 16), int(match[1])) for match in map(_LINE.match, lines.splitlines()) if match]
    return {
        "shift": int(section[1], 16) - int(section[2], 16) if section else 0,
        "loops": list(_loops(code))[:MAX_LOOPS],
        "lines": sorted(set(rows))[:MAX_LINES],
        "remarks": list(dict.fromkeys(_remarks(log)))[:MAX_REMARKS],
    }


def _objdump(library: Path, *what: str) -> str:
    command = ["objdump", *what, *(["--no-show-raw-insn"] if what == ("-d",) else []), library.name]
    done = subprocess.run(
        command, cwd=library.parent, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
    )
    return done.stdout


def _remarks(log: str) -> Iterator[tuple[int, str, str]]:
    for match in map(_REMARK.match, log.splitlines()):
        if match and not _NOISE.search(match[3]):
            yield int(match[1]), match[2], match[3].removeprefix("not vectorized: ")[:200]


def _loops(code: str) -> Iterator[dict[str, Any]]:
    """One for each backward jump to an instruction of the same function."""
    for function in re.split(r"\n(?=[0-9a-f]{8,16} <)", code):
        found = [match for match in map(_INSTRUCTION.match, function.splitlines()) if match]
        instructions = [(int(match[1], 16), match[2], match[3]) for match in found]
        places = {address: place for place, (address, _name, _operands) in enumerate(instructions)}
        ends: dict[int, int] = {}
        for place, (_address, name, operands) in enumerate(instructions):
            target = re.match(r"([0-9a-f]+)\b", operands) if _JUMP.fullmatch(name) else None
            begin = places.get(int(target[1], 16)) if target else None
            if begin is not None and begin <= place:
                ends[begin] = place  # several jumps back to one head are one loop, up to the last of them
        for begin, end in ends.items():
            body = instructions[begin : end + 1]
            yield {"start": body[0][0], "end": body[-1][0], "mix": _mix(body)}


def _mix(body: Iterable[tuple[int, str, str]]) -> dict[str, int]:
    """Instructions by kind: `packed16`, `packed32`, `packed64` (arithmetic on vectors of so many bytes), `scalar` (of
    floating point), `gather`, `divide` (square roots too), `call`, and `all`."""
    counts: Counter[str] = Counter()
    for _address, name, operands in body:
        counts["all"] += 1
        counts["call"] += name.startswith("call")
        counts["divide"] += bool(_DIVIDE.fullmatch(name))
        counts["gather"] += bool(_GATHER.fullmatch(name))
        widths = [_WIDTHS[letter] for letter in _REGISTER.findall(operands)]
        if not widths or _MOVES.match(name):
            continue
        counts["scalar" if _SCALAR.fullmatch(name) else f"packed{max(widths)}"] += 1
    return {kind: count for kind, count in counts.items() if count}


LANGUAGE = CppReport()
