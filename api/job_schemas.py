"""Jobs on the wire: the body of POST /v1/jobs and the job resource."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from api.estimate_schemas import Estimate
from api.job_parts import Admission, BestSummary, Budget, Cost, Policy, ProblemRef, Progress, Queue, Stop, Target
from api.problem_schemas import ProblemOutline
from api.schemas import Body, Resource, Text, UsdIn, UtcTime
from api.targets import HARDWARE_PATTERN, hardware_for, is_hardware, languages_for
from db.vocabulary import JobState, Language, SearchPolicy, StopReason
from search.model_names import MAX_NAME, NotAModelName, check_model_name

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"
# No colon: the filter `label=key:value` splits at the first one.
LABEL_KEY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"

_WEEK_S = 7 * 24 * 3600.0

EXAMPLE_BODY: dict[str, Any] = {
    "problem": "softmax",
    "target": {"hardware": "cpu", "language": "cpp"},
    "budget": {"candidates": 20, "usd": "5.00", "wall_s": 600},
    "stop": {"target_speedup": 2.0, "stagnation": 12},
    "labels": {"team": "ranking"},
}
OWN_PROBLEM_BODY: dict[str, Any] = {
    "problem": {
        "name": "scaled_relu",
        "source": "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        return torch.relu(x) * 2.0\n\n\ndef get_inputs():\n    return [torch.randn(1024, 1024)]\n\n\n"
        "def get_init_inputs():\n    return []\n",
    },
    "target": {"hardware": "nvidia-h100", "language": "triton"},
    "models": ["openai/gpt-5"],
}


class ProblemChoice(Body):
    """What to search: a bundled problem by name, or an own reference source under a name of the client's choice."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    source: Annotated[str | None, Field(description="a KernelBench-style file; without it, `name` is bundled")] = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict):
            raise PydanticCustomError("problem", 'is the name of a bundled problem, or {"name": ..., "source": ...}')
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        own = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [{"type": "string", "description": "the name of a bundled problem"}, own]}


class TargetBody(Body):
    """Where the kernel shall run and what it is written in."""

    hardware: Annotated[
        str, Field(json_schema_extra={"pattern": HARDWARE_PATTERN}, examples=["cpu", "nvidia-h100"], max_length=80)
    ]
    language: Annotated[str, Field(json_schema_extra={"enum": list(Language)}, examples=["cpp", "triton", "cuda"])]

    @field_validator("hardware")
    @classmethod
    def _known_shape(cls, hardware: str) -> str:
        if not is_hardware(hardware):
            raise PydanticCustomError(
                "hardware", "is no hardware id: write cpu, or vendor and device such as nvidia-h100 (GET /v1/workers)"
            )
        return hardware

    @field_validator("language")
    @classmethod
    def _fits_hardware(cls, language: str, info: ValidationInfo) -> str:
        hardware = info.data.get("hardware")
        fitting = languages_for(hardware) if hardware else tuple(Language)
        if language not in list(Language):
            raise PydanticCustomError("language", f"is no language that we know: use {' or '.join(fitting)}")
        if language not in fitting:
            where, fits = hardware_for(Language(language)), " or ".join(fitting)
            raise PydanticCustomError("language", f"{language} runs on {where}; on {hardware} use {fits}")
        return language


class BudgetBody(Body):
    """What the search may use; it ends when any part is used up."""

    candidates: Annotated[int, Field(ge=1, le=10_000)] = 20
    usd: UsdIn | None = None
    wall_s: Annotated[float, Field(gt=0, le=_WEEK_S, allow_inf_nan=False)] | None = None
    gpu_s: Annotated[float, Field(gt=0, le=_WEEK_S, allow_inf_nan=False)] | None = None
    calls: Annotated[int, Field(ge=1, le=1_000_000, description="of language models, diagnoses included")] | None = None
    tokens: Annotated[int, Field(ge=1, le=10**12, description="of prompts and answers together")] | None = None


class StopBody(Body):
    """When to stop before the budget is used up."""

    target_speedup: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    stagnation: Annotated[int, Field(ge=1, le=10_000, description="candidates without a better one")] | None = None


class PolicyBody(Body):
    """How the search goes on, and what the judge demands of a kernel beside being right."""

    search: Annotated[
        str,
        Field(
            json_schema_extra={"enum": list(SearchPolicy)},
            description="how it is chosen what to try next; the others are there to be compared with",
        ),
    ] = SearchPolicy.DEFAULT.value
    own_kernel_share: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            allow_inf_nan=False,
            description="least share of the device's time in the candidate's own kernels; 0 reports it only",
        ),
    ] = 0.9

    @field_validator("search")
    @classmethod
    def _known(cls, search: str) -> str:
        if search not in list(SearchPolicy):
            raise PydanticCustomError("search", f"is no search policy: use {' or '.join(SearchPolicy)}")
        return search


def _labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > 32:
        raise PydanticCustomError("labels", "has more than 32 labels")
    return labels


LabelKey = Annotated[str, Field(pattern=LABEL_KEY_PATTERN)]
LabelValue = Annotated[Text, Field(max_length=256)]
Labels = Annotated[dict[LabelKey, LabelValue], AfterValidator(_labels)]


def _model_name(name: str) -> str:
    try:
        return check_model_name(name)
    except NotAModelName as error:
        raise PydanticCustomError("model", "{why}", {"why": str(error)}) from error


ModelName = Annotated[Text, Field(pattern=r"^\S+$", max_length=MAX_NAME), AfterValidator(_model_name)]


class JobFields(Body):
    """What a job is beside its problem and its target."""

    budget: BudgetBody = BudgetBody()
    stop: StopBody = StopBody()
    policy: PolicyBody = PolicyBody()
    admit: Annotated[bool, Field(description="have the judge examine the problem, if it has not yet")] = True
    certify: Annotated[bool, Field(description="have the champion certified before the job ends")] = True
    models: Annotated[
        list[ModelName], Field(max_length=16, description="none: the built-in one; ask/tell: outside agents")
    ] = []
    diagnosis_model: (
        Annotated[ModelName, Field(description="says before a repair or a refinement what is wrong with the parent")]
        | None
    ) = None
    labels: Labels = {}
    priority: Annotated[int, Field(ge=-100, le=100, description="higher goes first")] = 0
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0


class JobBody(JobFields):
    """A request to search a problem for a target under a budget."""

    model_config = {"json_schema_extra": {"examples": [EXAMPLE_BODY, OWN_PROBLEM_BODY]}}

    problem: ProblemChoice
    target: TargetBody

    @model_validator(mode="before")
    @classmethod
    def _no_plain_words(cls, value: Any) -> Any:
        if isinstance(value, dict) and "request" in value:
            hint = "a request in plain words goes to POST /v1/requests, which answers with a job to confirm"
            raise PydanticCustomError("request", hint)
        return value


class CancelBody(Body):
    """Why a job is cancelled; the reason goes into its events."""

    reason: Annotated[Text, Field(max_length=1000)] | None = None


class Job(Resource):
    """A job as it stands. `version` grows with each visible change: it is what `since_version` takes.

    A `stop_reason` in a job that still runs: the search has ended, and the champion is being certified. `admission` is
    null until the problem was examined.
    """

    id: str
    state: JobState
    stop_reason: StopReason | None
    error: str | None
    problem: ProblemRef
    target: Target
    budget: Budget
    stop: Stop
    policy: Policy
    admit: bool
    certify: bool
    models: list[str]
    diagnosis_model: str | None
    labels: dict[str, str]
    priority: int
    seed: int
    parent_id: str | None
    key_id: str | None
    admission: Admission | None
    progress: Progress
    queue: Queue
    best: BestSummary | None
    cost: Cost
    created_at: UtcTime
    started_at: UtcTime | None
    finished_at: UtcTime | None
    version: int
    links: dict[str, str]


class JobPage(Resource):
    """Jobs, newest first."""

    data: list[Job]
    next_cursor: str | None
    has_more: bool


class DryRun(Resource):
    """What a submission would become. Nothing was stored. `admission` is null for a problem not examined yet."""

    valid: bool = True
    job: dict[str, Any]
    problem: ProblemOutline
    admission: Admission | None
    estimate: Estimate
    warnings: list[str]


class Cancelled(Resource):
    """The job after a cancel. `changed` is false when it had ended or was being cancelled already."""

    changed: bool
    job: Job
