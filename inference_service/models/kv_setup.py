"""How a model's KV is quantized: the means that it is centred on, its bits, and what was measured of them.

All of it is found at a model's first load. What KV depends on is data from then on, kept by the model's fingerprint:
the means, and the bits that `auto` chose. A new version of MLX, or of the sample, measures quality again, but does not
change them, or all KV would have to be computed again.
"""

import base64
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from agentmem.kv.bits import DEFAULT, KVBits
from agentmem.process import logs
from inference_service.engine.calibrating import TOKENS, calibrate_in_time
from inference_service.engine.calibration import Calibration, Calibrations
from inference_service.engine.network import Network
from inference_service.engine.quality import MOST_NATS, MOST_TAIL_NATS, Quality, QualityChecks, other_text
from inference_service.engine.quantization import KVFormat
from inference_service.json_cache import JsonCache
from inference_service.models.opening import ModelInfo

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KVSetup:
    """How KV is packed, and why.

    `calibration` is None where it is not centred, `quality` where nothing was measured.
    """

    format: KVFormat
    calibration: Calibration | None = None
    quality: Quality | None = None
    reason: str = ""


class KVSetups:
    """What was found of models, and what is found of others. Any thread, but `of`, which is the engine thread's."""

    def __init__(self, directory: Path, *, quality_check: bool) -> None:
        self.calibrations = Calibrations(directory / "calibration")
        self._qualities = QualityChecks(directory / "quality.json") if quality_check else None
        self._chosen = JsonCache(directory / "kv_bits.json")

    def chosen(self, fingerprint: str, info: ModelInfo) -> ModelInfo:
        """The model as it is loaded: with the bits that `auto` once chose, where it decides and has been here."""
        if info.spec.quantization.bits is None and (bits := self._known(fingerprint, info.geometry.format)):
            return info.with_format(info.geometry.format.with_bits(bits))
        return info

    def of(self, fingerprint: str, network: Network, info: ModelInfo) -> KVSetup:
        """What a loaded network's KV is to be. Measures what is not known, which takes some prefills."""
        geometry, tokenizer = info.geometry, info.tokenizer

        def measure() -> Calibration:
            return calibrate_in_time(network, other_text(tokenizer, TOKENS), geometry)

        calibration = self.calibrations.of(fingerprint, geometry, measure)
        quality = None
        if self._qualities is not None:
            quality = self._qualities.of(fingerprint, network, tokenizer, geometry, calibration)
        if info.spec.quantization.bits is not None:
            return KVSetup(geometry.format, calibration, quality, "as set")
        known = self._known(fingerprint, geometry.format)
        bits, reason = (known, "auto chose them at the model's first load") if known else choose(quality)
        if quality is not None and quality.divergences:
            self._chosen.put(_key(fingerprint, geometry.format), bits)
        return KVSetup(geometry.format.with_bits(bits), calibration, quality, reason)

    def name(self, fingerprint: str, info: ModelInfo) -> str:
        """Of a model's setup, on all machines."""
        return _key(fingerprint, info.geometry.format)

    def adopt(self, fingerprint: str, info: ModelInfo, shared: bytes) -> None:
        """Take what another machine of the cluster has found, so that KV of there fits here: means that are near, and
        the bits that `auto` chose. What cannot be read is left.
        """
        try:
            found = json.loads(shared)
            bits, means, auto = str(KVBits.parse(found["bits"])), base64.b64decode(found["means"]), found["auto"]
            calibration = Calibration.of_bytes(means) if means else None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            logs.event(log, "a shared setup cannot be read", logging.WARNING, error=str(error))
            return
        if calibration is not None:
            known = self.calibrations.known(fingerprint, info.geometry)
            if known is None:
                self.calibrations.offer(fingerprint, calibration)
            elif known != calibration and calibration.near(known):
                self.calibrations.keep(fingerprint, calibration)
        if auto:
            self._chosen.put(_key(fingerprint, info.geometry.format), bits)

    def differs(self, setup: KVSetup, fingerprint: str, info: ModelInfo) -> bool:
        """Whether the model would be loaded with other means, or with other bits, than those of `setup` now."""
        means = self.calibrations.known(fingerprint, info.geometry)
        auto = info.spec.quantization.bits is None
        bits = self._known(fingerprint, info.geometry.format) if auto else ""
        return (setup.calibration is not None and means != setup.calibration) or bits not in ("", str(setup.format))

    def shared(self, setup: KVSetup, info: ModelInfo) -> bytes:
        """What `adopt` takes on other machines."""
        means = setup.calibration.portable if setup.calibration else b""
        measured = setup.quality is not None and bool(setup.quality.divergences)
        auto = info.spec.quantization.bits is None and measured
        found = {"bits": str(setup.format), "auto": auto, "means": base64.b64encode(means).decode()}
        return json.dumps(found).encode()

    def _known(self, fingerprint: str, format: KVFormat) -> str:
        try:
            return str(KVBits.parse(self._chosen.get(_key(fingerprint, format))))
        except (AttributeError, ValueError):
            return ""


def choose(quality: Quality | None) -> tuple[str, str]:
    """Return the bits that `auto` takes, and why."""
    if quality is None or not quality.divergences:
        return str(DEFAULT), "auto takes them where nothing could be measured"
    limits = f"{MOST_NATS:g} nats in the mean and {MOST_TAIL_NATS:g} in the 99th percentile"
    if quality.recommended:
        return quality.recommended, f"auto: the fewest of {', '.join(quality.rungs)} with at most {limits}"
    least = min((bits for bits in quality.rungs if bits in quality.divergences), key=quality.divergences.__getitem__)
    return least, f"auto: none of {', '.join(quality.rungs)} has at most {limits}, and these have the fewest"


def _key(fingerprint: str, format: KVFormat) -> str:
    return f"{fingerprint}; groups of {format.group_size}"
