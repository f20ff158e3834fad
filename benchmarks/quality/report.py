"""Tables of quality's figures, and figures to reach. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.quality.llama_cpp import FLOAT32
from benchmarks.quality.measuring import EDGES, part
from benchmarks.quality.variants import PLAIN_4, WINDOWED
from benchmarks.tables import Claim, Table, interval, percent
from inference_service.engine.quality import MOST_NATS
from inference_service.engine.quantization import BALANCED, ROTATED

_OURS: Final = {
    BALANCED: 'centred, balanced and rotated ("rotated" is not balanced)',
    ROTATED: "centred and rotated, as releases before had it",
}
_MOST_PERPLEXITY: Final = {BALANCED: {"4": 2.5, "5/4": 2.2, "6/4": 1.3}, ROTATED: {"4": 5.0, "5/4": 2.2, "6/4": 1.3}}
_MOST_NATS: Final = {BALANCED: {"4": 0.025, "5/4": 0.020}, ROTATED: {"4": 0.045, "5/4": 0.020}}
"""Figures to reach by bits of a scheme on one model: change of perplexity in percent, and mean divergence."""
_MEASURED_FIRST: Final = "SmolLM2-135M-Instruct"
_AUTO_PERPLEXITY: Final = 2.0
"""In percent, for the bits that `auto` takes, on any model."""
_EARLY: Final = str(part(1024))
_LATE: Final = str(part(16_384))
_MOST_GROWTH: Final = 4 / 3
_MOST_LOST: Final = 2.0
_PEER: Final = "llama.cpp, q4_0"
"""As many bits as our 4."""
_TAILS: Final = {"divergence_99": "99 %", "divergence_999": "99.9 %"}
_MOST_BITS: Final = 4.5
_LEAST_TOLD: Final = 0.95
_FEW: Final = 4
_ENOUGH: Final = 5
"""Variants, for a correlation to say something."""


def tables(figures: dict[str, Any]) -> list[Table]:
    recall = [_recall(figures)] if figures["recall"] else []
    parts = [_parts(figures)] if len(_places(figures)) > 1 else []
    return [_divergence(figures), _kinds(figures), *parts, *recall, _check(figures)]


def claims(figures: dict[str, Any]) -> list[Claim]:
    found, scheme = figures["variants"], figures["scheme"]
    own = figures["model"] == _MEASURED_FIRST
    perplexity, nats = (_MOST_PERPLEXITY[scheme], _MOST_NATS[scheme]) if own else ({}, {})
    claims = [*_limits(found, "{} bits", perplexity, nats)]
    if (auto := figures["auto"]["bits"]) in found:
        claims += _limits(found, "{} bits, which auto takes", {auto: _AUTO_PERPLEXITY}, {auto: MOST_NATS})
        claims += _along(found[auto], f"{auto} bits, which auto takes")
    if {"4", _PEER} <= found.keys():
        ratio = found["4"]["divergence"]["value"] / found[_PEER]["divergence"]["value"]
        claims.append(Claim(f"4 bits: KL divergence over that of {_PEER}", ratio, 1.0, True))
    if "4" in found:
        claims.append(Claim("4 bits: bits stored of an element", found["4"]["bits"], _MOST_BITS, True, ""))
    if {"4/3", PLAIN_4} <= found.keys():
        ratio = found["4/3"]["divergence"]["value"] / found[PLAIN_4]["divergence"]["value"]
        claims.append(Claim("4/3 bits: KL divergence over that of plain 4", ratio, 1.0, True))
    if sum("check" in of for of in found.values()) >= _ENOUGH:
        told = figures["prediction"]["divergence_pearson"]
        claims.append(
            Claim("the check at load: correlation of its KL with that of texts", told, _LEAST_TOLD, False, "")
        )
    return claims


def _limits(
    found: Mapping[str, Any], title: str, perplexity: Mapping[str, float], nats: Mapping[str, float]
) -> Iterator[Claim]:
    for name in (name for name in perplexity if name in found):
        change = (found[name]["ratio"]["value"] - 1) * 100
        yield Claim(f"{title.format(name)}: perplexity over unquantized", change, perplexity[name], True, " %")
    for name in (name for name in nats if name in found):
        divergence = found[name]["divergence"]["value"]
        yield Claim(f"{title.format(name)}: mean KL divergence", divergence, nats[name], True, " nats")


def _along(found: Mapping[str, Any], title: str) -> Iterator[Claim]:
    parts = found["by_part"]
    if parts.keys() >= {_EARLY, _LATE}:
        growth = parts[_LATE]["divergence"]["value"] / parts[_EARLY]["divergence"]["value"]
        yield Claim(f"{title}: KL divergence after 16K tokens over that at 1K to 4K", growth, _MOST_GROWTH, True)
    if found["recall"]:
        lost = -100 * found["recall"]["difference"]["value"]
        yield Claim(f"{title}: recall lost at most", lost, _MOST_LOST, True, " points")


def _divergence(figures: dict[str, Any]) -> Table:
    rows = [
        [
            name,
            f"{of['bits']:.2f}",
            f"{of['bytes']:,.0f}",
            percent(of["ratio"], "+.2f", minus=1.0),
            interval(of["divergence"], ".3g"),
            *(interval(of[key], ".2g") for key in _TAILS),
            percent(of["same"]),
        ]
        for name, of in figures["variants"].items()
    ]
    missing = figures["missing"]
    without = f" Not on this device: {' and '.join(missing)}: {next(iter(missing.values()))}" if missing else ""
    columns = ("K/V", "bits", "bytes a token", "perplexity", "mean KL (nats)", *_TAILS.values(), "same first choice")
    total, perplexity = sum(figures["tokens"].values()), figures["perplexity"]["all"]
    note = (
        f"{figures['model']} in {figures['dtype']}, {total:,} tokens in pieces of {figures['length']:,}, each token "
        f"quantized when it is written, prefill in chunks of {figures['chunk']}; perplexity with unquantized KV "
        f"{perplexity:.3f}. Rows named by bits alone are ours: {_OURS[figures['scheme']]}, groups of 64; "
        '"plain" is as it is. Bits are those of an element with its share of scale '
        "and bias in 16 bits. 95 % intervals by a paired bootstrap over pieces. The paper claims "
        f"-0.7 to +3.0 % for its 4 bits, on larger models.{_windows(figures)}"
        f"{_llama_cpp(figures)}{without}"
    )
    return Table("Perplexity and divergence of a real language model", columns, rows, note)


def _windows(figures: dict[str, Any]) -> str:
    there = figures["variants"].keys() & set(WINDOWED)
    return (
        ' With "w6" sliding windows have 6 bits; bits and bytes are without windows, which mlx-lm does not quantize.'
        if there
        else ""
    )


def _llama_cpp(figures: dict[str, Any]) -> str:
    weights = (
        "Its weights are in float32, too."
        if figures.get("llama_cpp_weights") == FLOAT32
        else "Its products round activations to 8 bits, so that any change of them costs some thousandths of a nat."
    )
    return "".join(
        f" llama.cpp's formats of K and V are over the model's GGUF file and beside {base}, whose perplexity is "
        f"{perplexity:.3f}, all with flash attention (llama-cpp-python {figures['llama_cpp']}). {weights}"
        for base, perplexity in figures["bases"].items()
    )


def _kinds(figures: dict[str, Any]) -> Table:
    kinds = [*figures["tokens"]]
    read = [piece["kind"] for piece in figures["samples"]["pieces"]]
    rows = [
        [name, *(_of_kind(of["by_kind"][kind], read.count(kind)) for kind in kinds)]
        for name, of in figures["variants"].items()
    ]
    sizes = ", ".join(
        f"{kind} {figures['tokens'][kind]:,} tokens of perplexity {figures['perplexity'][kind]:.2f}" for kind in kinds
    )
    note = (
        f"Change of perplexity, with its 95 % interval where there are {_FEW} pieces or more, and mean KL in nats. "
        f"Unquantized: {sizes}."
    )
    return Table("By kind of text", ("K/V", *kinds), rows, note)


def _places(figures: dict[str, Any]) -> list[str]:
    """Return the parts of the context that were read, which all variants have."""
    return [*next(iter(figures["variants"].values()))["by_part"]]


def _parts(figures: dict[str, Any]) -> Table:
    places = _places(figures)
    begins = (0, *EDGES)
    ends = (*(min(edge, figures["length"]) for edge in EDGES), figures["length"])
    names = [f"{begins[int(place)]:,} to {ends[int(place)]:,}" for place in places]
    rows = [
        [name, *(interval(of["by_part"][place]["divergence"], ".3g") for place in places)]
        for name, of in figures["variants"].items()
    ]
    note = "Mean KL in nats by how many tokens are before, with 95 % intervals by a bootstrap over pieces."
    return Table("By position in the context", ("K/V", *names), rows, note)


def _of_kind(of: Mapping[str, Mapping[str, float]], pieces: int) -> str:
    ratio = of["ratio"]
    shown = percent(ratio, "+.1f", minus=1.0) if pieces >= _FEW else f"{(ratio['value'] - 1) * 100:+.1f} %"
    return f"{shown}, {of['divergence']['value']:.2g}"


def _recall(figures: dict[str, Any]) -> Table:
    asked = {name: of for name, of in figures["variants"].items() if of["recall"]}
    sizes = [*figures["recall_by_tokens"]]
    if len(sizes) > 1:
        rows = [
            [f"{name}, {int(size):,} tokens", *_recalled(of["recall_by_tokens"][size])]
            for name, of in asked.items()
            for size in sizes
        ]
        rows += [[f"{name}, all", *_recalled(of["recall"])] for name, of in asked.items()]
    else:
        rows = [[name, *_recalled(of["recall"])] for name, of in asked.items()]
    columns = ("K/V", "exact", "lost / gained", "p", "difference", "mean log-probability", "change")
    base = figures["recall"]
    note = (
        f"Facts told at the beginning of {figures['chats']} chats of up to {max(figures['chat_tokens']):,} tokens, "
        f"asked for at the end. Exact: every token of the value is the first choice; unquantized {base['right']} of "
        f"{base['asked']}{_unquantized(figures, sizes)}, since the model is small. Lost and gained beside unquantized, "
        "with McNemar's exact test and Bonett and Price's interval. Log-probability (nats) of the right value's "
        f"tokens, unquantized {base['logprob']:.3f}; its change with an interval by a paired bootstrap over chats."
    )
    return Table("Recall in long chats", columns, rows, note)


def _recalled(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{found['right']} of {found['asked']}",
        f"{found['lost']} / {found['gained']}",
        f"{found['chance']:.2g}",
        percent(found["difference"]),
        f"{found['logprob']:.3f}",
        interval(found["logprob_change"], "+.3f"),
    ]


def _unquantized(figures: dict[str, Any], sizes: Sequence[str]) -> str:
    if len(sizes) < 2:
        return ""
    found = figures["recall_by_tokens"]
    right = (f"{found[size]['right']} at {int(size):,} tokens" for size in sizes)
    return f" ({', '.join(right)})"


def _check(figures: dict[str, Any]) -> Table:
    checked = {name: of for name, of in figures["variants"].items() if "check" in of}
    rows = [
        [
            name,
            f"{of['check']:.2g}",
            f"{of['divergence']['value']:.2g}",
            f"{(of['ratio']['value'] - 1) * 100:+.2f} %",
        ]
        for name, of in sorted(checked.items(), key=lambda each: each[1]["check"])
    ]
    found = figures["prediction"]
    note = (
        f"KL divergence in nats over the {figures['check_tokens']} tokens that a worker checks a model with at its "
        "first load, and over texts that it does not contain. Over these rows logarithms of both KL correlate with "
        f"r = {found['divergence_pearson']:.3f} (Spearman's {found['divergence_spearman']:.3f}), the check's KL and "
        f"the logarithm of perplexity's ratio with r = {found['perplexity_pearson']:.3f} "
        f"({found['perplexity_spearman']:.3f})."
    )
    auto = figures["auto"]
    note += f' With `kv_bits = "auto"` this model gets {auto["bits"]}: {auto["reason"].removeprefix("auto: ")}.'
    return Table("What the check at load predicts", ("K/V", "KL of the check", "KL of texts", "perplexity"), rows, note)
