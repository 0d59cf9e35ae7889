"""Other compositions of torch's products: einsum, split K, attention, convolution, embeddings."""

from __future__ import annotations

from tests.redteam.honest.building import composed

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
    composed(
        "torch-matmul-einsum",
        "einsum",
        "matmul",
        """
    def forward(self, a, b):
        return torch.einsum("ik,kj->ij", a, b)
    """,
    ),
    composed(
        "torch-matmul-split-k",
        "Three products over parts of K, added",
        "matmul",
        """
    def forward(self, a, b):
        step = -(-a.shape[1] // 3)
        return sum(x @ y for x, y in zip(a.split(step, 1), b.split(step, 0)))
    """,
    ),
    composed(
        "torch-matmul-transposed",
        "(b^T a^T)^T, made contiguous",
        "matmul",
        """
    def forward(self, a, b):
        return (b.t() @ a.t()).t().contiguous()
    """,
    ),
    composed(
        "torch-linear-addmm",
        "addmm",
        "linear",
        """
    def forward(self, x):
        return torch.addmm(self.layer.bias, x, self.layer.weight.t())
    """,
        init=_LINEAR_INIT,
    ),
    composed(
        "torch-conv-unfold",
        "Seven shifted products",
        "conv1d",
        """
    def forward(self, x):
        padded, length = F.pad(x, (3, 3)), x.shape[-1]
        taps = (torch.matmul(self.conv.weight[:, :, t], padded[..., t : t + length]) for t in range(7))
        return sum(taps) + self.conv.bias[:, None]
    """,
        init=_CONV_INIT,
    ),
    composed(
        "torch-attention-by-hand",
        "Softmax of scaled scores",
        "attention",
        """
    def forward(self, q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
    """,
    ),
    composed(
        "torch-attention-chunks",
        "Queries in chunks, so that the scores stay small",
        "attention",
        """
    def forward(self, q, k, v):
        parts = [torch.softmax(part @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v for part in q.split(32, -2)]
        return torch.cat(parts, -2)
    """,
    ),
    composed(
        "torch-causal-sdpa",
        "torch's own fused causal attention",
        "small_attention_causal",
        """
    def forward(self, q, k, v):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    """,
    ),
    composed(
        "torch-fused-out",
        "An output buffer handed to linear, GELU in place",
        "small_matmul_bias_gelu",
        """
    def forward(self, x):
        out = torch.addmm(self.linear.bias, x, self.linear.weight.t())
        return torch.ops.aten.gelu_(out)
    """,
        init=_GELU_LINEAR_INIT,
    ),
    composed(
        "torch-scatter",
        "scatter_add over expanded ids",
        "embedding_grad",
        """
    def __init__(self, vocab):
        super().__init__()
        self.vocab = vocab

    def forward(self, ids, grad):
        out = torch.zeros(self.vocab, grad.shape[1], device=grad.device)
        return out.scatter_add_(0, ids[:, None].expand_as(grad), grad)
    """,
    ),
    composed(
        "torch-embedding-index",
        "Indexing: another gradient kernel than embedding's",
        "embedding_train",
        """
    def forward(self, ids):
        return self.weight[ids]
    """,
        init=_EMBEDDING_INIT,
    ),
    composed(
        "torch-embedding-select",
        "index_select",
        "embedding_train",
        """
    def forward(self, ids):
        return self.weight.index_select(0, ids.flatten()).view(*ids.shape, -1)
    """,
        init=_EMBEDDING_INIT,
    ),
)
"""Honest compositions of products."""
