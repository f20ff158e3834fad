"""Which way queries in the space of latents attend: chosen at load, by what is right and by what is fast."""

from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from inference_service.engine.attention.latents import ABSORBED, LatentPath, latent_candidates
from inference_service.engine.attention.self_test import arrays_error, decode_error, over_latents, prefill_error
from inference_service.engine.attention.speed import PathChoice, PathSpeeds
from inference_service.engine.attention.trials import Heads, PathReport, errors, told
from inference_service.engine.geometry import Geometry
from inference_service.engine.quantization import Quantized

DECOMPRESS: Final = "decompress"
"""The path of many queries: K and V of all heads are computed from the latents."""

MOST_ABSORBED: Final = 64
"""Queries of a row that attend over latents: each takes 3.4 times the products that it takes over K and V of all heads
(DeepSeek-V2-Lite), and those are computed for all tokens, however many the queries are. A layer of it over 8,192 tokens
takes 0.53 ms for 64 queries and 1.00 ms for 128, by way of all heads 0.75 and 0.83 (H200)."""


@dataclass(frozen=True)
class _Ways:
    """One query of a row attends as was chosen for so many rows and tokens, a few by one path, if any."""

    choice: PathChoice
    few: LatentPath | None


class AbsorbedPaths:
    """The ways of all geometries that were tested. Engine thread only."""

    def __init__(self) -> None:
        self._ways: dict[Heads, _Ways] = {}

    def path(self, heads: Heads, queries: mx.array, latents: Quantized) -> LatentPath | None:
        """The way for queries [rows, heads, n, …]; None where K and V of all heads are to be computed."""
        rows, _, n, _ = queries.shape
        ways = self._ways.get(heads)
        if ways is None or n > MOST_ABSORBED:
            return None
        return ways.few if n > 1 else ABSORBED[ways.choice.at(rows, latents.tokens)]

    def choice(self, geometry: Geometry) -> PathChoice:
        """What was chosen for one query of a row."""
        ways = self._ways.get(Heads.of(geometry, geometry.full))
        return ways.choice if ways else PathChoice([DECOMPRESS])

    def tested(self, geometry: Geometry, speeds: PathSpeeds | None) -> list[PathReport]:
        """Compare the ways with plain attention, and choose; what is in no way right is computed from all heads.

        Raises FailedPrecondition where what is packed cannot be read.
        """
        arrays = arrays_error(geometry)
        reports = [PathReport("prefill", DECOMPRESS, arrays)]
        ways = {name: over_latents(ABSORBED[name]) for name in latent_candidates()}
        right, failures = errors(ways, decode_error, geometry)
        failed = told(failures)
        if not right:
            return [*reports, PathReport("decode", DECOMPRESS, arrays, "; ".join(failed))]
        choice = PathChoice(list(right), speeds.of(geometry, list(right)) if speeds and len(right) > 1 else None)
        few, _ = errors({name: ways[name] for name in right}, prefill_error, geometry)
        first = next(iter(few), None)
        self._ways.update(dict.fromkeys(Heads.all_of(geometry), _Ways(choice, ABSORBED[first] if first else None)))
        if first:
            reports.append(PathReport("prefill", first, few[first], "a few queries"))
        for path in choice.taken:
            note = "; ".join(filter(None, [choice.reason(path), *failed]))
            reports.append(PathReport("decode", path, right[path], note))
        return reports
