"""A TCP proxy before a server's Unix socket: connections can be cut, refused, delayed or frozen while others look on.

One asyncio loop in a thread of its own serves all links; what a test calls is safe from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_CHUNK = 65_536


class Link:
    """One address that clients know, and the socket behind it."""

    def __init__(self, name: str, socket: Path) -> None:
        self.name = name
        self.socket = socket
        self.port = 0
        self.delay_s = 0.0
        """Before every piece that is passed on, in both directions."""
        self.refusing = False
        self._flowing = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> asyncio.Server:
        """Listen on a free port."""
        self._flowing.set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def cut(self) -> int:
        """Reset every connection; how many there were."""
        writers = list(self._writers)
        for writer in writers:
            writer.transport.abort()
        return len(writers)

    def freeze(self, frozen: bool) -> None:
        """Pass nothing on: neither side hears anything, as behind a router that lost its state."""
        if frozen:
            self._flowing.clear()
        else:
            self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            behind_reader, behind_writer = await asyncio.open_unix_connection(str(self.socket))
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(behind_writer)
        pumps = [asyncio.create_task(self._pump(*ends)) for ends in ((reader, behind_writer), (behind_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (writer, behind_writer):
                self._writers.discard(end)
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()


class Proxy:
    """The links and the thread that serves them, as a context manager."""

    def __init__(self, **sockets: Path) -> None:
        self.links = {name: Link(name, socket) for name, socket in sockets.items()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for link in self.links.values():
            self._run(link.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def port(self, name: str) -> int:
        """Where clients find the server of this name."""
        return self.links[name].port

    def cut(self, name: str) -> int:
        """Reset every connection of a link."""

        async def cut() -> int:
            return self.links[name].cut()

        return int(self._run(cut()))

    def delay(self, name: str, seconds: float) -> None:
        """Hold back every piece of a link for so long."""
        self.links[name].delay_s = seconds

    def refuse(self, name: str, refusing: bool) -> None:
        """Take no new connections, and cut those that are there."""
        self.links[name].refusing = refusing
        if refusing:
            self.cut(name)

    def freeze(self, name: str, frozen: bool) -> None:
        """Pass nothing on until it is thawed."""
        self._loop.call_soon_threadsafe(self.links[name].freeze, frozen)

    def heal(self) -> None:
        """Let everything through again."""
        for name in self.links:
            self.delay(name, 0.0)
            self.refuse(name, False)
            self.freeze(name, False)

    async def _close(self) -> None:
        for link in self.links.values():
            link.freeze(False)
            link.cut()
        await asyncio.sleep(0.05)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()
