"""A built-in proposer that traces nothing: it offers one candidate, as `worker.builtin` would after seconds of a core.

Only the harness starts it (`tests.chaos.evaluator`), in the place and with the protocol of the real one.
"""

from __future__ import annotations

import json
import sys

SOURCE = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0.0) + torch.clamp(x, min=0.0)
"""


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    seed = {"kind": "recipe", "name": "stub", "plan": "what the stub offers", "source": SOURCE}
    answer = seed if request["index"] == 0 else {"exhausted": True}
    sys.stdout.write(json.dumps(answer | {"menu_size": 1}))


if __name__ == "__main__":
    main()
