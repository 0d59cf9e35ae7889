"""A package as a source distribution or as a wheel, reproducible: sorted files, one date, no owner."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from api.packaging.contents import Package

_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Archive:
    """The file that pip installs."""

    name: str
    data: bytes


def sdist(package: Package) -> Archive:
    """The source distribution: what one would look into, or edit. Installing it needs setuptools."""
    root = f"{package.names.module}-{package.version}"
    files = {f"{root}/src/{path}": data for path, data in _installed(package).items()}
    files[f"{root}/pyproject.toml"] = _encoded(_pyproject(package))
    files[f"{root}/README.md"] = _encoded(package.readme)
    files[f"{root}/PKG-INFO"] = _encoded(_metadata(package))
    return Archive(f"{root}.tar.gz", _tar_gz(files, package.made_at))


def wheel(package: Package) -> Archive:
    """The wheel: installing it needs nothing but pip. It is for any platform, as kernels are built where they run."""
    stem = f"{package.names.module}-{package.version}"
    info = f"{stem}.dist-info"
    tag = "py3-none-any"
    files = _installed(package)
    files[f"{info}/METADATA"] = _encoded(_metadata(package))
    files[f"{info}/WHEEL"] = _encoded(
        f"Wheel-Version: 1.0\nGenerator: kernelwright\nRoot-Is-Purelib: true\nTag: {tag}\n"
    )
    files[f"{info}/RECORD"] = _encoded(_record(files, f"{info}/RECORD"))
    return Archive(f"{stem}-{tag}.whl", _zip(files, package.made_at))


def _installed(package: Package) -> dict[str, bytes]:
    return {f"{package.names.module}/{path}": _encoded(text) for path, text in package.files.items()}


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _pyproject(package: Package) -> str:
    requires = ", ".join(f'"{each}"' for each in package.requires)
    summary = package.summary.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f"""[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{package.names.distribution}"
version = "{package.version}"
description = "{summary}"
readme = "README.md"
requires-python = ">=3.11"
dependencies = [{requires}]

[project.optional-dependencies]
test = ["pytest>=8"]

[tool.setuptools.packages.find]
where = ["src"]

[tool.setuptools.package-data]
"*" = ["package.json", "certificates/*"]
"""


def _metadata(package: Package) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {package.names.distribution}",
        f"Version: {package.version}",
        f"Summary: {' '.join(package.summary.split())}",
        "Requires-Python: >=3.11",
        *(f"Requires-Dist: {each}" for each in package.requires),
        "Provides-Extra: test",
        'Requires-Dist: pytest>=8; extra == "test"',
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + package.readme


def _record(files: Mapping[str, bytes], own: str) -> str:
    rows = []
    for path, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    return "\n".join([*rows, f"{own},,"]) + "\n"


def _tar_gz(files: Mapping[str, bytes], made_at: datetime) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(data), _MODE, int(made_at.timestamp())
            archive.addfile(entry, io.BytesIO(data))
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)  # 31: with gzip's header, in which zlib leaves name and time empty
    return packer.compress(plain.getvalue()) + packer.flush()


def _zip(files: Mapping[str, bytes], made_at: datetime) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(files.items()):
            entry = zipfile.ZipInfo(path, made_at.timetuple()[:6])
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, _MODE << 16
            archive.writestr(entry, data)
    return packed.getvalue()
