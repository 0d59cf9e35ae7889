"""Write the pages of docs/reference anew. From the repository's root:

python -m cli.reference            writes them
python -m cli.reference --check    says which are not what the code says (status 1)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from cli.reference import rest, settings

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
COMMAND = "python -m cli.reference"
PAGES: dict[str, Callable[[], str]] = {"rest.md": rest.page, "settings.md": settings.page}


def stale() -> list[str]:
    """The pages that differ from what would be written now."""
    return [name for name, page in PAGES.items() if not _is(FOLDER / name, page())]


def _is(file: Path, text: str) -> bool:
    return file.exists() and file.read_text(encoding="utf-8") == text


def main() -> None:
    """Write the pages, or with --check compare them."""
    if "--check" in sys.argv[1:]:
        old = stale()
        sys.exit(f"{', '.join(old)} in docs/reference: run `{COMMAND}`" if old else 0)
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
