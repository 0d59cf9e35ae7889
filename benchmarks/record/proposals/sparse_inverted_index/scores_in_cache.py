"""A query's scores are one 32-bit row in the second cache; its best are found by a bound and not by a sort.

Each query runs through its terms' posting lists and adds weight times impact. The k-th largest of some groups' maxima
is a bound that few more than k documents reach; only they are sorted, as pairs with their number. The reference makes
an index of every posting and sorts keys of 64 bits by torch.topk.
"""

import torch
from kernelwright import load_cpp
from torch import nn

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <functional>

static const int32_t LOWEST = INT32_MIN;

// A score that at least k documents reach.
static int32_t bound(const int32_t* scores, int64_t n, int64_t k) {
    const int64_t groups = (4 * k + 63) / 64 * 64;
    if (groups > 4096 || n < 2 * groups) return LOWEST;
    int32_t most[4096];
    for (int64_t g = 0; g < groups; g++) most[g] = LOWEST;
    for (int64_t i = 0; i < n; i += groups) {
        const int64_t some = n - i < groups ? n - i : groups;
        #pragma omp simd
        for (int64_t g = 0; g < some; g++) most[g] = scores[i + g] > most[g] ? scores[i + g] : most[g];
    }
    std::nth_element(most, most + k - 1, most + groups, std::greater<int32_t>());
    return most[k - 1];
}

// The k best as pairs that are larger for larger scores, and of equal scores for the smaller number.
static void best_of(const int32_t* scores, int64_t n, int64_t k, int64_t* found, int64_t* best, int64_t* number) {
    const int32_t least = bound(scores, n, k);
    int64_t count = 0, equal = 0;
    for (int64_t i = 0; i < n; i += 32) {
        const int64_t end = i + 32 < n ? i + 32 : n;
        // Of those that just reach the bound the first k are enough: most documents score nothing.
        const int32_t wanted = equal < k || least == LOWEST ? least : least + 1;
        int32_t any = 0;
        #pragma omp simd reduction(| : any)
        for (int64_t l = i; l < end; l++) any |= scores[l] >= wanted;
        if (!any) continue;
        for (int64_t l = i; l < end; l++) {
            found[count] = (int64_t)scores[l] * 4294967296 + (0x7fffffff - l);
            count += scores[l] >= wanted;
            equal += scores[l] == least;
        }
    }
    if (count > k) std::nth_element(found, found + k - 1, found + count, std::greater<int64_t>());
    std::sort(found, found + k, std::greater<int64_t>());
    for (int64_t j = 0; j < k; j++) {
        number[j] = 0x7fffffff - (int64_t)(uint32_t)found[j];
        best[j] = scores[number[j]];
    }
}

extern "C" void retrieve(const int64_t* offsets, const int64_t* listed, const int8_t* impacts, const int64_t* terms,
                         const int8_t* weights, int64_t* best, int64_t* number, int64_t* refused, int64_t queries,
                         int64_t per_query, int64_t vocabulary, int64_t postings, int64_t documents, int64_t k) {
    int64_t wrong = 0;
    #pragma omp parallel reduction(| : wrong) if (queries > 1 && queries * documents >= 16384)
    {
        int32_t* scores = (int32_t*)malloc(documents * sizeof(int32_t));
        int64_t* found = (int64_t*)malloc((documents + 1) * sizeof(int64_t));
        #pragma omp for schedule(dynamic, 1)
        for (int64_t q = 0; q < queries; q++) {
            int64_t seen = 0;
            memset(scores, 0, documents * sizeof(int32_t));
            for (int64_t t = q * per_query; t < (q + 1) * per_query; t++) {
                const bool known = terms[t] >= 0 && terms[t] < vocabulary;
                const int64_t begin = known ? offsets[terms[t]] : 0, end = known ? offsets[terms[t] + 1] : 0;
                if (!known || begin < 0 || end < begin || end > postings) {
                    wrong |= 1;
                    continue;
                }
                seen += end - begin;
                for (int64_t i = begin; i < end; i++) {
                    if ((uint64_t)listed[i] < (uint64_t)documents) scores[listed[i]] += weights[t] * impacts[i];
                    else wrong |= 1;
                }
            }
            wrong |= seen >= 131072 ? 2 : 0;  // a posting adds at most 2^14: a score might not have fitted 31 bits
            best_of(scores, documents, k, found, best + q * k, number + q * k);
        }
        free(found);
        free(scores);
    }
    *refused = wrong;
}
"""
lib = load_cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, documents, best):
        super().__init__()
        self.documents, self.best = documents, best

    def forward(self, offsets, documents, impacts, terms, weights):
        wide, small = {offsets.dtype, documents.dtype, terms.dtype}, {impacts.dtype, weights.dtype}
        if wide != {torch.int64} or small != {torch.int8}:
            raise NotImplementedError("int64 offsets, documents and terms, int8 impacts and weights")
        (queries, per_query), postings = terms.shape, documents.numel()
        if weights.shape != terms.shape or impacts.shape != documents.shape or not 0 <= self.best <= self.documents:
            raise IndexError("a weight for each term, an impact for each posting, and no more results than documents")
        if self.documents >= 2**31:
            raise NotImplementedError("documents have numbers of 31 bits")
        tensors = [each.contiguous() for each in (offsets, documents, impacts, terms, weights)]
        best, number = torch.empty((2, queries, self.best), dtype=torch.int64)
        refused = torch.empty(1, dtype=torch.int64)
        if best.numel():
            lib.retrieve(
                *tensors, best, number, refused, queries, per_query, offsets.numel() - 1, postings, self.documents,
                self.best,
            )  # fmt: skip
            reason = refused.item()
            if reason & 1:
                raise IndexError("a term or a document that is not there")
            if reason:
                raise NotImplementedError(
                    "131,072 postings or more of one query: its scores might need more than 31 bits"
                )
        return best, number
