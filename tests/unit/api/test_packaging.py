"""What is in a package, and that it is the same bytes every time."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import tomllib
import zipfile
from typing import Any

import pytest
from packaging.metadata import Metadata
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from api.packaging import CannotPackage, Package, Winner, make_package, sdist, wheel
from api.packaging.naming import names_of
from tests.support.certified import certificate, problem_source, signed
from worker.judge.certificate.render import render


def winner(name: str = "softmax", hardware: str = "cpu", language: str = "cpp", **other: Any) -> Winner:
    document = certificate(name, **other)
    return Winner(f"cand_{hardware}", hardware, language, document, render(document))


def on_gpu(language: str = "triton") -> Winner:
    """What a finalist of another language on a GPU would look like."""
    return winner(
        "softmax", "nvidia-h200", language, environment={"arch": "sm_90", "torch": "2.11.0", "triton": "3.6.0"}
    )


def package(*winners: Winner) -> Package:
    return make_package("softmax", problem_source("softmax"), winners or [winner()])


def in_sdist(made: Package) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(sdist(made).data)) as archive:
        return {entry.name.partition("/")[2]: _read(archive, entry) for entry in archive.getmembers()}


def _read(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    assert file is not None, f"{entry.name} is no file"
    return file.read()


def in_wheel(made: Package) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(wheel(made).data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("pack", [sdist, wheel])
def test_the_same_kernels_are_the_same_bytes(pack: Any) -> None:
    first, second = pack(package(winner())), pack(package(winner()))
    assert first == second
    later = pack(package(winner(issued_at="2027-01-02T03:04:05+00:00")))
    assert later.name != first.name


def test_source_evidence_and_reference_are_untouched() -> None:
    files, found = in_sdist(package()), winner()
    folder = "src/softmax_kernel"
    assert files[f"{folder}/kernel_cpu_cpp.py"].decode() == found.source
    assert files[f"{folder}/reference.py"].decode() == problem_source("softmax")
    assert json.loads(files[f"{folder}/certificates/kernel_cpu_cpp.json"]) == found.document
    assert files[f"{folder}/certificates/kernel_cpu_cpp.html"].decode() == found.page


def test_wheel_and_sdist_install_the_same_files() -> None:
    made = package()
    source = {name.removeprefix("src/"): data for name, data in in_sdist(made).items() if name.startswith("src/")}
    assert source == {name: data for name, data in in_wheel(made).items() if ".dist-info/" not in name}


def test_the_names_and_metadata_are_what_pip_expects() -> None:
    made = package()
    name, version = parse_sdist_filename(sdist(made).name)
    assert (name, version) == ("softmax-kernel", Version(made.version))
    assert parse_wheel_filename(wheel(made).name)[:2] == (name, version)
    files = in_wheel(made)
    (info,) = {path.partition("/")[0] for path in files if ".dist-info/" in path}
    metadata = Metadata.from_email(files[f"{info}/METADATA"])
    assert [str(each) for each in metadata.requires_dist or ()] == ["torch>=2.11", 'pytest>=8; extra == "test"']
    project = tomllib.loads(in_sdist(made)["pyproject.toml"].decode())["project"]
    assert (project["name"], project["version"]) == (name, made.version)
    assert project["dependencies"] == ["torch>=2.11"]


def test_the_record_of_a_wheel_names_every_file_with_its_hash() -> None:
    files = in_wheel(package())
    (record,) = (data.decode() for name, data in files.items() if name.endswith("/RECORD"))
    rows = dict(line.split(",", 1) for line in record.splitlines())
    assert set(rows) == set(files)
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert rows[name] == ("," if name.endswith("/RECORD") else f"sha256={digest},{len(data)}")


def test_kernels_for_several_machines_share_a_package() -> None:
    made = package(winner(), on_gpu(), on_gpu("cuda"), on_gpu("cuda"))
    facts = json.loads(made.files["package.json"])
    names = ["kernel_cpu_cpp", "kernel_nvidia_h200_triton", "kernel_nvidia_h200_cuda", "kernel_nvidia_h200_cuda__2"]
    assert [(kernel["name"], kernel["device"]) for kernel in facts["kernels"]] == list(
        zip(names, ["cpu", "cuda", "cuda", "cuda"], strict=True)
    )
    assert [kernel["machine"] for kernel in facts["kernels"]][1:] == ["sm_90"] * 3
    assert made.requires == ("torch>=2.11", "triton>=3.6")
    assert all(f"{name}.py" in made.files and f"certificates/{name}.json" in made.files for name in names)


def test_a_package_of_triton_alone_carries_no_compiler_driver() -> None:
    assert "_loader.py" in package().files
    assert "_loader.py" not in package(on_gpu()).files


@pytest.mark.parametrize(
    ("baseline", "missing", "used"),
    [
        ("eager", {}, "reference"),
        ("compile", {}, "compile"),
        ("compile", {"compile": "output 0 is off"}, "reference"),
    ],
)
def test_the_readme_says_what_was_measured_and_what_runs_where_the_kernel_was_not_faster(
    baseline: str, missing: dict[str, str], used: str
) -> None:
    slow = winner()
    timed = slow.document["timing"]["workloads"]
    timed[0] |= {"ci95": [0.97, 1.2], "baseline": baseline}
    slow.document["environment"]["baselines_missing"] = missing
    text = package(Winner(slow.candidate_id, "cpu", "cpp", signed(dict(slow.document)), slow.page)).readme
    assert f"| {timed[0]['name']} |" in text and f"({used} is used)" in text
    assert f"{timed[1]['speedup']:.2f}x" in text and slow.document["environment"]["torch"] in text
    assert "licence of the project" in " ".join(text.split())


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("softmax", ("softmax-kernel", "softmax_kernel", "softmax", "Softmax")),
        (
            "rmsnorm_residual",
            ("rmsnorm-residual-kernel", "rmsnorm_residual_kernel", "rmsnorm_residual", "RmsnormResidual"),
        ),
        ("level1/19: ReLU", ("level1-19-relu-kernel", "level1_19_relu_kernel", "level1_19_relu", "Level119Relu")),
        ("1_matmul", ("op-1-matmul-kernel", "op_1_matmul_kernel", "op_1_matmul", "Op1Matmul")),
        ("übung", ("bung-kernel", "bung_kernel", "bung", "Bung")),
        ("…", ("op-kernel", "op_kernel", "op", "Op")),
        ("lambda", ("lambda-kernel", "lambda_kernel", "lambda_", "Lambda")),
        ("use", ("use-kernel", "use_kernel", "use_", "Use")),
        ("none", ("none-kernel", "none_kernel", "none", "NoneModule")),
    ],
)
def test_names_follow_the_problems(problem: str, names: tuple[str, ...]) -> None:
    found = names_of(problem)
    assert (found.distribution, found.module, found.function, found.class_name) == names


@pytest.mark.parametrize(
    ("other", "missing"),
    [
        ({"timing": None}, "timing.workloads"),
        ({"environment": {}}, "environment.cpu"),
        ({"candidate": {}}, "candidate.source"),
    ],
)
def test_a_certificate_that_lacks_something_is_refused_by_name(other: dict[str, Any], missing: str) -> None:
    document = certificate("softmax", **other)
    with pytest.raises(CannotPackage, match=missing):
        package(Winner("cand_1", "cpu", "cpp", document, ""))


def test_a_certificate_for_another_text_of_the_problem_is_refused() -> None:
    with pytest.raises(CannotPackage, match="another text"):
        make_package("softmax", problem_source("softmax") + "\n", [winner()])


def test_what_baselines_are_made_of_is_in_the_package() -> None:
    source = problem_source("softmax").replace("SPEC = {", 'SPEC = {\n    "library": {"own": "Own"},', 1)
    source = source.replace('"tf32": False', '"tf32": True', 1) + "\n\nclass Own(Model):\n    pass\n"
    document = certificate("softmax")
    document["problem"]["sha256"] = hashlib.sha256(source.encode()).hexdigest()
    made = make_package("softmax", source, [Winner("cand_1", "cpu", "cpp", signed(document), "")])
    facts = json.loads(made.files["package.json"])
    assert (facts["tf32"], facts["library"]) == (True, {"own": "Own"})
    assert "baselines.py" in made.files and "tests/test_baselines.py" in made.files


@pytest.mark.parametrize(("word", "matters"), [("", False), ("# if self.training\n", True), ("# nn.Dropout\n", True)])
def test_a_reference_that_may_depend_on_its_mode_is_known(word: str, matters: bool) -> None:
    source = problem_source("softmax") + word
    document = certificate("softmax")
    document["problem"]["sha256"] = hashlib.sha256(source.encode()).hexdigest()
    made = make_package("softmax", source, [Winner("cand_1", "cpu", "cpp", signed(document), "")])
    assert json.loads(made.files["package.json"])["mode_matters"] is matters
