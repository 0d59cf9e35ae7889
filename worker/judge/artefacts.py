"""What a candidate is, once it is built: a fingerprint that does not see names, comments or layout of its kernels.

Two candidates with one fingerprint run the same machine code from the same Python, so the second need not be judged.
The candidate is loaded in a runner that has no device and holds no lease; what it builds at load is built by the broker
as ever, so the judgement that may follow finds it built. A source that builds nothing before it is called (Triton) has
no fingerprint.

    fingerprint = SHA-256 of the Python's syntax tree, kernel sources blanked, and of each artefact's loaded sections
"""

from __future__ import annotations

import ast
import hashlib
import struct
from collections.abc import Iterator, Sequence

from worker.judge.intake import intake, load
from worker.judge.runners.sessions import Runner
from worker.judge.trial import SUBJECT
from worker.judge.verdict import Fault

KERNEL_CHARS = 40
"""A string of at least so many characters that went to the compiler stands for what came back from it."""

LOAD_LIMIT_S = 20.0
"""A source that takes longer has no fingerprint: the judgement will have its own patience with it."""

_LOADED = 2
"""SHF_ALLOC: the section is in memory when the program runs."""
_SECTION = struct.Struct("<IIQQQQ")
_MAX_SECTIONS = 4096


def fingerprint(runner: Runner, source: str) -> str | None:
    """Of a candidate; None where it does not load, or builds nothing when it is loaded."""
    try:
        intake(source)
        load(runner, source, SUBJECT, LOAD_LIMIT_S)
    except Fault:
        return None
    if not runner.artefacts:
        return None
    built = [text for _language, text, _flags, _path in runner.builds]
    digest = hashlib.sha256(_python(source, built).encode())
    for path in runner.artefacts:
        digest.update(hashlib.sha256(b"".join(loaded_sections(path.read_bytes()))).digest())
    return digest.hexdigest()


def loaded_sections(artefact: bytes) -> Iterator[bytes]:
    """Name and bytes of what of a shared library or a cubin is loaded: no build id, no names of locals, no comments.

    Imported names are among it: `expf` and `tanhf` may be called by the same machine code. Anything but an ELF file is
    yielded as it is. The file was made from hostile source, so nothing in it is believed.
    """
    sections = list(_sections(artefact))
    if not sections:
        yield artefact
        return
    for name, flags, offset, size in sections:
        if name.startswith((b".note", b".debug", b".nv_debug")):
            continue
        if flags & _LOADED or name.startswith(b".nv."):
            yield name + b"\0" + artefact[offset : offset + size]


def _sections(artefact: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """(name, flags, offset, size) of each section of a 64-bit little-endian ELF file; nothing for any other."""
    if artefact[:6] != b"\x7fELF\x02\x01" or len(artefact) < 64:
        return
    table, entry, count, names = struct.unpack_from("<Q10xHHH", artefact, 0x28)
    if entry < _SECTION.size or count > _MAX_SECTIONS or table + entry * count > len(artefact) or names >= count:
        return
    headers = [_SECTION.unpack_from(artefact, table + entry * number) for number in range(count)]
    start, length = headers[names][4:6]
    strings = artefact[start : start + length]
    for name, kind, flags, _address, offset, size in headers:
        held = 0 if kind == 8 else size  # SHT_NOBITS: zeros that the file does not hold
        yield strings[name : strings.find(b"\0", name)], flags, offset, held


def _python(source: str, built: Sequence[str]) -> str:
    """The syntax tree without docstrings, and without the strings that went to the compiler."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= KERNEL_CHARS:
            node.value = "" if any(node.value in text for text in built) else node.value
    return ast.dump(tree)


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    match node.body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            node.body = rest
