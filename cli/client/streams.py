"""Server-sent events, line by line, as the HTML standard has them; a comment keeps the connection alive."""

from __future__ import annotations

import json
from typing import cast

from cli.client.types import Event


class EventLines:
    """Takes the lines of a stream and gives an event at the blank line that ends it."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def feed(self, line: str) -> Event | None:
        """The event that this line ends, if it ends one. One that is cut off before its blank line is never given."""
        if not line:
            told, self._data = self._data, []
            return cast(Event, json.loads("\n".join(told))) if told else None
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        return None
