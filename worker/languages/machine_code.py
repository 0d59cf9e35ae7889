"""What machine code a built file holds, as text: a shared library by objdump, a cubin by nvdisasm.

Not a kernel language: a candidate cannot ask for it. It reads what was built before (`BuildCache.read`) and is run like
a build, because the file comes from hostile source, or in Triton's case from the candidate's own process, and
disassemblers are as easily led astray as compilers.

What a file of 256 MiB disassembles to is not read to its end.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker.languages import INPUT
from worker.languages.flags import allow
from worker.runner import kernelwright

MAX_BYTES = 1 << 20
"""What is kept of one kind of code of one candidate, before compression."""
_CUBIN = 190
"""EM_CUDA, the machine that a cubin names in its header."""
_STARTUP = rb"_init|_start|frame_dummy|(de)?register_tm_clones|__do_global_dtors_aux"
_OWN = re.compile(rb"\s*[0-9a-f]+ <(?!(?:%s)>)" % _STARTUP)
"""A function in objdump's list, but for those that the linker puts into every library."""
_MACHINE = struct.Struct("<H")


class MachineCode:
    """The text of a file's code sections; one that is longer than `MAX_BYTES` was not read to its end."""

    name = "machine_code"
    suffix = ".code"

    def check_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """None may be set. Raises FlagRefused."""
        return allow(flags)

    def toolchain(self) -> str:
        """Which disassemblers are here, by their places: their output changes little from version to version."""
        return f"{shutil.which('objdump')} | {nvdisasm()}"

    def prepare(self) -> None:
        """Nothing: disassemblers are processes of their own."""

    def build(self, source: str, flags: Sequence[str], arch: str, out_dir: Path) -> Path:
        """The text of `out_dir / INPUT`; `source` is that file's digest. Raises BuildError, ToolchainMissing."""
        self.check_flags(flags)
        text = out_dir / "code.txt"
        text.write_bytes(_disassembled(out_dir / INPUT))
        (out_dir / "build.log").write_text("", encoding="utf-8")
        return text

    def describe(self) -> dict[str, Any]:
        """Which disassemblers are here."""
        return {"available": True, "objdump": shutil.which("objdump") is not None, "nvdisasm": nvdisasm() is not None}


def nvdisasm() -> str | None:
    """The path of the disassembler for cubins: the CUDA toolkit's, or the one that Triton carries."""
    found = kernelwright.cuda_tool("nvdisasm")
    spec = None if found else importlib.util.find_spec("triton")
    roots = list(spec.submodule_search_locations or []) if spec else []
    carried = [Path(root) / "backends/nvidia/bin/nvdisasm" for root in roots]
    return found or next((str(path) for path in carried if path.is_file()), None)


def _disassembled(artefact: Path) -> bytes:
    with artefact.open("rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF" or len(head) < 20:
        raise kernelwright.BuildError("the file to disassemble is no ELF file")
    if _MACHINE.unpack_from(head, 18)[0] == _CUBIN:
        return _first([_tool("nvdisasm", nvdisasm()), "-c", artefact.name], artefact.parent)
    command = [_tool("objdump", shutil.which("objdump")), "-d", "--no-show-raw-insn", "-j", ".text", artefact.name]
    listed = _first(command, artefact.parent)
    return b"\n\n".join(part for part in listed.split(b"\n\n") if _OWN.match(part))


def _tool(name: str, path: str | None) -> str:
    if path is None:
        raise kernelwright.ToolchainMissing(f"{name} was not found")
    return path


def _first(command: list[str], folder: Path) -> bytes:
    """What a command prints, read no further than a byte beyond `MAX_BYTES`. Raises BuildError when that is nothing."""
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    with process:
        printed = process.stdout.read(MAX_BYTES + 1)  # a hang ends with the whole build process
        process.kill()
    if not printed.strip():
        said = (folder / "errors").read_bytes()[:2000].decode(errors="replace")
        raise kernelwright.BuildError(f"nothing could be disassembled: {said}")
    return printed


LANGUAGE = MachineCode()
