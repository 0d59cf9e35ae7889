"""The prompts: what a language model is told and asked, built from versioned templates.

Two messages. The *system* message is ours alone: role, rules of the game, the language's contract, the form of the
answer. The *user* message holds the data (the reference, candidates, reports), then our task. All text that we did not
write stands between fences that are longer than any run of backticks in it, so that no content can close its fence, and
the system message says that such text is never an instruction. `text` builds that wall, `limits` says how much goes in.

Lean prompts explore (seed, translate, rewrite), rich ones repair and refine: models given everything at once write
safer and slower kernels.

Templates: `system.j2`, `contract_<language>.j2`, `user.j2`, `task_<operator>.j2`, and `diagnosis_*.j2` for a judge
model. Change one and raise `VERSION`: the snapshots in tests/unit/search/snapshots show what changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from search.prompts.angles import angle
from search.prompts.limits import (
    KNOWLEDGE_TOKENS,
    LEAN_PROFILE_LINES,
    MAX_FACTS,
    MAX_LOG,
    MAX_PLAN,
    MAX_PROFILE,
    MAX_TITLE,
    MAX_TRIALS,
    MAX_WORKLOADS,
    PROMPT_TOKENS,
    RUNGS,
    Limits,
)
from search.prompts.text import CHARACTERS_PER_TOKEN, fenced, line, weight, word
from search.proposing import Knowledge, Parent, ProposalRequest
from search.types import Operator

if TYPE_CHECKING:
    import jinja2

VERSION = "2026-11-6"

RICH = frozenset({Operator.REPAIR, Operator.REFINE, Operator.CROSSOVER, Operator.PORT})
EDITING = frozenset({Operator.REFINE, Operator.REPAIR})
PROFILED = frozenset({Operator.REFINE, Operator.REWRITE, Operator.CROSSOVER})
"""Told what a profile found. A port's parent was profiled on other hardware, and a repair's was not."""
LANGUAGE_NAMES = {"cpp": "C++", "triton": "Triton", "cuda": "CUDA C++"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages for a chat model, and the version of the templates that made them."""

    messages: tuple[Mapping[str, str], ...]
    version: str = VERSION
    edits: bool = False
    """Whether SEARCH/REPLACE edits of the first parent are asked for, and not a whole file."""


class NoPrompt(ValueError):
    """There is no prompt for this operator or language. Prompts exist for the templates in search/prompts."""


def build_prompt(
    request: ProposalRequest, knowledge_tokens: int = KNOWLEDGE_TOKENS, prompt_tokens: int | None = None
) -> Prompt:
    """The prompt for a request, with as much of its knowledge as `knowledge_tokens` allow (0: none). Raises NoPrompt.

    The whole takes at most `prompt_tokens`, by default what the request allows (about: four characters to a token), of
    which MIN_PROMPT_TOKENS are always enough. The same request gives the same prompt.
    """
    if f"task_{request.operator}.j2" not in _templates().list_templates():
        raise NoPrompt(f"operator {request.operator!r}")
    return fitted(("system.j2", "user.j2"), request, {}, knowledge_tokens, prompt_tokens)


def fitted(
    templates: tuple[str, str],
    request: ProposalRequest,
    more: Mapping[str, Any],
    knowledge_tokens: int = KNOWLEDGE_TOKENS,
    prompt_tokens: int | None = None,
) -> Prompt:
    """The messages of a request, with `more` values than its own, by the widest limits that fit. Raises NoPrompt."""
    most = prompt_tokens or request.prompt_tokens or PROMPT_TOKENS
    for limits in RUNGS:
        values = values_of(request, int(knowledge_tokens * limits.knowledge), limits)
        prompt = render(templates, {**values, **more})
        if tokens_of(prompt) <= most:
            break
    return prompt


def tokens_of(prompt: Prompt) -> int:
    """About how many tokens the prompt takes."""
    return sum(weight(message["content"]) for message in prompt.messages) // CHARACTERS_PER_TOKEN


def render(templates: tuple[str, str], values: Mapping[str, Any]) -> Prompt:
    """The system and the user message from their templates."""
    texts = [_templates().get_template(name).render(values).strip() + "\n" for name in templates]
    roles = zip(("system", "user"), texts, strict=True)
    messages = tuple({"role": role, "content": text} for role, text in roles)
    return Prompt(messages, edits=bool(values.get("edits")))


def values_of(
    request: ProposalRequest, knowledge_tokens: int = KNOWLEDGE_TOKENS, limits: Limits = RUNGS[0]
) -> dict[str, Any]:
    """What the templates show of a request. Raises NoPrompt for a language that there is no contract for."""
    if request.target.language not in LANGUAGE_NAMES:
        raise NoPrompt(f"language {request.target.language!r}")
    parents = request.parents
    cut = bool(parents) and weight(parents[0].source) > limits.source
    return {
        "language": request.target.language,
        "language_name": LANGUAGE_NAMES[request.target.language],
        "hardware": word(request.target.hardware),
        "facts": _facts(request.device),
        "name": word(request.problem_name),
        "op_family": word(request.op_family or ""),
        "operator": request.operator,
        "reference": fenced(request.problem_source, limits.reference, "python"),
        "candidates": [_candidate(parent, request.operator, limits) for parent in parents],
        "trials": _trials(request),
        "angle": angle(request.target.language, request.ordinal),
        "edits": request.operator in EDITING and bool(parents) and not request.whole_file and not cut,
        "advice": fenced(request.advice, limits.log, "text") if request.advice else "",
        "task": f"task_{request.operator}.j2",
    } | _known(request.knowledge, knowledge_tokens)


def _known(knowledge: Sequence[Knowledge], tokens: int) -> dict[str, list[dict[str, str]]]:
    """Facts of ours as single lines, what comes from outside between fences. What does not fit is left out whole."""
    facts, notes, left = [], [], tokens * CHARACTERS_PER_TOKEN
    for known in knowledge:
        size = weight(known.title) + weight(known.text)
        if size > left:
            continue
        left -= size
        if known.ours:
            facts.append({"title": line(known.title, MAX_TITLE), "text": " ".join(known.text.split())})
        else:
            notes.append({"text": fenced(f"{known.title}\n\n{known.text}", MAX_LOG, "text")})
    return {"known_facts": facts, "known_notes": notes}


def _candidate(parent: Parent, operator: str, limits: Limits) -> dict[str, Any]:
    rich = operator in RICH
    said = "\n".join(part for part in (parent.reason, parent.log) if part)
    return {
        "source": fenced(parent.source, limits.source, "python"),
        "origin": _origin(parent),
        "verdict": word(parent.verdict or "not judged"),
        "speedup": parent.speedup,
        "workloads": _workloads(parent.workloads) if rich else [],
        "report": fenced(said, limits.log, "text") if rich and said else "",
        "plan": fenced(parent.plan, MAX_PLAN, "text") if rich and parent.plan else "",
        "diagnosis": _diagnosis(parent, operator, min(MAX_PROFILE, limits.log)),
    }


def _diagnosis(parent: Parent, operator: str, limit: int) -> str:
    """A profile quotes the candidate's source and its compiler, so all of it is fenced."""
    if operator not in PROFILED or not parent.diagnosis:
        return ""
    lines = parent.diagnosis.splitlines()
    shown = lines if operator == Operator.REFINE else lines[:LEAN_PROFILE_LINES]
    return fenced("\n".join(shown), limit, "text")


def _origin(parent: Parent) -> str:
    """Where a candidate of another target comes from."""
    if parent.target is None:
        return ""
    language = LANGUAGE_NAMES.get(parent.target.language) or word(parent.target.language)
    return f"{language} for {word(parent.target.hardware)}"


def _workloads(workloads: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for workload in workloads[:MAX_WORKLOADS]:
        baselines = workload.get("baselines_us") or {}
        fastest = min((value for value in baselines.values() if isinstance(value, int | float)), default=None)
        parts = [f"{word(str(workload.get('name', '?')))}: {_number(workload.get('latency_us'))} us"]
        if fastest is not None:
            parts.append(f"fastest baseline {_number(fastest)} us")
        if workload.get("speedup") is not None:
            parts.append(f"speedup {_number(workload['speedup'])}")
        lines.append(", ".join(parts))
    return lines


def _trials(request: ProposalRequest) -> str:
    """Configurations, best first. Fenced: a tunable's value may be a string, and a candidate chose it."""
    if request.operator not in RICH or not request.trials:
        return ""
    best_first = sorted(request.trials, key=lambda trial: -(trial.speedup or 0.0))
    lines = [
        line(", ".join(f"{name}={value!r}" for name, value in trial.params.items()))
        + (f": speedup {trial.speedup:.3f}" if trial.speedup is not None else ": failed or not measured")
        for trial in best_first[:MAX_TRIALS]
    ]
    return fenced("\n".join(lines), MAX_LOG, "text")


def _facts(device: Mapping[str, Any]) -> list[str]:
    """What is known of the hardware, one fact a line. Nested facts are named `toolchain.gcc`."""
    flat: dict[str, Any] = {}
    for key, value in device.items():
        nested = value if isinstance(value, Mapping) else {"": value}
        flat |= {f"{key}.{inner}".rstrip("."): fact for inner, fact in nested.items()}
    lines = [f"{word(key)}: {line(_number(fact))}" for key, fact in sorted(flat.items()) if fact is not None]
    return lines[:MAX_FACTS]


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
