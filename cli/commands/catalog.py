"""`kernelwright problems`: what the service can search by name."""

from __future__ import annotations

from cli import show
from cli.service import DEFAULT_URL, JsonOption, UrlOption, service


def problems(url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """List the bundled problems."""
    with service(url) as client:
        found = client.problems()
    if json:
        for problem in found:
            show.put_json(problem)
        return
    rows = [(each["name"], each["op_family"], str(len(each["workloads"])), each["summary"]) for each in found]
    show.table(
        ("problem", "family", "workloads", "what it computes"), rows, empty="the service has no bundled problems"
    )
