"""What a page of documentation asks its reader to type, and what it says will be printed, read from its fenced blocks.

The words after a fence say what the block is; they change nothing in how it is shown.

    sh              commands: run in order, in one shell; each must end with status 0
    sh server       a command that runs until the reader stops it: started, and stopped with Ctrl-C when the page ends
    sh yours        assignments whose values are the reader's own: the test puts in its own, and nothing else
    sh gpu          not run: it needs a GPU. Likewise `production`, `network` and `hours`
    output          what the block of commands before it prints, all of it (`json output` where it is JSON)

Every other word (python, json, text, ...) is something to look at. A block that has no word, an indented block, and a
command in a block of another kind are defects of the page: `defects` finds them, so that no command is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
NOT_RUN = ("gpu", "production", "network", "hours")
"""Why a block of commands is not run here."""
MADE_BY_SCRIPT = ("docs/reference", "docs/results", "docs/cli.md")
"""Pages that are written by a program, and measurements: nothing in them is to be typed."""
_SHOWN = ("python", "json", "jsonl", "text", "diff", "yaml", "toml", "html", "sql", "http", "cpp")
_COMMAND = re.compile(
    r"^\s*(\$ |kernelwright |curl |make \w|python3? -|docker |kubectl |pip |psql |jq |git |export \w)"
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, and the line of its fence."""

    words: tuple[str, ...]
    text: str
    line: int

    @property
    def commands(self) -> bool:
        """Whether these are commands, run or not."""
        return self.words[:1] == ("sh",)

    @property
    def printed(self) -> bool:
        """Whether it is what the commands before it print."""
        return "output" in self.words

    @property
    def role(self) -> str:
        """What happens to commands: `run`, `server`, `yours`, or why they are not run."""
        return self.words[1] if len(self.words) > 1 else "run"


@dataclass(frozen=True, slots=True)
class Step:
    """Commands, and what the page says that they print; None where it does not say."""

    commands: Block
    printed: Block | None


@dataclass(frozen=True, slots=True)
class Page:
    """A page's blocks and the commands that its prose mentions."""

    name: str
    blocks: tuple[Block, ...]
    indented: tuple[int, ...]
    """Lines of indented code blocks."""
    mentions: tuple[str, ...]
    """Code in the running text that begins with `kernelwright`."""
    links: tuple[str, ...]
    """Addresses of links, those on the web left out."""

    def steps(self) -> list[Step]:
        """Everything that is to be typed, in order."""
        pairs = zip(self.blocks, [*self.blocks[1:], None], strict=False)
        return [Step(block, after if after and after.printed else None) for block, after in pairs if block.commands]

    @property
    def runs(self) -> bool:
        """Whether anything on it is run."""
        return any(step.commands.role not in NOT_RUN for step in self.steps())

    @property
    def starts(self) -> bool:
        """Whether it starts a service itself; if not, its reader has one that runs."""
        return any(step.commands.role == "server" for step in self.steps())


def read(name: str, text: str) -> Page:
    """The page's blocks."""
    tokens = MarkdownIt("commonmark").parse(text)
    blocks = [Block(tuple(t.info.split()), t.content, t.map[0] + 1) for t in tokens if t.type == "fence" and t.map]
    indented = [token.map[0] + 1 for token in tokens if token.type == "code_block" and token.map]
    inline = [child for token in tokens for child in token.children or ()]
    code = [child.content for child in inline if child.type == "code_inline"]
    mentions = [text for text in code if text.startswith("kernelwright ")]
    links = [str(child.attrGet("href")) for child in inline if child.type == "link_open"]
    files = [link.partition("#")[0] for link in links if not link.startswith(("#", "http"))]
    return Page(name, tuple(blocks), tuple(indented), tuple(mentions), tuple(files))


def pages() -> list[Page]:
    """README.md and every page of docs/ that a person wrote."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [str(file.relative_to(ROOT)) for file in files]
    return [read(name, (ROOT / name).read_text()) for name in names if not name.startswith(MADE_BY_SCRIPT)]


def defects(page: Page) -> Iterator[str]:
    """What keeps a command of the page from being seen by the tests, with what to write instead."""
    for line in page.indented:
        yield f"{page.name}:{line}: an indented block: put it between fences, with a word that says what it is"
    before: Block | None = None
    for block in page.blocks:
        fault = _fault(block, before)
        if fault:
            yield f"{page.name}:{block.line}: {fault}"
        before = block


def _fault(block: Block, before: Block | None) -> str | None:
    if not block.words:
        return "a fence with no word after it: write sh, output, text or another of tests/support/guides/pages.py"
    if block.printed:
        return None if before and before.commands else "output without commands before it"
    if block.commands:
        known = ("run", "server", "yours", *NOT_RUN)
        return (
            None if block.role in known and len(block.words) < 3 else f"`{' '.join(block.words)}` is no kind of block"
        )
    if block.words[0] not in _SHOWN:
        return f"`{block.words[0]}` is no kind of block"
    hidden = block.words[0] == "text" and next((line for line in block.text.splitlines() if _COMMAND.match(line)), None)
    return f"a command in a block that is not run: `{hidden}`" if hidden else None


def plain(commands: str) -> str:
    """Commands without comments and documents, each on one line."""
    without_documents = re.sub(r"<<'?(\w+)'?(.*?)\n.*?^\1$", r"\2", commands, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(^|\s)# .*$", "", without_documents.replace("\\\n", " "), flags=re.MULTILINE)


def subcommands(commands: str) -> list[tuple[str, list[str]]]:
    """Each `kernelwright SUBCOMMAND` in `plain` text, with its long options."""
    found = re.findall(r"(?<![\w./-])kernelwright ([a-z]+)([^|;&)>\n]*)", commands)
    return [(name, re.findall(r"(?<!\S)--[\w-]+", rest)) for name, rest in found]
