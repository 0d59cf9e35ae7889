"""`kernelwright request "a Triton kernel for RMSNorm in bf16 on H100"`: plain words, a proposal, and its confirmation.

What is proposed goes to stderr for the reader, the reference's source among it; stdout gets the request's id, or with
--yes the id of the job that it became.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import completion, show
from cli.client import Client, PlainRequest
from cli.commands.submit import DiagnosisModel, Models, tell_job, usd_of
from cli.errors import CliError
from cli.service import DEFAULT_URL, JsonOption, UrlOption, service

Words = Annotated[str, typer.Argument(metavar="WORDS", help="What is wanted, in quotes.")]
RequestArgument = Annotated[str, typer.Argument(metavar="REQUEST", help="The id of a request, request_… .")]
Hardware = Annotated[
    str | None,
    typer.Option("--hardware", help="The hardware, over what the words say.", autocompletion=completion.hardware),
]
Language = Annotated[
    str | None,
    typer.Option("--language", help="The language, over what the words say.", autocompletion=completion.languages),
]
Writer = Annotated[str | None, typer.Option("--writer", help="A model that writes the reference.")]
Candidates = Annotated[int | None, typer.Option("--budget-candidates", min=1, help="Candidates to try.")]
Usd = Annotated[str | None, typer.Option("--budget-usd", metavar="USD", help="Dollars for models.")]
Yes = Annotated[bool, typer.Option("--yes", help="Confirm what is proposed, unseen.")]
Watch = Annotated[bool, typer.Option("--watch", help="Stay and watch the job until it ends.")]
DryRunFlag = Annotated[bool, typer.Option("--dry-run", help="Say what the job would be and may cost, store nothing.")]

_WAIT_S = 30.0


class NothingProposed(CliError):
    """The request {id} came to nothing: {why}"""

    exit_code = 3


def request(
    words: Words,
    hardware: Hardware = None,
    language: Language = None,
    writer: Writer = None,
    budget_candidates: Candidates = None,
    budget_usd: Usd = None,
    model: Models = None,
    diagnosis_model: DiagnosisModel = None,
    yes: Yes = False,
    watch: Watch = False,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Ask for a kernel in plain words; see what is proposed, then confirm it."""
    usd = None if budget_usd is None else usd_of(budget_usd)
    body: dict[str, Any] = {"request": words}
    optional = {
        "target": _given(hardware=hardware, language=language),
        "writer": writer,
        "budget": _given(candidates=budget_candidates, usd=usd),
        "models": model,
        "diagnosis_model": diagnosis_model,
    }
    body |= {name: value for name, value in optional.items() if value not in (None, {}, [])}
    with service(url) as client:
        made = _settled(client, client.request(body))
        if yes:
            tell_job(client, client.confirm(made["id"]), watch=watch, as_json=json)
            return
    if json:
        show.put_json(made)
    else:
        _show(made)
        typer.echo(made["id"])
        show.note(f"kernelwright confirm {made['id']}")


def confirm(
    request: RequestArgument,
    dry_run: DryRunFlag = False,
    watch: Watch = False,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Submit the job that a request proposes. Doing it again gives the same job."""
    with service(url) as client:
        if dry_run:
            preview = client.preview(request)
            if json:
                show.put_json(preview)
            else:
                show.say(f"estimate: {show.estimate(preview['estimate'])}")
            return
        tell_job(client, client.confirm(request), watch=watch, as_json=json)


def _settled(client: Client, made: PlainRequest) -> PlainRequest:
    """The request once no model writes for it any more. Raises NothingProposed."""
    while made["state"] in ("queued", "writing"):
        made = client.plain_request(made["id"], wait_s=_WAIT_S)
    if made["proposal"] is None:
        raise NothingProposed(id=made["id"], why=made["error"] or "no bundled problem is like it")
    return made


def _show(made: PlainRequest) -> None:
    proposal = made["proposal"]
    assert proposal is not None  # `_settled` let it through
    target = proposal["job"]["target"]
    show.note(proposal["source"])
    show.note(f"{proposal['problem']['name']} on {target['hardware']}:{target['language']}, by the {proposal['by']}")
    for workload in proposal["problem"]["workloads"]:
        show.note(f"  {workload['name']}: {show.fields(workload['params'])}")
    for each in [*proposal["notes"], *([made["error"]] if made["error"] else [])]:
        show.note(f"note: {each}")
    for other in proposal["alternatives"]:
        show.note(f"also near: {other['name']} ({other['score']:.2f})")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
