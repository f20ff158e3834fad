"""One model measured: the same texts with unquantized KV, with 4 and with 8 bits."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from agentmem.kv.bits import KVBits
from benchmarks.architectures import scores
from benchmarks.architectures.engine import LogProbs, quantized, unquantized
from benchmarks.architectures.scores import DECODE, PHASES, PREFILL, Answer, Sample, Sums
from benchmarks.architectures.texts import Text, check, make_texts
from benchmarks.intervals import wilson
from benchmarks.loading import load
from inference_service.models.capability import QuantizationSettings
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel

BITS = (4, 8)
_POOL_BYTES = 512 << 20
_BATCH_BYTES = 1 << 30


def loaded(directory: Path, work: Path, bits: int, group_size: int = 64) -> LoadedModel:
    """A model as the worker loads it: float32 on a CPU, in its own dtype elsewhere. `work` is for hashes of files."""
    return load(
        directory.name,
        str(directory),
        quantization=QuantizationSettings(KVBits(bits, bits), group_size),
        hashes=ContentHashes(work / "hashes.json"),
        pool_bytes=_POOL_BYTES,
        batch_bytes=_BATCH_BYTES,
    )


def sample_of(text: Text, plain: LogProbs, given: LogProbs) -> Sample:
    """Compare what was expected of one text."""
    wanted = np.array(text.token_ids[1:])
    row = np.arange(len(wanted))
    plain_right, right = plain[row, wanted].astype(np.float64), given[row, wanted].astype(np.float64)
    divergences = (np.exp(plain) * (plain - given)).sum(axis=-1, dtype=np.float64)
    before, spoken = row < text.split, np.isin(row + 1, text.spoken)

    def sums(part: NDArray[np.bool_]) -> Sums:
        return Sums(
            int(part.sum()),
            float(-right[part].sum()),
            float(-plain_right[part].sum()),
            float(divergences[part].sum()),
        )

    phases = {PREFILL: before, DECODE: ~before}
    plain_chosen, chosen = plain.argmax(-1) == wanted, given.argmax(-1) == wanted
    answers = [
        Answer(
            PREFILL if text.prefilled(first) else DECODE,
            bool(plain_chosen[first - 1 : behind - 1].all()),
            bool(chosen[first - 1 : behind - 1].all()),
        )
        for first, behind in text.answers
    ]
    return Sample(
        text.length,
        {phase: sums(part & spoken) for phase, part in phases.items()},
        {phase: sums(part) for phase, part in phases.items()},
        answers,
    )


def compare(model: LoadedModel, texts: Sequence[Text], plain: Sequence[LogProbs]) -> list[Sample]:
    """The model's quantized KV against what `unquantized` gave; texts of one length decode together."""
    samples = []
    for length in dict.fromkeys(text.length for text in texts):
        at = [number for number, text in enumerate(texts) if text.length == length]
        found = quantized(model, [texts[number] for number in at])
        samples += [sample_of(texts[n], plain[n], given) for n, given in zip(at, found, strict=True)]
        mx.clear_cache()
    return samples


def measured(directory: Path, work: Path, counts: dict[int, int], decoded: int) -> dict[str, Any]:
    """All figures of one model. Raises FailedPrecondition for one that cannot be loaded."""
    model = loaded(directory, work, BITS[0])
    training = _training(directory)
    longest = max(map(int, training.get("last_check_by_length", [model.context_length])))
    counts = {length: count for length, count in counts.items() if length <= longest}
    if not counts:
        raise ValueError(f"{directory} was trained to {longest} tokens; give --dialogues {longest}:20")
    texts = make_texts(directory, counts, decoded)
    check(texts)
    plain = unquantized(model, texts)
    by_bits = {}
    for bits in BITS:
        if bits != model.geometry.format.k_bits:
            model.release()
            model = loaded(directory, work, bits)
        by_bits[str(bits)] = figures(compare(model, texts, plain))
    found = {
        "architecture": model.architecture,
        "dtype": model.geometry.dtype_name,
        "group_size": model.geometry.format.group_size,
        "scheme": model.geometry.format.scheme,
        "trained_to": longest,
        "training": training,
        "texts": {str(length): count for length, count in counts.items()},
        "by_bits": by_bits,
    }
    model.release()
    return found


def _training(directory: Path) -> dict[str, Any]:
    """What training wrote of itself; nothing for the demo model, which was trained on all that its context holds."""
    path = directory / "training.json"
    return json.loads(path.read_text()) if path.exists() else {}


def figures(samples: Sequence[Sample]) -> dict[str, Any]:
    """Everything that is said of one model with so many bits, and the samples that it comes from."""
    lengths = dict.fromkeys(sample.length for sample in samples)
    return {
        **_figures(samples, PHASES),
        "all_tokens": _perplexity([sample.with_all_tokens() for sample in samples], PHASES),
        "by_phase": {phase: _figures(samples, (phase,)) for phase in PHASES},
        "by_length": {
            str(length): _figures([sample for sample in samples if sample.length == length], PHASES)
            for length in lengths
        },
        "samples": [asdict(sample) for sample in samples],
    }


def _figures(samples: Sequence[Sample], phases: Sequence[str]) -> dict[str, Any]:
    found = scores.recall(samples, phases)
    return {
        **_perplexity(samples, phases),
        "recall": {
            **asdict(found),
            "quantized": found.quantized,
            "share": wilson(found.quantized, found.asked)._asdict(),
            "plain_share": wilson(found.plain, found.asked)._asdict(),
            "difference": found.difference._asdict(),
            "chance": found.chance,
        },
    }


def _perplexity(samples: Sequence[Sample], phases: Sequence[str]) -> dict[str, Any]:
    return {
        "ratio": scores.ratio(samples, phases)._asdict(),
        "perplexity": scores.perplexity(samples, True, phases),
        "plain_perplexity": scores.perplexity(samples, False, phases),
        "divergence": scores.divergence(samples, phases),
    }
