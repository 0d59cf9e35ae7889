"""One description of each call, which both clients run: `Client` gives its answer, `AsyncClient` something to await.

    class JobCalls:
        @operation
        def job(self, job_id: str, *, wait_s: float | None = None) -> Call[Job]:
            "One job."
            return Call("GET", "/v1/jobs/{job_id}", {"job_id": job_id}, query={"wait": wait_s})

`client.job(id)` is then a `Job` for the type checker and at run time, `await client.job(id)` likewise. What takes
several calls is a generator that yields them and gets their answers (`@steps`), so that it is written once, too.
A new call is such a function in one of this package's `*_calls.py`; tests/unit/cli/client/test_surface.py compares
each with the OpenAPI document.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, overload
from urllib.parse import quote

import httpx2

from cli.client.errors import ClientError

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Again = Literal["safe", "unsent", "never"]
"""Whether a call may be repeated: see `cli.client.retries`."""


def _json(response: httpx2.Response) -> Any:
    return response.json()


def text(response: httpx2.Response) -> str:
    """The answer as it stands."""
    return response.text


def data(response: httpx2.Response) -> Any:
    """The list in an answer that is nothing but a list; none in a 204."""
    return [] if response.status_code == httpx2.codes.NO_CONTENT else response.json()["data"]


@dataclass(frozen=True)
class Call(Generic[T_co]):
    """One request and the type of its answer. Of `query` and `headers`, what is None is left out."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    template: str
    """The path as the OpenAPI document has it; `at` has what its braces stand for."""
    at: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: Any = None
    read: Callable[[httpx2.Response], Any] = _json
    again: Again | None = None
    extra_s: float = 0.0
    """Seconds for which the server may hold the answer back."""

    @property
    def path(self) -> str:
        """The path with its values, none of which can leave its segment."""
        return self.template.format_map({name: quote(value, safe="") for name, value in self.at.items()})

    @property
    def repeats(self) -> Again:
        """Whether it may be repeated; unless said, everything but a POST and a PATCH may."""
        return self.again or ("unsent" if self.method in ("POST", "PATCH") else "safe")

    def options(self, timeout_s: float) -> dict[str, Any]:
        """The arguments of httpx's `request`, beside method and URL."""
        options: dict[str, Any] = {
            "params": given(**self.query),
            "headers": given(**self.headers),
            "timeout": timeout_s + self.extra_s,
        }
        return options if self.body is None else options | {"json": self.body}


Flow = Generator[Call[Any], Any, T]
"""Several calls, one after another: yields each, is sent its answer (or thrown its ClientError), returns the result."""


class _Run(Generic[T]):
    """A flow on its way: `call` is the one to be made next, None when `result` is there."""

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self.call: Call[Any] | None = None
        self._go_on(flow.__next__)

    def answered(self, answer: Any) -> None:
        self._go_on(lambda: self._flow.send(answer))

    def failed(self, error: ClientError) -> None:
        self._go_on(lambda: self._flow.throw(error))

    def _go_on(self, step: Callable[[], Call[Any]]) -> None:
        try:
            self.call = step()
        except StopIteration as ended:
            self.call = None
            self.result: T = ended.value


class Blocking(ABC):
    """Makes calls and waits for them."""

    @abstractmethod
    def perform(self, call: Call[T]) -> T:
        """Make the call. Raises ApiError or Unreachable."""

    def carry_out(self, flow: Flow[T]) -> T:
        """Make one call after another."""
        run = _Run(flow)
        while run.call is not None:
            try:
                answer = self.perform(run.call)
            except ClientError as error:
                run.failed(error)
            else:
                run.answered(answer)
        return run.result


class Awaiting(ABC):
    """Makes calls to be awaited."""

    @abstractmethod
    async def perform(self, call: Call[T]) -> T:
        """Make the call. Raises ApiError or Unreachable."""

    async def carry_out(self, flow: Flow[T]) -> T:
        """Make one call after another."""
        run = _Run(flow)
        while run.call is not None:
            try:
                answer = await self.perform(run.call)
            except ClientError as error:
                run.failed(error)
            else:
                run.answered(answer)
        return run.result


class _Method(Generic[P, T]):
    """What a client has for a description: on a `Blocking` it gives the answer, on an `Awaiting` a coroutine."""

    describe: Callable[..., Any]
    run: ClassVar[Literal["perform", "carry_out"]]

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Blocking | Awaiting | None, owner: type) -> Any:
        if instance is None:
            return self

        def bound(*args: P.args, **kwargs: P.kwargs) -> Any:
            return getattr(instance, self.run)(self.describe(instance, *args, **kwargs))

        return update_wrapper(bound, self.describe)


class operation(_Method[P, T]):  # noqa: N801 - a decorator, like property
    """A method that describes one call."""

    run = "perform"

    def __init__(self, describe: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__


class steps(_Method[P, T]):  # noqa: N801 - a decorator, like property
    """A method that describes several calls, one after another."""

    run = "carry_out"

    def __init__(self, describe: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        self.describe = describe
        self.__doc__ = describe.__doc__


def given(**values: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}
