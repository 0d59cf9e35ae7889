"""`kernelwright workers | summary`: what the service can search on, and what it does now."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import show
from cli.client import ServiceSummary, Wait
from cli.client.types import Current
from cli.service import DEFAULT_URL, JsonOption, UnusableInput, UrlOption, service

Drain = Annotated[str | None, typer.Option("--drain", metavar="ID", help="Let it finish and claim nothing more.")]
Resume = Annotated[str | None, typer.Option("--resume", metavar="ID", help="Have a draining one take work again.")]


def workers(drain: Drain = None, resume: Resume = None, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """List the workers: what they run on, which queues they serve and what they do now; or drain or resume one."""
    if drain is not None and resume is not None:
        raise UnusableInput(problem="--drain and --resume do not go together")
    with service(url) as client:
        if drain is not None:
            found = [client.set_worker(drain, "draining")]
        elif resume is not None:
            found = [client.set_worker(resume, "active")]
        else:
            found = client.workers()
    if json:
        for worker in found:
            show.put_json(worker)
        return
    rows = [
        (
            f"{each['hostname']}:{each['pid']}",
            f"{each['state']}: {each['state_reason']}" if each["state_reason"] else each["state"],
            each["hardware"] or "-",
            _device(each["device"]),
            ",".join(each["queues"]),
            each["current_work"] or "-",
            show.moment(each["heartbeat_at"]),
            each["id"],
        )
        for each in found
    ]
    heads = ("worker", "state", "hardware", "device", "queues", "works on", "last heard of", "id")
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


def summary(url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Show the whole service at a glance: jobs, queues, what each worker does, today's spending."""
    with service(url) as client:
        found = client.summary()
    if json:
        show.put_json(found)
        return
    for line in _overview(found):
        show.say(line)
    queues = [
        (
            each["name"],
            str(each["ready"]),
            str(each["delayed"]),
            str(each["running"]),
            f"{each['oldest_age_s']:.0f} s" if each["ready"] else "-",
            str(each["workers"]),
            _waited(each["wait"]),
        )
        for each in found["queues"]
    ]
    heads = ("queue", "ready", "delayed", "running", "oldest", "workers", "waited")
    show.table(heads, queues, empty="no queues: nothing waits and no worker is alive")
    busy = [
        (each["hostname"], each["state"], each["hardware"] or "-", each["current"]["kind"], _subject(each["current"]))
        for each in found["workers"]["data"]
        if each["current"]
    ]
    show.table(("worker", "state", "hardware", "does", "for"), busy, empty="no worker does anything now")


def _overview(found: ServiceSummary) -> list[str]:
    jobs, workers, today = found["jobs"], found["workers"]["states"], found["today"]
    return [
        f"jobs\t{show.counts(jobs['live'])}; in 24 h {show.counts(jobs['ended_24h'])}",
        f"workers\t{show.counts(workers)}",
        f"today\t${today['usd']}, {today['gpu_s']:.0f} GPU s",
        f"waits\t{_waited(found['wait'])}",
    ]


def _waited(wait: Wait | None) -> str:
    """`0.01 s, 1 of 20 over 3.20 s`."""
    return "-" if wait is None else f"{wait['p50_s']:.2f} s, 1 of 20 over {wait['p95_s']:.2f} s"


def _subject(current: Current) -> str:
    return str(current["candidate_id"] or current["job_id"])
