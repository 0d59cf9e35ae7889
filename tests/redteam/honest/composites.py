"""Other compositions of torch's row operators: honest numerics, no kernel of their own; judged under share 0."""

from __future__ import annotations

from tests.redteam.honest.building import composed
from tests.redteam.honest.norms import LAYER_INIT, RMS_INIT

ENTRIES = (
    composed(
        "torch-softmax-by-hand",
        "exp, sum, divide",
        "softmax",
        """
    def forward(self, x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)
    """,
    ),
    composed(
        "torch-softmax-log",
        "exp of log_softmax",
        "softmax",
        """
    def forward(self, x):
        return torch.log_softmax(x, -1).exp()
    """,
    ),
    composed(
        "torch-softmax-in-place",
        "In place on its own copy",
        "softmax",
        """
    def forward(self, x):
        own = x.clone()
        own.sub_(own.amax(-1, keepdim=True)).exp_()
        return own.div_(own.sum(-1, keepdim=True))
    """,
    ),
    composed(
        "torch-layernorm-var-mean",
        "torch.var_mean and a fused multiply-add",
        "layernorm",
        """
    def forward(self, x):
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return torch.addcmul(self.norm.bias, (x - mean) * torch.rsqrt(var + self.norm.eps), self.norm.weight)
    """,
        init=LAYER_INIT,
    ),
    composed(
        "torch-layernorm-double",
        "Through float64 and back",
        "layernorm",
        """
    def forward(self, x):
        norm = self.norm
        wide = F.layer_norm(x.double(), norm.normalized_shape, norm.weight.double(), norm.bias.double(), norm.eps)
        return wide.to(x.dtype)
    """,
        init=LAYER_INIT,
    ),
    composed(
        "torch-layernorm-bands",
        "Band after band into one output",
        "layernorm",
        """
    def forward(self, x):
        out = torch.empty_like(x)
        for start in range(0, x.shape[0], 40):
            out[start : start + 40] = self.norm(x[start : start + 40])
        return out
    """,
        init=LAYER_INIT,
    ),
    composed(
        "torch-rmsnorm-norm",
        "By the 2-norm of a row",
        "rmsnorm",
        """
    def forward(self, x):
        mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1]
        return x / torch.sqrt(mean + 1e-6) * self.weight
    """,
        init=RMS_INIT,
    ),
    composed(
        "torch-rmsnorm-einsum",
        "Squares by einsum",
        "rmsnorm",
        """
    def forward(self, x):
        mean = torch.einsum("...i,...i->...", x, x) / x.shape[-1]
        return x * torch.rsqrt(mean + 1e-6)[..., None] * self.weight
    """,
        init=RMS_INIT,
    ),
    composed(
        "torch-sum-ones",
        "A product with a vector of ones",
        "row_sum",
        """
    def forward(self, x):
        return x @ torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
    """,
    ),
    composed(
        "torch-sum-chunks",
        "Chunk after chunk",
        "row_sum",
        """
    def forward(self, x):
        return sum(part.sum(-1) for part in x.split(100, -1))
    """,
    ),
    composed(
        "torch-cumsum-double",
        "The scan in float64",
        "cumsum",
        """
    def forward(self, x):
        return torch.cumsum(x, -1, dtype=torch.float64).to(x.dtype)
    """,
    ),
    composed(
        "torch-cumsum-blocks",
        "Scans of blocks, then the blocks' offsets",
        "cumsum",
        """
    def forward(self, x):
        parts, offset = [], 0
        for part in x.split(64, -1):
            parts.append(part.cumsum(-1) + offset)
            offset = parts[-1][..., -1:]
        return torch.cat(parts, -1)
    """,
    ),
    composed(
        "torch-loss-gather",
        "logsumexp less the target's logit, both below the row's maximum",
        "cross_entropy",
        """
    def forward(self, logits, target):
        below = logits - logits.amax(1, keepdim=True)
        return (torch.logsumexp(below, 1) - below.gather(1, target[:, None])[:, 0]).mean()
    """,
    ),
    composed(
        "torch-loss-nll",
        "log_softmax and nll_loss",
        "cross_entropy",
        """
    def forward(self, logits, target):
        return F.nll_loss(F.log_softmax(logits, 1), target)
    """,
    ),
    composed(
        "torch-gelu-normal",
        "GELU by the normal distribution function",
        "gelu",
        """
    def forward(self, x):
        return x * torch.special.ndtr(x)
    """,
    ),
    composed(
        "torch-gelu-scripted",
        "TorchScript",
        "gelu",
        """
    def forward(self, x):
        return gelu(x)
    """,
        head="""
@torch.jit.script
def gelu(x):
    return 0.5 * x * torch.special.erfc(-x * 0.7071067811865476)
""",
    ),
    composed(
        "torch-checkpointed",
        "Recomputed in the backward",
        "gelu_train",
        """
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(F.gelu, x, use_reentrant=False)
    """,
        head="import torch.utils.checkpoint",
    ),
)
"""Honest compositions."""
