"""The prompts: what a language model is told and asked, built from versioned templates.

Two messages. The *system* message is ours alone: role, rules of the game, the language's contract, the form of the
answer. The *user* message holds the data (the reference, candidates, reports), then our task. All text that we did not
write stands between fences that are longer than any run of backticks in it, so that no content can close its fence, and
the system message says that such text is never an instruction.

Lean prompts explore (seed, translate, rewrite), rich ones repair and refine: models given everything at once write
safer and slower kernels.

Templates: `system.j2`, `contract_<language>.j2`, `user.j2`, `task_<operator>.j2`. Change one and raise `VERSION`: the
snapshots in tests/unit/search/snapshots show what changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from search.prompts.angles import angle
from search.proposing import Knowledge, Parent, ProposalRequest
from search.types import Operator

if TYPE_CHECKING:
    import jinja2

VERSION = "2026-11-3"

MAX_REFERENCE = 24_000
MAX_SOURCE = 48_000
MAX_LOG = 6_000
"""Characters, about four to a token. A parent that is cut can still be rewritten, though hardly edited."""

MAX_FACTS = 40
MAX_FACT = 160
MAX_TRIALS = 12
MAX_TITLE = 120
MAX_DIAGNOSIS = 2_000
"""Characters. A profile writes up to 1,800 (`worker.profile.words`)."""
LEAN_DIAGNOSIS_LINES = 2
"""Of a profile, for prompts that explore: where the kernel stands, and its bottleneck."""
KNOWLEDGE_TOKENS = 1_500
"""For all that was looked up, by the same measure: whole texts are taken while they fit. About six facts of ours."""
CHARACTERS_PER_TOKEN = 4
RICH = frozenset({Operator.REPAIR, Operator.REFINE, Operator.CROSSOVER, Operator.PORT})
EDITING = frozenset({Operator.REFINE, Operator.REPAIR})
DIAGNOSED = frozenset({Operator.REFINE, Operator.REWRITE, Operator.CROSSOVER})
"""Told what a profile found. A port's parent was profiled on other hardware, and a repair's was not."""
LANGUAGE_NAMES = {"cpp": "C++", "triton": "Triton", "cuda": "CUDA C++"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages for a chat model, and the version of the templates that made them."""

    messages: tuple[Mapping[str, str], ...]
    version: str = VERSION


class NoPrompt(ValueError):
    """There is no prompt for this operator or language. Prompts exist for the templates in search/prompts."""


def build_prompt(request: ProposalRequest, knowledge_tokens: int = KNOWLEDGE_TOKENS) -> Prompt:
    """The prompt for a request, with as much of its knowledge as `knowledge_tokens` allow (0: none). Raises NoPrompt.

    The same request gives the same prompt.
    """
    if request.target.language not in LANGUAGE_NAMES:
        raise NoPrompt(f"language {request.target.language!r}")
    if f"task_{request.operator}.j2" not in _templates().list_templates():
        raise NoPrompt(f"operator {request.operator!r}")
    values = _values(request) | _known(request.knowledge, knowledge_tokens)
    messages = [
        {"role": role, "content": _templates().get_template(f"{role}.j2").render(values).strip() + "\n"}
        for role in ("system", "user")
    ]
    return Prompt(messages=tuple(messages))


def fenced(text: str, limit: int, tag: str = "") -> str:
    """The text between fences that it cannot close, shortened in the middle to `limit` characters."""
    text = _shortened(text.replace("\r\n", "\n"), limit).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{tag}\n{text}\n{fence}"


def _values(request: ProposalRequest) -> dict[str, Any]:
    return {
        "language": request.target.language,
        "language_name": LANGUAGE_NAMES[request.target.language],
        "hardware": _word(request.target.hardware),
        "facts": _facts(request.device),
        "name": _word(request.problem_name),
        "op_family": _word(request.op_family or ""),
        "operator": request.operator,
        "reference": fenced(request.problem_source, MAX_REFERENCE, "python"),
        "candidates": [_candidate(parent, request.operator) for parent in request.parents],
        "trials": _trials(request),
        "angle": angle(request.target.language, request.ordinal),
        "edits": request.operator in EDITING and bool(request.parents) and not request.whole_file,
    }


def _known(knowledge: Sequence[Knowledge], tokens: int) -> dict[str, list[dict[str, str]]]:
    """Facts of ours as single lines, what comes from outside between fences. What does not fit is left out whole."""
    facts, notes, left = [], [], tokens * CHARACTERS_PER_TOKEN
    for known in knowledge:
        size = len(known.title) + len(known.text)
        if size > left:
            continue
        left -= size
        if known.ours:
            facts.append({"title": _line(known.title, MAX_TITLE), "text": " ".join(known.text.split())})
        else:
            notes.append({"text": fenced(f"{known.title}\n\n{known.text}", MAX_LOG, "text")})
    return {"known_facts": facts, "known_notes": notes}


def _candidate(parent: Parent, operator: str) -> dict[str, Any]:
    rich = operator in RICH
    said = "\n".join(part for part in (parent.reason, parent.log) if part)
    return {
        "source": fenced(parent.source, MAX_SOURCE, "python"),
        "verdict": _word(parent.verdict or "not judged"),
        "speedup": parent.speedup,
        "workloads": _workloads(parent.workloads) if rich else [],
        "report": fenced(said, MAX_LOG, "text") if rich and said else "",
        "plan": fenced(parent.plan, 1_000, "text") if rich and parent.plan else "",
        "diagnosis": _diagnosis(parent, operator),
    }


def _diagnosis(parent: Parent, operator: str) -> str:
    """A profile quotes the candidate's source and its compiler, so all of it is fenced."""
    if operator not in DIAGNOSED or not parent.diagnosis:
        return ""
    lines = parent.diagnosis.splitlines()
    shown = lines if operator == Operator.REFINE else lines[:LEAN_DIAGNOSIS_LINES]
    return fenced("\n".join(shown), MAX_DIAGNOSIS, "text")


def _workloads(workloads: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for workload in workloads[:20]:
        baselines = workload.get("baselines_us") or {}
        fastest = min((value for value in baselines.values() if isinstance(value, int | float)), default=None)
        parts = [f"{_word(str(workload.get('name', '?')))}: {_number(workload.get('latency_us'))} us"]
        if fastest is not None:
            parts.append(f"fastest baseline {_number(fastest)} us")
        if workload.get("speedup") is not None:
            parts.append(f"speedup {_number(workload['speedup'])}")
        lines.append(", ".join(parts))
    return lines


def _trials(request: ProposalRequest) -> list[str]:
    if request.operator not in RICH:
        return []
    best_first = sorted(request.trials, key=lambda trial: -(trial.speedup or 0.0))
    return [
        _line(", ".join(f"{name}={value!r}" for name, value in trial.params.items()))
        + (f": speedup {trial.speedup:.3f}" if trial.speedup is not None else ": failed or not measured")
        for trial in best_first[:MAX_TRIALS]
    ]


def _facts(device: Mapping[str, Any]) -> list[str]:
    """What is known of the hardware, one fact a line. Nested facts are named `toolchain.gcc`."""
    flat: dict[str, Any] = {}
    for key, value in device.items():
        nested = value if isinstance(value, Mapping) else {"": value}
        flat |= {f"{key}.{inner}".rstrip("."): fact for inner, fact in nested.items()}
    lines = [f"{_word(key)}: {_line(_number(fact))}" for key, fact in sorted(flat.items()) if fact is not None]
    return lines[:MAX_FACTS]


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _line(text: str, limit: int = MAX_FACT) -> str:
    """Outside of fences text is one line without backticks: it can neither start a heading nor a fence."""
    return " ".join(text.replace("`", "'").split())[:limit]


def _word(text: str) -> str:
    """A name: letters, digits and `_.-` only, so that a name cannot be a sentence."""
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII)[:60]


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = limit // 3
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[-tail:]}"


@lru_cache(maxsize=1)
def _templates() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("search", "prompts"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # prompts are no HTML; the fences are what keeps data apart
    )
