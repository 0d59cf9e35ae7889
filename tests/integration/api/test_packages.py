"""GET .../package: the archive under its name, in the form that was asked for, and what is said where there is none."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import Any

import httpx2
import pytest

from cli.client import ApiError, Client, Job
from tests.integration.api.conftest import BODY
from tests.integration.api.history import History
from tests.support.certified import certificate, signed


def champion(history: History, job: Job, **other: Any) -> str:
    """Give the job a certified best; its id."""
    candidate_id = history.evaluate(job["id"], speedup=2.0)
    document = certificate("softmax", **other)
    del document["sha256"]
    history.certify(job["id"], **document)
    return candidate_id


def refused(call: Any) -> tuple[int, str, str]:
    with pytest.raises(ApiError) as error:
        call()
    return error.value.status, error.value.type.rpartition(":")[2], error.value.detail


def test_curl_gets_an_archive_under_its_name(http: httpx2.Client, history: History, job: Job) -> None:
    champion(history, job)
    answer = http.get(f"/v1/jobs/{job['id']}/package")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/gzip")
    name = answer.headers["content-disposition"].removeprefix('attachment; filename="').removesuffix('"')
    assert name.startswith("softmax_kernel-2026.") and name.endswith(".tar.gz")
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert f"{name.removesuffix('.tar.gz')}/pyproject.toml" in archive.getnames()
    assert http.get(f"/v1/jobs/{job['id']}/package").content == answer.content


def test_a_wheel_by_accept_or_by_format(http: httpx2.Client, client: Client, history: History, job: Job) -> None:
    candidate_id = champion(history, job)
    path = f"/v1/candidates/{candidate_id}/package"
    by_accept = http.get(path, headers={"Accept": "application/zip"})
    assert by_accept.headers["content-type"] == "application/zip" and by_accept.headers["vary"] == "Accept"
    by_format = http.get(path, params={"format": "wheel"}, headers={"Accept": "application/gzip"})
    assert by_format.content == by_accept.content
    assert zipfile.ZipFile(io.BytesIO(by_format.content)).testzip() is None
    name, data = client.package_job(job["id"], format="wheel")
    assert name.endswith("-py3-none-any.whl") and data == by_format.content
    assert http.get(path, params={"format": "zip"}).status_code == 422


def test_kernels_of_two_jobs_in_one_package(client: Client, history: History, job: Job) -> None:
    champion(history, job)
    other = client.submit(BODY)
    second = champion(history, other, issued_at="2026-11-23T00:00:00+00:00")
    name, data = client.package_job(job["id"], also=[other["id"], second])
    assert name.startswith("softmax_kernel-2026.11.23.0+")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        kernels = sorted(
            entry.rpartition("/")[2] for entry in archive.getnames() if "/kernel_" in entry and entry.endswith(".py")
        )
    assert kernels == ["kernel_cpu_cpp.py", "kernel_cpu_cpp__2.py"]


def test_what_cannot_go_along_is_named(client: Client, history: History, job: Job) -> None:
    champion(history, job)
    foreign = client.submit(BODY | {"problem": "layernorm"})
    status, slug, said = refused(lambda: client.package_job(job["id"], also=["cand_none"]))
    assert (status, slug) == (422, "invalid") and said.startswith("?also: cand_none: ")
    status, slug, said = refused(lambda: client.package_job(job["id"], also=[foreign["id"]]))
    assert (status, slug) == (422, "invalid") and "No candidate of this job is verified" in said
    champion(history, foreign)
    status, slug, said = refused(lambda: client.package_job(job["id"], also=[foreign["id"]]))
    assert (status, slug) == (422, "invalid") and "is for another problem" in said


def test_only_what_is_certified_is_packaged(client: Client, history: History, job: Job) -> None:
    assert refused(lambda: client.package_job("job_none"))[:2] == (404, "unknown-job")
    assert refused(lambda: client.package_candidate("cand_none"))[:2] == (404, "unknown-candidate")
    assert refused(lambda: client.package_job(job["id"]))[:2] == (404, "no-best-yet")
    candidate_id = history.evaluate(job["id"], speedup=2.0)
    status, slug, said = refused(lambda: client.package_job(job["id"]))
    assert (status, slug) == (404, "no-certificate") and candidate_id in said
    history.certify(job["id"], certified=False, verdict="incorrect", reason="stale output")
    status, slug, said = refused(lambda: client.package_candidate(candidate_id))
    assert (status, slug) == (409, "not-packable") and "stale output" in said


def test_a_certificate_without_timings_is_no_package(client: Client, history: History, job: Job) -> None:
    champion(history, job, timing=None)
    status, slug, said = refused(lambda: client.package_job(job["id"]))
    assert (status, slug) == (409, "not-packable") and "timing.workloads" in said


def test_the_certificate_inside_is_the_one_that_was_signed(client: Client, history: History, job: Job) -> None:
    champion(history, job)
    document = client.certificate(job["id"])
    assert document == signed(document)
    _name, data = client.package_job(job["id"], format="wheel")
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.read("softmax_kernel/kernel_cpu_cpp.py").decode() == document["candidate"]["source"]
