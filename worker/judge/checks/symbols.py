"""Names of the functions in what the build broker built: a shared library or a cubin, both of them ELF files.

Read from the symbol tables by hand (the ELF specification's 64-bit layout), because no tool for it need be installed.
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_FUNCTION = 2  # STT_FUNC


class NotAnElf(ValueError):
    """The file is not a 64-bit little-endian ELF file."""


def functions(artefact: Path) -> frozenset[str]:
    """Names of the functions that the file defines. Raises NotAnElf."""
    data = artefact.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotAnElf(f"{artefact.name} is no 64-bit ELF file")
    try:
        return frozenset(_defined(data))
    except (struct.error, IndexError, UnicodeDecodeError) as broken:
        raise NotAnElf(f"{artefact.name} is damaged: {broken}") from broken


def _defined(data: bytes) -> list[str]:
    fields = _HEADER.unpack_from(data)
    start, size, count = fields[5], fields[10], fields[11]
    sections = [_SECTION.unpack_from(data, start + index * size) for index in range(count)]
    names: list[str] = []
    for _name, kind, _flags, _address, offset, length, link, _info, _align, entry in sections:
        if kind not in _TABLES or not entry:
            continue
        text = sections[link][4]
        for at in range(offset, offset + length, entry):
            name, info, _other, section, _value, _size = _SYMBOL.unpack_from(data, at)
            if info & 0xF == _FUNCTION and section:  # section 0: used here, defined elsewhere
                names.append(_string(data, text + name))
    return names


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
