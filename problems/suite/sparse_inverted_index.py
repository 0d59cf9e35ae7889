"""First-stage retrieval: documents scored by the posting lists of a query's terms, and the best of them.

Impacts and query weights are small whole numbers, as in quantised indexes, so that scores are exact; of documents with
equal scores the one with the lower number comes first.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Documents scored by the weighted posting lists of query terms, and the best k of each query",
    "op_family": "topk",
    "workloads": [
        {
            "name": "small",
            "for": "cpu",
            "params": {"documents": 2000, "vocabulary": 50, "postings": 5000, "queries": 2, "terms": 4, "best": 10},
        },
        {
            "name": "odd",
            "for": "cpu",
            "params": {"documents": 1999, "vocabulary": 53, "postings": 7919, "queries": 3, "terms": 5, "best": 7},
        },
        {
            "name": "large",
            "for": "cpu",
            "params": {"documents": 20000, "vocabulary": 100, "postings": 50000, "queries": 2, "terms": 8, "best": 20},
        },
        {"name": "single", "for": "gpu", "params": {"queries": 1}},
        {"name": "few_terms", "for": "gpu", "params": {"queries": 8, "terms": 8}},
        {
            "name": "odd_sizes",
            "for": "gpu",
            "params": {
                "documents": 700001,
                "vocabulary": 4999,
                "postings": 9999991,
                "queries": 3,
                "terms": 47,
                "best": 97,
            },
        },
        {"name": "batch", "for": "gpu", "params": {"queries": 8}},
        {"name": "large_batch", "for": "gpu", "params": {"queries": 32}},
    ],
    "domains": {
        "offsets": "fixed",
        "documents": "strictly_ascending",
        "impacts": {"index": 128},
        "terms": {"index": "vocabulary"},
        "weights": {"index": 128},
    },
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, documents, best):
        super().__init__()
        self.documents, self.best = documents, best

    def forward(self, offsets, documents, impacts, terms, weights):
        queries, per_query = terms.shape
        starts = offsets[terms].flatten()
        lengths = offsets[terms + 1].flatten() - starts
        part = torch.repeat_interleave(torch.arange(lengths.numel(), device=lengths.device), lengths)
        within = torch.arange(part.numel(), device=part.device) - (lengths.cumsum(0) - lengths)[part]
        place = starts[part] + within
        scores = torch.zeros(queries * self.documents, dtype=torch.int64, device=terms.device)
        target = part // per_query * self.documents + documents[place]
        scores.index_add_(0, target, weights.flatten()[part].long() * impacts[place])
        # One key for score and document: whoever sorts it breaks ties by the lower document.
        order = self.documents - 1 - torch.arange(self.documents, device=terms.device)
        keys = scores.view(queries, self.documents) * self.documents + order
        found = keys.topk(self.best, dim=1).values
        return found // self.documents, self.documents - 1 - found % self.documents


def get_inputs(documents=1000000, vocabulary=5000, postings=20000000, queries=8, terms=64):
    shares = torch.arange(1, vocabulary + 1, dtype=torch.float64).rsqrt()  # common terms have longer lists
    lengths = (shares / shares.sum() * postings).long().clamp_max(documents)[torch.randperm(vocabulary)]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    term = torch.repeat_interleave(torch.arange(vocabulary), lengths)
    within = torch.arange(term.numel()) - offsets[term] + torch.rand(term.numel(), dtype=torch.float64)
    listed = (within * documents / lengths[term]).long()  # one from each of as many stretches: ascending, no two alike
    impacts = torch.randint(1, 128, (term.numel(),), dtype=torch.int8)
    asked = torch.randint(vocabulary, (queries, terms))
    return [offsets, listed, impacts, asked, torch.randint(1, 128, (queries, terms), dtype=torch.int8)]


def get_init_inputs(documents=1000000, best=100):
    return [documents, best]
