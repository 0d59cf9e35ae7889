"""Every command of README.md and docs/ is seen: run by tests/acceptance/guides, or listed here with why it is not.

What is not run is checked as far as it can be: bash reads it, and the subcommands, options, modules, make targets and
files that it names exist. So are commands that running text mentions.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from functools import cache

import pytest

from cli.generate.reference import every_command
from cli.main import COMMANDS
from tests.support.guides import plan
from tests.support.guides.pages import NOT_RUN, ROOT, Page, defects, pages, plain, read, subcommands

PAGES = pages()

NOT_RUN_HERE: dict[str, list[str]] = {
    "README.md": [
        "network: make demo",
        "network: . .venv/bin/activate",
    ],
    "docs/howto/add-hardware.md": [
        "gpu: kernelwright doctor",
        "gpu: kernelwright worker --queues gpu",
        "gpu: kernelwright submit softmax --target nvidia-h200:triton --budget-candidates 4 --watch",
        "gpu: python -m pytest tests/gpu",
        "gpu: python -m tests.redteam --gpu-only --hardware nvidia-h200",
        "gpu: python -m benchmarks.judge --out judge-figures.json",
    ],
    "docs/howto/add-language.md": [
        "hours: python -m pytest tests/unit/languages tests/integration/judge",
        "hours: python -m tests.redteam --set honest",
        "hours: python -m tests.redteam --set cheats",
        "hours: make lint",
    ],
    "docs/howto/gpu-fleet.md": [
        "gpu: kernelwright doctor",
        "gpu: KERNELWRIGHT_MINIMUM_SANDBOX=namespaces kernelwright worker --queues gpu",
    ],
    "docs/operations.md": [
        'production: pg_dump --format=custom --file=kernelwright.dump "$DATABASE"',
        'production: pg_restore --clean --if-exists --no-owner --dbname="$DATABASE" kernelwright.dump',
    ],
    "docs/reliability.md": [
        "hours: make chaos QUICK=1",
        "hours: make chaos",
        "hours: python -m tests.chaos --seeds 7 --keep logs",
        "hours: python -m tests.chaos --figures recovery --lease-s 45 --samples 20 --out chaos.jsonl",
        "hours: python -m tests.chaos --figures soak --out chaos.jsonl",
    ],
    "docs/search.md": [
        "hours: make bench-policy",
        'hours: make bench-policy BENCH_ARGS="--plots docs/img --tables tables.md"',
        "hours: python -m benchmarks.policy.record --folder pools --limit-s 240",
        "hours: python -m benchmarks.policy.record --folder pools --pack",
        "hours: python -m benchmarks.policy.live --limit-s 240",
    ],
    "docs/service.md": [
        "hours: BEST=$(curl -s http://127.0.0.1:8080/v1/jobs/$JOB/best | jq -r .id)",
        "hours: kernelwright code $BEST | head -20",
        "hours: curl -s http://127.0.0.1:8080/v1/candidates/$BEST/assembly | head -20",
        "hours: KERNELWRIGHT_DATABASE_URL=postgresql://... kernelwright migrate",
        "hours: KERNELWRIGHT_DATABASE_URL=postgresql://... python -m benchmarks.load.fill",
        "hours: make load",
    ],
    "docs/tutorial.md": [
        "network: make install",
        "network: . .venv/bin/activate",
    ],
    "docs/exchange.md": [
        "hours: kernelwright export flashinfer $JOB --out traces",
        "gpu: kernelwright export flashinfer $CANDIDATE --format sol-execbench --out bench",
        "network: kernelwright import flashinfer rmsnorm.json --workloads rmsnorm.jsonl --out rmsnorm.py",
        "network: kernelwright import flashinfer rmsnorm.json --workloads rmsnorm.jsonl --submit --target nvidia-h100:triton",  # noqa: E501
    ],
    "docs/package.md": [
        "hours: curl -OJ http://127.0.0.1:8080/v1/jobs/$JOB/package",
        'hours: curl -OJ "http://127.0.0.1:8080/v1/jobs/$JOB/package?format=wheel"',
        "hours: kernelwright export package $JOB --out dist/",
        "hours: kernelwright export package $JOB --out . --unpack",
        "hours: curl -sOJ -w '%{http_code} %{size_download} bytes\\n' http://127.0.0.1:8080/v1/jobs/$JOB/package",
        "hours: kernelwright export package $JOB --out dist/ --format wheel",
        "hours: pip install --no-deps dist/*.whl",
        "hours: python use.py",
        "hours: python -m pytest -q -p no:cacheprovider -W ignore --pyargs rmsnorm_residual_kernel",
    ],
    "docs/webhooks.md": [
        "network: kernelwright webhooks add https://example.com/hooks/kernelwright --label team=ranking",
        'network: curl -s -H "Authorization: Bearer $KEY" --json \'{"url": "https://example.com/hooks/kernelwright"}\' $URL/v1/webhooks',  # noqa: E501
        "network: HEX=$(printf %s \"${SECRET#whsec_}\" | base64 -d | od -An -v -tx1 | tr -d ' \\n')",
        'network: { printf %s "$ID.$TIMESTAMP."; cat body.json; } | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$HEX" -binary | base64',  # noqa: E501
        "network: kernelwright webhooks test $HOOK",
        "network: kernelwright webhooks deliveries $HOOK --state failed",
        "network: kernelwright webhooks retry $HOOK $DELIVERY",
        "production: KERNELWRIGHT_WEBHOOK_ALLOW=127.0.0.0/8 kernelwright up",
    ],
}
"""The commands that nobody runs, by page. A new one needs a reason (pages.NOT_RUN) and a line here."""


def _not_run(page: Page) -> list[str]:
    steps = (step.commands for step in page.steps() if step.commands.role in NOT_RUN)
    return [f"{block.role}: {line.strip()}" for block in steps for line in plain(block.text).splitlines()]


def test_no_page_hides_a_command() -> None:
    assert [fault for page in PAGES for fault in defects(page)] == []


def test_every_link_leads_to_a_file() -> None:
    links = [(page.name, link) for page in PAGES for link in page.links]
    assert [(name, link) for name, link in links if not ((ROOT / name).parent / link).exists()] == []


def test_every_page_with_commands_is_read_by_one_test() -> None:
    read = [*plan.QUICK, *plan.LONG, *plan.ALONE, *plan.BESIDE]
    runs = [page.name for page in PAGES if page.runs]
    assert sorted(read) == sorted(runs), "name the page in tests/support/guides/plan.py"


def test_what_is_not_run_is_listed() -> None:
    found = {page.name: lines for page in PAGES if (lines := _not_run(page))}
    assert found == NOT_RUN_HERE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_bash_reads_all_commands_and_what_they_name_exists(page: Page) -> None:
    blocks = [step.commands.text for step in page.steps()]
    for text in blocks:
        checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
    assert [wrong for text in [*map(plain, blocks), *page.mentions] for wrong in _unknown(text)] == []


def _unknown(text: str) -> list[str]:
    """The names in a command that nothing has."""
    wrong = []
    for name, options in subcommands(text):
        known: frozenset[str] = _options_of(name) if name in COMMANDS else frozenset()
        wrong += [f"kernelwright {name} {option}".strip() for option in ["", *options] if option not in known]
    modules = re.findall(r"\bpython3? -m ((?:api|benchmarks|cli|tests|worker)[\w.]*)", text)
    wrong += [f"python -m {module}" for module in modules if importlib.util.find_spec(module) is None]
    targets = re.findall(r"^(?:make|\w+=\S+ make) ([\w-]+)", text, flags=re.MULTILINE)
    known_targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    wrong += [f"make {target}" for target in targets if target not in known_targets]
    files = re.findall(r"(?<!\S)(?:deploy|benchmarks|problems|search|worker)/[\w./-]+", text)
    return wrong + [file for file in files if not (ROOT / file).exists()]


@cache
def _options_of(name: str) -> frozenset[str]:
    own = [command for full, command in every_command() if full.split()[0] == name]
    spelled = {option for command in own for each in command.params for option in (*each.opts, *each.secondary_opts)}
    return frozenset({"", "--help", *spelled})


# --- that the checks above can fail ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```\nkernelwright up\n```\n", "a fence with no word"),
        ("```bash\nkernelwright up\n```\n", "`bash` is no kind of block"),
        ("```sh slow\nkernelwright up\n```\n", "`sh slow` is no kind of block"),
        ("```text\nkernelwright up\n```\n", "a command in a block that is not run"),
        ("```output\nup\n```\n", "output without commands"),
        ("Say:\n\n    kernelwright up\n", "an indented block"),
    ],
)
def test_a_hidden_command_is_found(text: str, fault: str) -> None:
    (found,) = defects(read("page.md", text))
    assert fault in found


def test_what_does_not_exist_is_found() -> None:
    assert _unknown("kernelwright submit x --watch --faster") == ["kernelwright submit --faster"]
    assert _unknown("kernelwright fly") == ["kernelwright fly"]
    assert _unknown("make tea") == ["make tea"]
    assert _unknown("python -m cli.nothing") == ["python -m cli.nothing"]
    assert _unknown("kubectl apply -f deploy/nothing.yaml") == ["deploy/nothing.yaml"]


def test_comments_and_documents_are_no_commands() -> None:
    text = "cat > a <<'EOF'\nkernelwright fly --high\nEOF\nkernelwright jobs \\\n  --json  # kernelwright sing --low\n"
    assert subcommands(plain(text)) == [("jobs", ["--json"])]


def test_steps_pair_commands_with_what_they_print() -> None:
    page = read("p", "```sh\na\n```\n\ntext\n\n```json output\n{}\n```\n\n```sh server\nb\n```\n\n```python\nc\n```\n")
    assert [(step.commands.role, step.printed and step.printed.text) for step in page.steps()] == [
        ("run", "{}\n"),
        ("server", None),
    ]
    assert page.runs
    assert page.starts
