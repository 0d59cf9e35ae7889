"""Problems, who is fastest at them, and what earlier searches taught."""

from __future__ import annotations

from typing import Literal

from cli.client.calls import Call, data, operation
from cli.client.types import (
    FoundItem,
    Language,
    Leaderboard,
    LessonDetail,
    LessonKind,
    LessonPage,
    LessonState,
    ProblemOutline,
    ProblemSource,
    Uplift,
)


class KnowledgeCalls:
    """What is known before a search begins."""

    @operation
    def problems(self) -> Call[list[ProblemOutline]]:
        """The bundled problems, without their source."""
        return Call("GET", "/v1/problems", read=data)

    @operation
    def problem(self, name: str) -> Call[ProblemSource]:
        """One bundled problem with its source."""
        return Call("GET", "/v1/problems/{name}", {"name": name})

    @operation
    def leaderboard(
        self, name: str, *, hardware: str | None = None, language: Language | None = None, limit: int | None = None
    ) -> Call[Leaderboard]:
        """The champions of a problem for each source and target, and why a faster candidate is not among them."""
        query = {"hardware": hardware, "language": language, "limit": limit}
        return Call("GET", "/v1/problems/{name}/leaderboard", {"name": name}, query=query)

    @operation
    def knowledge(
        self,
        hardware: str,
        language: Language,
        *,
        q: str | None = None,
        problem: str | None = None,
        op_family: str | None = None,
        bound: Literal["memory", "compute", "latency", "launch"] | None = None,
        limit: int | None = None,
    ) -> Call[list[FoundItem]]:
        """What a proposal for this task would be shown: certified kernels, confirmed lessons, facts."""
        query = {
            "hardware": hardware,
            "language": language,
            "q": q,
            "problem": problem,
            "op_family": op_family,
            "bound": bound,
            "limit": limit,
        }
        return Call("GET", "/v1/knowledge", query=query, read=data)

    @operation
    def lessons(
        self,
        *,
        state: LessonState | None = None,
        kind: LessonKind | None = None,
        language: Language | None = None,
        hardware: str | None = None,
        op_family: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[LessonPage]:
        """A page of lessons, whatever their standing, newest first."""
        query = {
            "state": state,
            "kind": kind,
            "language": language,
            "hardware": hardware,
            "op_family": op_family,
            "limit": limit,
            "cursor": cursor,
        }
        return Call("GET", "/v1/knowledge/lessons", query=query)

    @operation
    def lesson(self, lesson_id: str) -> Call[LessonDetail]:
        """One lesson with its evidence."""
        return Call("GET", "/v1/knowledge/lessons/{lesson_id}", {"lesson_id": lesson_id})

    @operation
    def uplift(self, *, limit: int | None = None) -> Call[Uplift]:
        """What retrieval was worth: proposals that were shown something beside those it was withheld from."""
        return Call("GET", "/v1/knowledge/uplift", query={"limit": limit})
