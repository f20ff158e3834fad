"""Quantization of a model's KV: means, bits, and measurements.

They are found at the first load and kept by fingerprint: another choice would make all KV useless.
"""

import base64
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentmem.kv.bits import DEFAULT, KVBits
from agentmem.process import logs
from inference_service.engine import lost_device
from inference_service.engine.calibrating import TOKENS, calibrate_in_time
from inference_service.engine.calibration import Calibration, Calibrations
from inference_service.engine.geometry import Geometry
from inference_service.engine.network import Network
from inference_service.engine.quality import MOST_NATS, MOST_TAIL_NATS, Divergence, Quality, ladder, other_text
from inference_service.engine.quality import measure as quality_of
from inference_service.engine.quantization import PLAIN, KVFormat
from inference_service.json_cache import JsonCache
from inference_service.models.opening import ModelInfo

log = logging.getLogger(__name__)

Share = Callable[[str, bytes], Awaitable[bytes | None]]
"""StoreClient.share_setup, which returns the first setup that was given."""


@dataclass(frozen=True)
class KVSetup:
    """`calibration` is None if not centred, `quality` if not measured. `final` but for a model that serves before it is
    measured.
    """

    format: KVFormat
    calibration: Calibration | None = None
    quality: Quality | None = None
    reason: str = ""
    final: bool = True


class KVSetups:
    """Setups of models, in a directory. Any thread, but `of`."""

    def __init__(self, directory: Path, *, quality_check: bool) -> None:
        self.calibrations = Calibrations(directory / "calibration")
        self._quality_check = quality_check
        self._records = JsonCache(directory / "kv_setup.json")

    def chosen(self, fingerprint: str, info: ModelInfo) -> ModelInfo:
        """Return the model with the bits that `auto` chose before."""
        if info.spec.quantization.bits is None and (bits := self._known(fingerprint, info.geometry.format)):
            return info.with_format(info.geometry.format.with_bits(bits))
        return info

    def knows(self, fingerprint: str, info: ModelInfo) -> bool:
        """Return whether `of` measures nothing."""
        geometry = info.geometry
        if not self.calibrations.knows(fingerprint, geometry):
            return False
        quality = self._measured(fingerprint, geometry) if self._quality_check else None
        return not self._quality_check or (quality is not None and quality.answers(str(geometry.format)))

    def of(self, fingerprint: str, network: Network, info: ModelInfo) -> KVSetup:
        """Return a network's setup; measure the unknown by prefills. Engine thread."""
        geometry, tokenizer = info.geometry, info.tokenizer

        def measure() -> Calibration:
            return calibrate_in_time(network, other_text(tokenizer, TOKENS), geometry)

        calibration = self.calibrations.of(fingerprint, geometry, measure)
        quality = self._measured(fingerprint, geometry) if self._quality_check else None
        if self._quality_check and (quality is None or not quality.answers(str(geometry.format))):
            quality = quality_of(network, tokenizer, geometry, calibration=calibration)
            lost_device.confirm()
            found = {bits: list(nats) for bits, nats in quality.divergences.items()}
            measured = {"scheme": geometry.format.scheme, "tokens": quality.tokens, "divergences": found}
            self._keep(fingerprint, geometry.format, measured)
        if info.spec.quantization.bits is not None:
            return KVSetup(geometry.format, calibration, quality, "as set")
        known = self._known(fingerprint, geometry.format)
        bits, reason = (known, "auto chose them at the model's first load") if known else choose(quality)
        if quality is not None and quality.divergences:
            self._keep(fingerprint, geometry.format, {"bits": bits})
        return KVSetup(geometry.format.with_bits(bits), calibration, quality, reason)

    def adopt(self, fingerprint: str, info: ModelInfo, shared: bytes) -> None:
        """Take another machine's means if near, and bits of `auto`; ignore unreadable ones."""
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
            self._keep(fingerprint, info.geometry.format, {"bits": bits})

    def shared(self, setup: KVSetup, info: ModelInfo) -> bytes:
        means = setup.calibration.portable if setup.calibration else b""
        measured = setup.quality is not None and bool(setup.quality.divergences)
        auto = info.spec.quantization.bits is None and measured
        found = {"bits": str(setup.format), "auto": auto, "means": base64.b64encode(means).decode()}
        return json.dumps(found).encode()

    def _known(self, fingerprint: str, format: KVFormat) -> str:
        try:
            return str(KVBits.parse(self._record(fingerprint, format)["bits"]))
        except (KeyError, AttributeError, ValueError):
            return ""

    def _measured(self, fingerprint: str, geometry: Geometry) -> Quality | None:
        record = self._record(fingerprint, geometry.format)
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            found = {str(KVBits.parse(bits)): Divergence(*nats) for bits, nats in record["divergences"].items()}
            numbers = all(isinstance(each, float) and each >= 0 for nats in found.values() for each in nats)
            if numbers and record["scheme"] == geometry.format.scheme:
                return Quality(int(record["tokens"]), found, ladder(geometry))
        return None

    def _record(self, fingerprint: str, format: KVFormat) -> dict[str, Any]:
        record = self._records.get(_record_name(fingerprint, format))
        return record if isinstance(record, dict) else {}

    def _keep(self, fingerprint: str, format: KVFormat, found: dict[str, Any]) -> None:
        self._records.put(_record_name(fingerprint, format), self._record(fingerprint, format) | found)


def choose(quality: Quality | None) -> tuple[str, str]:
    if quality is None or not quality.divergences:
        return str(DEFAULT), "auto takes them where nothing could be measured"
    limits = f"{MOST_NATS:g} nats in the mean and {MOST_TAIL_NATS:g} in the 99th percentile"
    if quality.recommended:
        return quality.recommended, f"auto: the fewest of {', '.join(quality.rungs)} with at most {limits}"
    least = min((bits for bits in quality.rungs if bits in quality.divergences), key=quality.divergences.__getitem__)
    return least, f"auto: none of {', '.join(quality.rungs)} has at most {limits}, and these have the fewest"


def _record_name(fingerprint: str, format: KVFormat) -> str:
    name = setup_name(fingerprint, format)
    return f"{name}; {PLAIN}" if format.scheme == PLAIN else name


def setup_name(fingerprint: str, format: KVFormat) -> str:
    return f"{fingerprint}; groups of {format.group_size}"


async def nothing_shared(_name: str, _value: bytes) -> bytes:
    """On a single machine."""
    return b""
