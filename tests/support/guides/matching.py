"""Compares what commands printed with what a page says that they print. These are all the rules:

* `...` on a line of its own stands for any number of lines, `...` within a line for any text of that line;
* an id (`job_` and 32 hexadecimal digits) stands for any id of its kind, 64 hexadecimal digits for any 64;
* a date with or without a time, and a time of day, stand for any;
* a number with a decimal point stands for any number with one; a number before a unit of time or size (`12 ms`, `3 GB`)
  or before `%` for any number with a unit of that kind;
* the number after `pid` or `process` stands for any;
* blanks may be more or fewer, since columns are as wide as what is in them; the reader's home is printed as `~`.

Everything else is literal: words, field names, verdicts, counts, punctuation, the number of lines and their order.
"""

from __future__ import annotations

import re

_FIGURE = r"(?<![\w.])\d[\d,]*(?:\.\d+)? ?"
_ANYTHING = r"\.\.\."
_ID = r"\b(?:[a-z]+)_[0-9a-f]{32}\b"
_LIKE_ITSELF = (
    r"\b[0-9a-f]{64}\b",
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00)?)?",
    r"\b\d\d:\d\d(?::\d\d)?\b",
    _FIGURE + r"(?:ns|us|ms|s|min|h)\b",
    _FIGURE + r"(?:B|KB|MB|GB|KiB|MiB|GiB)\b",
    _FIGURE + r"%",
    r"\b(?:pid|process) \d+",
    r"(?<![\w.])-?\d+\.\d+(?:e-?\d+)?(?!\.?\d)",
)
"""What stands for whatever has the same shape; the first that fits is taken."""
_VARIES = re.compile("|".join(f"({rule})" for rule in (_ANYTHING, _ID, *_LIKE_ITSELF, r"[ \t]+")))


def difference(page: str, printed: str, home: str) -> str | None:
    """None if the output is what the page says; else the page's first line that nothing fits, and the output."""
    actual = "".join(f"{line.strip()}\n" for line in printed.replace(home, "~").rstrip().splitlines())
    lines = page.rstrip().splitlines()
    patterns = [_of_line(line.strip()) for line in lines]
    if re.fullmatch("".join(patterns), actual):
        return None
    fits = [count for count in range(len(patterns) + 1) if re.match("".join(patterns[:count]), actual)]
    missing = f"not printed: {lines[fits[-1]]}" if fits[-1] < len(lines) else "more was printed than the page says"
    return f"{missing}\n--- printed ---\n{actual}"


def _of_line(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*"
    pattern, at = "", 0
    for found in _VARIES.finditer(line):
        pattern += re.escape(line[at : found.start()]) + _stands_for(found)
        at = found.end()
    return pattern + re.escape(line[at:]) + r"\n"


def _stands_for(found: re.Match[str]) -> str:
    which, text = found.lastindex or 0, found[0]
    if text == "...":
        return r".*"
    if re.fullmatch(_ID, text):
        return text.partition("_")[0] + r"_[0-9a-f]{32}"
    return r"[ \t]+" if text.isspace() else f"(?:{_LIKE_ITSELF[which - 3]})"
