"""An example of each command, for its `--help` and for docs/cli.md."""

from __future__ import annotations

from typing import Final

EXIT_CODES: Final = {
    0: "done",
    1: "it failed: the job, the machine, a comparison",
    2: "what was typed cannot be used, or the service refused it",
    3: "the answer is no: cancelled, not certified, not admitted, nothing proposed",
    4: "no service answers, or it is in trouble",
    130: "interrupted with Ctrl-C; a job that was watched goes on",
}

EXAMPLES: Final = {
    "up": "kernelwright up --port 8080 --queues control,llm,cpu",
    "demo": "kernelwright demo --problem softmax",
    "submit": "kernelwright submit softmax --target cpu:cpp --budget-candidates 20 --watch",
    "request": 'kernelwright request "softmax over rows of 4096 in bf16 on an H100, in Triton"',
    "confirm": "kernelwright confirm request_01a2 --watch",
    "watch": "kernelwright watch job_01a2 --json | jq -c 'select(.type == \"candidate.evaluated\").data'",
    "jobs": "kernelwright jobs --state running --limit 5",
    "best": "kernelwright best job_01a2 --output kernel.py",
    "certificate": "kernelwright certificate job_01a2 --out evidence",
    "candidates": "kernelwright candidates job_01a2 --verdict ok --fastest",
    "diff": "kernelwright diff cand_01a2 cand_01b3",
    "cancel": "kernelwright cancel job_01a2 --reason 'found a better problem'",
    "rerun": "kernelwright rerun job_01a2 --watch",
    "ask": "kernelwright ask job_01a2 --limit 4 --out asked.jsonl",
    "tell": "kernelwright tell job_01a2 answered.jsonl",
    "problems": "kernelwright problems --json | jq -r .name",
    "leaderboard": "kernelwright leaderboard softmax --hardware cpu",
    "knowledge": "kernelwright knowledge 'bank conflicts' --target nvidia-h100:cuda",
    "workers": "kernelwright workers --drain worker_01a2",
    "summary": "kernelwright summary",
    "evaluate": "kernelwright evaluate --problem softmax --target cpu --language cpp kernel.py",
    "admit": "kernelwright admit my_op.py --target cpu",
    "certify": "kernelwright certify --problem softmax --target cpu --language cpp kernel.py --out evidence",
    "replay": "kernelwright replay --job job_01a2",
    "worker": "kernelwright worker --queues llm,gpu",
    "keys": "kernelwright keys ranking --create --usd 50",
    "audit": "kernelwright audit --action key.create --limit 10",
    "mcp": "kernelwright mcp --url http://127.0.0.1:8080",
    "migrate": "kernelwright migrate",
    "health": "kernelwright health --queues cpu",
    "doctor": "kernelwright doctor --json",
}
