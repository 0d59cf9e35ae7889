"""What a request in plain words asks for: operations, a number type, hardware, a language, sizes.

Fixed patterns and no model: the same words always mean the same, offline. They know operations that no bundled problem
has, so that it can be said what the nearest one lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_CONCEPTS: tuple[tuple[str, str], ...] = (
    # The longer name first: what it matched is gone for those below it.
    ("factorization_machine", r"wukong(?: fm)?|factori[sz]ation machines?"),
    (
        "personalised_ffn",
        r"interformer(?: pffn)?|\bpffn\b|weight matrix per sample|personali[sz]ed (?:feed[- ]forward|ffn)",
    ),
    ("triangle_update", r"triangle (?:multiplicative )?update|\btri[- ]?mul\b"),
    ("id_mapping", r"\bmap ids?\b|\bids mapped\b|\bremap\w*"),
    ("event_truncation", r"(?:batch )?event truncat\w+|\blast events\b"),
    ("inverted_index", r"(?:sparse )?inverted ind\w+|posting lists?"),
    ("bucketize", r"(?:merge )?bucketi[sz]\w+(?: dense)?|dense features"),
    ("training", r"\btraining\b|\bforward and backward\b"),
    ("feed_forward", r"\bmlp\b|feed[- ]forward|\bffn\b"),
    ("convolution_1d", r"\bconv1d\b|\b1-?d conv\w*|one-dimensional conv\w*"),
    ("log_softmax", r"log[- _]?soft[- _]?max"),
    ("cross_entropy", r"(?:soft[- _]?max[- _]?)?cross[- _]?entropy|\bnll\b|negative log[- ]likelihood"),
    ("linear_attention", r"linear[- ]attention"),
    ("distillation", r"distil\w+|\bkl[- _]?div\w*|kullback\w*"),
    ("clipping", r"(?:\bgrad(?:ient)?s?[- _])?(?:norm[- _])?\bclip\w*(?: (?:of )?(?:the )?grad(?:ient)?s?)?"),
    ("optimizer", r"\badam\w*|\boptimi[sz]er\w*|multi[- _]?tensor"),
    ("paged", r"\bpaged?\b|\bpages\b"),
    ("cache", r"\bkv[- _]?(?:cache|append)\b|\bkey/value cache\b|\bcaches?\b"),
    ("attention", r"scaled[- ]dot[- ]product(?:[- ]attention)?|\w*attention|\bsdpa\b|flash[- _]?attn|\bmha\b"),
    ("grouped_heads", r"\bgqa\b|\bmqa\b|grouped[- ]?(?:query|key|heads)|multi[- ]?query|shared key"),
    ("causal", r"causal|autoregressive|lower[- ]triangular"),
    ("softmax", r"soft[- _]?max"),
    ("padding", r"\bto[- ]dense\b|\bpadded\b(?:.* to a dense tensor)?"),
    ("jagged", r"\bjagged\b|\bragged\b|\bvar(?:iable)?[- ]?len(?:gth)?\b"),
    ("histogram", r"\bhistograms?\b|\bbincount\b|\bcounts of integers\b"),
    ("scatter", r"\bscatter\w*(?:[- _]add)?|\bindex[- _]add\b|\badded into the rows\b"),
    ("bags", r"\bbags?\b"),
    ("recurrent", r"\blstm\b|\bgru\b|\brnn\b"),
    ("state_space", r"selective[- _](?:state[- ]space[- ])?scan|\bmamba\b|state[- ]space(?: models?)?"),
    ("distance", r"\bdistances?\b|\bcdist\b"),
    ("depthwise", r"\bdepth[- ]?wise\b"),
    ("fourier", r"\bffts?\b|\bfourier\b"),
    ("batched", r"\bbatched\b"),
    ("small_matrices", r"\bsmall (?:matri\w+|(?=gemm))"),
    ("skinny", r"\bskinny\b|\bgemv\b|\bmatrix[- ]vector\b|\b1 to 16 rows\b"),
    ("outer", r"\bouter\b|\bstrided dimension\b|\bcolumn sums?\b"),
    ("inner", r"\binner\b|\bcontiguous dimension\b|\brow sums?\b"),
    ("topk", r"\bk largest\b"),
    ("transpose", r"\bdimensions swapped\b"),
    ("rmsnorm", r"rms[- _]?(?:layer[- _]?)?norm\w*|root[- ]mean[- ]square\w*"),
    ("layernorm", r"layer[- _]?norm\w*"),
    ("groupnorm", r"group[- _]?norm\w*"),
    ("batchnorm", r"batch[- _]?norm\w*"),
    ("instancenorm", r"instance[- _]?norm\w*"),
    ("swiglu", r"swi[- ]?glu"),
    ("geglu", r"ge[- ]?glu"),
    ("gelu", r"\bgelu\b|gaussian error linear"),
    ("silu", r"\bsilu\b|\bswish\b"),
    ("relu", r"\b(?:leaky[- ]?)?relu\d?\b"),
    ("sigmoid", r"\bsigmoid\b"),
    ("tanh", r"\btanh\b"),
    ("bias", r"\bbias(?:es|ed)?\b"),
    ("residual", r"\bresiduals?\b|skip[- ]connections?|\badd\b(?=[- +&]*(?:and|then|&|\+)?[- ]*(?:a |an |the )?norm)"),
    ("scale", r"layer[- ]?scale|\bscale\b|\bgain\b"),
    ("embedding", r"\bembeddings?\b|lookup table"),
    ("backward", r"\bbackward\b|\bgradients?\b|\bgrads?\b|\bbwd\b|\bderivatives?\b"),
    ("cumsum", r"cum(?:ulative)?[- _]?sums?|prefix[- ]sums?|\bscan\b|running (?:sum|total)s?"),
    ("cumprod", r"cum(?:ulative)?[- _]?prod\w*"),
    (
        "matmul",
        r"mat[- _]?mul\w*|matrix[- ](?:multipl\w+|products?)|\bb?gemm\b|\blinear\b|fully[- ]connected|\bdense\b",
    ),
    ("convolution", r"\bconv(?:olution\w*|\d?d)?\b"),
    ("pooling", r"\b(?:max|avg|average|mean)?[- ]?pool(?:ing|\dd)?\b"),
    ("rope", r"\brope\b|rotary"),
    ("dropout", r"\bdropout\b"),
    ("topk", r"top[- _]?k\b|\bsort(?:ing|ed)?\b|\bargmax\b"),
    ("transpose", r"\btranspos\w+|\bpermut\w+"),
    ("router", r"\brout(?:er|ing)\b|\btop[- _]?k (?:router|experts)"),
    ("moe", r"\bmoe\b|mixture[- ]of[- ]experts|\bexperts?\b"),
    ("low_rank", r"\blora\b|low[- ]rank\w*|\badapters?\b"),
    ("sampling", r"\btop[- _]?p\b|nucleus|\bsampl\w+"),
    ("four_bits", r"\bw4a16\b|\bint4\b|\b4[- ]bit\b"),
    ("eight_bits", r"\bw8a8\b|\bfp8\b|\b8[- ]bit\b"),
    ("quantization", r"\bquant(?:i[sz]\w+)?\b"),
    ("reduction", r"\breduc(?:e|tion)\w*|\b(?:sum|mean|average|max|min) (?:of|over|along|across)\b"),
)
_DTYPES = (
    ("bfloat16", r"\bbf16\b|\bbfloat16\b|\bbrain float\b"),
    ("float16", r"\bfp16\b|\bfloat16\b|\bf16\b|\bhalf(?:[- ]precision)?\b"),
    ("float32", r"\bfp32\b|\bfloat32\b|\bf32\b|\bsingle[- ]precision\b"),
    ("float64", r"\bfp64\b|\bfloat64\b|\bf64\b|\bdouble[- ]precision\b"),
)
_UNSUPPORTED = r"\bfp8\b|\bfloat8\w*|\be4m3\w*|\be5m2\w*|\bint8\b|\bint4\b|\bfp4\b|\bnvfp4\b|\bmxfp\d\b"
_LANGUAGES = (
    ("triton", r"\btriton\b"),
    ("cuda", r"\bcuda\b|\bptx\b|\bcutlass\b|\bcute\b|\bnvcc\b"),
    ("cpp", r"\bc\+\+|\bcpp\b|\bopenmp\b|\bavx\w*"),
)
_NVIDIA = r"gh200|gb200|gb300|h100|h200|h800|h20|a100|a800|a30|a10g?|a40|l40s?|l20|l4|b100|b200|b300|v100|t4"
_CHIPS = (
    ("nvidia", rf"\b({_NVIDIA})s?\b|\brtx[- ]?((?:a|pro[- ])?\d{{4}}(?:[- ]?(?:ti|super)){{0,2}})\b"),
    ("amd", r"\b(mi\d{3}[ax]?)\b"),
)
_CPU = r"\bcpus?\b|\bx86(?:[-_]64)?\b|\bxeon\b|\bepyc\b|\bprocessor\b"
_GPU = r"\bgpus?\b|\bnvidia\b"

_SIZE = r"\b([A-Za-z_]\w*)\s*(?:=|:)\s*(\d{1,9})\b"
_NAMED = (
    r"\b(batch|rows?|tokens?|hidden|cols?|columns?|heads?|features?|vocab|seq(?:uence)?)\b(?: size| dim\w*| length)?"
    r"(?: of)? (\d{1,9})\b"
)
_SHAPE = r"\b\d{1,9}(?:\s?[x×*]\s?\d{1,9})+\b"


@dataclass(frozen=True, slots=True)
class Wish:
    """What was understood. `chip` is a word such as `h100`, `cpu` or `gpu`; None: nothing was said."""

    text: str
    concepts: frozenset[str] = frozenset()
    dtype: str | None = None
    vendor: str | None = None
    chip: str | None = None
    language: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    unsupported: tuple[str, ...] = ()
    """Number types that no problem has as a whole."""


def understand(text: str) -> Wish:
    """The request's meaning, as far as fixed patterns can tell."""
    plain = " ".join(text.lower().split())
    vendor, chip = _chip(plain)
    return Wish(
        text=text,
        concepts=concepts_in(plain),
        dtype=_first(_DTYPES, plain),
        vendor=vendor,
        chip=chip,
        language=_first(_LANGUAGES, plain),
        sizes=_sizes(plain),
        shape=_shape(plain),
        unsupported=tuple(dict.fromkeys(re.findall(_UNSUPPORTED, plain))),
    )


def concepts_in(text: str) -> frozenset[str]:
    """The operations that a text names."""
    left, found = text.lower(), set()
    for concept, pattern in _CONCEPTS:
        shorter = re.sub(pattern, " ", left)
        if shorter != left:
            found.add(concept)
            left = shorter
    return frozenset(found)


def _first(patterns: Iterable[tuple[str, str]], text: str) -> str | None:
    """The word whose pattern comes first in the text."""
    places = [(match.start(), word) for word, pattern in patterns if (match := re.search(pattern, text))]
    return min(places)[1] if places else None


def _chip(text: str) -> tuple[str | None, str | None]:
    for vendor, pattern in _CHIPS:
        match = re.search(pattern, text)
        if match:
            name = next(group for group in match.groups() if group)
            spelt = re.sub(r"[^a-z0-9]+", "-", name)
            return vendor, f"rtx-{spelt}" if match[0].startswith("rtx") else spelt
    if re.search(_CPU, text):
        return None, "cpu"
    return None, "gpu" if re.search(_GPU, text) else None


def _sizes(text: str) -> dict[str, int]:
    """Sizes with a name: `hidden=4096`, `hidden size 4096`, `batch of 8`."""
    named = [*re.findall(_NAMED, text), *re.findall(_SIZE, text)]
    return {name: int(value) for name, value in named}


def _shape(text: str) -> tuple[int, ...]:
    match = re.search(_SHAPE, text)
    return tuple(int(number) for number in re.findall(r"\d+", match[0])) if match else ()
