"""Other compositions of torch's operators: honest numerics, no kernel of their own; judged under share 0."""

from __future__ import annotations

from tests.redteam.honest.building import composed
from tests.redteam.honest.norms import LAYER_INIT, RMS_INIT

_EMBEDDING_INIT = """
def __init__(self, vocab, dim):
    super().__init__()
    self.weight = nn.Parameter(torch.randn(vocab, dim))
"""
_CONV_INIT = """
def __init__(self):
    super().__init__()
    self.conv = nn.Conv1d(8, 8, 7, padding=3)
"""
_LINEAR_INIT = """
def __init__(self, cols):
    super().__init__()
    self.layer = nn.Linear(cols, 80)
"""
_GELU_LINEAR_INIT = """
def __init__(self, inner, outer, dtype="float32"):
    super().__init__()
    self.linear = nn.Linear(inner, outer, dtype=getattr(torch, dtype))
"""

ENTRIES = (
    composed("torch-softmax-by-hand", "exp, sum, divide", "softmax", """
    def forward(self, x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)
    """),
    composed("torch-softmax-log", "exp of log_softmax", "softmax", """
    def forward(self, x):
        return torch.log_softmax(x, -1).exp()
    """),
    composed("torch-softmax-in-place", "In place on its own copy", "softmax", """
    def forward(self, x):
        own = x.clone()
        own.sub_(own.amax(-1, keepdim=True)).exp_()
        return own.div_(own.sum(-1, keepdim=True))
    """),
    composed("torch-layernorm-var-mean", "torch.var_mean and a fused multiply-add", "layernorm", """
    def forward(self, x):
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return torch.addcmul(self.norm.bias, (x - mean) * torch.rsqrt(var + self.norm.eps), self.norm.weight)
    """, init=LAYER_INIT),
    composed("torch-layernorm-double", "Through float64 and back", "layernorm", """
    def forward(self, x):
        norm = self.norm
        wide = F.layer_norm(x.double(), norm.normalized_shape, norm.weight.double(), norm.bias.double(), norm.eps)
        return wide.to(x.dtype)
    """, init=LAYER_INIT),
    composed("torch-layernorm-bands", "Band after band into one output", "layernorm", """
    def forward(self, x):
        out = torch.empty_like(x)
        for start in range(0, x.shape[0], 40):
            out[start : start + 40] = self.norm(x[start : start + 40])
        return out
    """, init=LAYER_INIT),
    composed("torch-rmsnorm-norm", "By the 2-norm of a row", "rmsnorm", """
    def forward(self, x):
        mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1]
        return x / torch.sqrt(mean + 1e-6) * self.weight
    """, init=RMS_INIT),
    composed("torch-rmsnorm-einsum", "Squares by einsum", "rmsnorm", """
    def forward(self, x):
        mean = torch.einsum("...i,...i->...", x, x) / x.shape[-1]
        return x * torch.rsqrt(mean + 1e-6)[..., None] * self.weight
    """, init=RMS_INIT),
    composed("torch-sum-ones", "A product with a vector of ones", "row_sum", """
    def forward(self, x):
        return x @ torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
    """),
    composed("torch-sum-chunks", "Chunk after chunk", "row_sum", """
    def forward(self, x):
        return sum(part.sum(-1) for part in x.split(100, -1))
    """),
    composed("torch-cumsum-double", "The scan in float64", "cumsum", """
    def forward(self, x):
        return torch.cumsum(x, -1, dtype=torch.float64).to(x.dtype)
    """),
    composed("torch-cumsum-blocks", "Scans of blocks, then the blocks' offsets", "cumsum", """
    def forward(self, x):
        parts, offset = [], 0
        for part in x.split(64, -1):
            parts.append(part.cumsum(-1) + offset)
            offset = parts[-1][..., -1:]
        return torch.cat(parts, -1)
    """),
    composed("torch-loss-gather", "logsumexp less the target's logit, both below the row's maximum", "cross_entropy", """
    def forward(self, logits, target):
        below = logits - logits.amax(1, keepdim=True)
        return (torch.logsumexp(below, 1) - below.gather(1, target[:, None])[:, 0]).mean()
    """),
    composed("torch-loss-nll", "log_softmax and nll_loss", "cross_entropy", """
    def forward(self, logits, target):
        return F.nll_loss(F.log_softmax(logits, 1), target)
    """),
    composed("torch-matmul-einsum", "einsum", "matmul", """
    def forward(self, a, b):
        return torch.einsum("ik,kj->ij", a, b)
    """),
    composed("torch-matmul-split-k", "Three products over parts of K, added", "matmul", """
    def forward(self, a, b):
        step = -(-a.shape[1] // 3)
        return sum(x @ y for x, y in zip(a.split(step, 1), b.split(step, 0)))
    """),
    composed("torch-matmul-transposed", "(b^T a^T)^T, made contiguous", "matmul", """
    def forward(self, a, b):
        return (b.t() @ a.t()).t().contiguous()
    """),
    composed("torch-linear-addmm", "addmm", "linear", """
    def forward(self, x):
        return torch.addmm(self.layer.bias, x, self.layer.weight.t())
    """, init=_LINEAR_INIT),
    composed("torch-conv-unfold", "Seven shifted products", "conv1d", """
    def forward(self, x):
        padded, length = F.pad(x, (3, 3)), x.shape[-1]
        taps = (torch.matmul(self.conv.weight[:, :, t], padded[..., t : t + length]) for t in range(7))
        return sum(taps) + self.conv.bias[:, None]
    """, init=_CONV_INIT),
    composed("torch-gelu-normal", "GELU by the normal distribution function", "gelu", """
    def forward(self, x):
        return x * torch.special.ndtr(x)
    """),
    composed("torch-gelu-scripted", "TorchScript", "gelu", """
    def forward(self, x):
        return gelu(x)
    """, head="""
@torch.jit.script
def gelu(x):
    return 0.5 * x * torch.special.erfc(-x * 0.7071067811865476)
"""),
    composed("torch-attention-by-hand", "Softmax of scaled scores", "attention", """
    def forward(self, q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
    """),
    composed("torch-attention-chunks", "Queries in chunks, so that the scores stay small", "attention", """
    def forward(self, q, k, v):
        parts = [torch.softmax(part @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v for part in q.split(32, -2)]
        return torch.cat(parts, -2)
    """),
    composed("torch-causal-sdpa", "torch's own fused causal attention", "small_attention_causal", """
    def forward(self, q, k, v):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    """),
    composed("torch-fused-out", "An output buffer handed to linear, GELU in place", "small_matmul_bias_gelu", """
    def forward(self, x):
        out = torch.addmm(self.linear.bias, x, self.linear.weight.t())
        return torch.ops.aten.gelu_(out)
    """, init=_GELU_LINEAR_INIT),
    composed("torch-scatter", "scatter_add over expanded ids", "embedding_grad", """
    def __init__(self, vocab):
        super().__init__()
        self.vocab = vocab

    def forward(self, ids, grad):
        out = torch.zeros(self.vocab, grad.shape[1], device=grad.device)
        return out.scatter_add_(0, ids[:, None].expand_as(grad), grad)
    """),
    composed("torch-embedding-index", "Indexing: another gradient kernel than embedding's", "embedding_train", """
    def forward(self, ids):
        return self.weight[ids]
    """, init=_EMBEDDING_INIT),
    composed("torch-embedding-one-hot", "A product with one-hot rows", "embedding_train", """
    def forward(self, ids):
        return F.one_hot(ids, self.weight.shape[0]).to(self.weight.dtype) @ self.weight
    """, init=_EMBEDDING_INIT),
    composed("torch-checkpointed", "Recomputed in the backward", "gelu_train", """
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(F.gelu, x, use_reentrant=False)
    """, head="import torch.utils.checkpoint"),
)  # fmt: skip
"""Honest compositions."""
