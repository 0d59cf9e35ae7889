"""Which compiler flags a candidate may set.

An allow-list, because a compiler's flags are a programming language of their own: -fplugin= loads code, -Wl, and
-Xlinker write files, -include and -I read them, -fdump- and -save-temps fill the disk.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from worker.runner.kernelwright import BuildError

MAX_FLAGS = 64

# A macro whose value is a plain word or number: quotes and paths have no business in a kernel's configuration.
DEFINE = r"-D[A-Za-z_]\w*(=[\w.+-]*)?"
WARNING = r"-W(no-)?[a-z][a-z0-9-]*(=[0-9])?|-w"
STANDARD = r"-{1,2}std=(c|gnu)\+\+(11|14|17|20|23)"


class FlagRefused(BuildError):
    """A candidate asked for a compiler flag that it may not set. Leave the flag out."""


def allow(flags: Sequence[str], *patterns: str) -> tuple[str, ...]:
    """The flags, when each matches one of the patterns in full. Raises FlagRefused naming those that do not."""
    allowed = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    refused = [flag for flag in flags if not isinstance(flag, str) or not allowed.fullmatch(flag)]
    if refused:
        hint = ": it is built for the device's own architecture" if any("arch" in str(flag) for flag in refused) else ""
        raise FlagRefused(f"these compiler flags are not allowed: {' '.join(map(str, refused))[:500]}{hint}")
    if len(flags) > MAX_FLAGS:
        raise FlagRefused(f"{len(flags)} compiler flags; at most {MAX_FLAGS} are allowed")
    return tuple(flags)
