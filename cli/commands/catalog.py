"""`kernelwright problems | workers`: what the service can search, and what it can search on."""

from __future__ import annotations

from typing import Any

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


def workers(url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """List the workers: what they run on, which queues they serve and what they do now."""
    with service(url) as client:
        found = client.workers()
    if json:
        for worker in found:
            show.put_json(worker)
        return
    rows = [
        (
            f"{each['hostname']}:{each['pid']}",
            each["state"],
            each["hardware"] or "-",
            _device(each["device"]),
            ",".join(each["queues"]),
            each["current_work"] or "-",
            show.moment(each["heartbeat_at"]),
        )
        for each in found
    ]
    heads = ("worker", "state", "hardware", "device", "queues", "works on", "last heard of")
    show.table(
        heads, rows, empty="no workers: start one with `kernelwright worker`, or all of it with `kernelwright up`"
    )


def _device(device: dict[str, Any]) -> str:
    name = str(device.get("name") or "-")
    measured = [
        f"{device[key]:.0f} {unit}"
        for key, unit in (("copy_gbps", "GB/s"), ("matmul_tflops", "TFLOP/s"))
        if isinstance(device.get(key), int | float)
    ]
    return ", ".join([name, *measured])
