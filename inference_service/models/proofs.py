"""Proofs of models, remembered: each is made once with a device, these packages and this code.

Slower ways are remembered, too, if a trial ran and differed.
"""

import hashlib
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path

import inference_service
from inference_service.engine import lost_device
from inference_service.engine.attention import PathReport
from inference_service.engine.device import device_and_version
from inference_service.engine.network import Network
from inference_service.engine.paged.kernels import Kernels
from inference_service.engine.product_speeds import ProductSpeeds, choices, take
from inference_service.json_cache import JsonCache
from inference_service.models.opening import ModelInfo
from inference_service.models.proof import Proof, prove


class Proofs:
    """In one JSON file. Engine thread only."""

    def __init__(self, memory: Path, speeds: ProductSpeeds) -> None:
        self._memory = JsonCache(memory)
        self._speeds = speeds

    def of(self, fingerprint: str, info: ModelInfo, network: Network) -> Proof:
        """Return a network's proof, known or made. Raises FailedPrecondition."""
        name = _name(fingerprint, info)
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            record = self._memory.get(name)
            paths, kernels = [PathReport(**each) for each in record["paths"]], Kernels(**record["kernels"])
            network.rows_together, network.rides = bool(record["rows"]), bool(record["rides"])
            take(network.model, info.geometry.dtype, record["products"])
            return Proof(info, tuple(paths), kernels)
        found = prove(info, network, self._speeds)
        lost_device.confirm()
        if not found.whole or found.info is not info:
            self._memory.put(name, {})  # it is made again at each load
        else:
            ways = {"rows": network.rows_together, "rides": network.rides}
            products = choices(network.model, info.geometry.dtype)
            kept = {"paths": [asdict(each) for each in found.paths], "kernels": found.kernels._asdict()}
            self._memory.put(name, {**kept, **ways, "products": products})
        return found

    def knows(self, fingerprint: str, info: ModelInfo) -> bool:
        """Return whether it was made once. Any thread."""
        return self._memory.get(_name(fingerprint, info)) is not None


def _name(fingerprint: str, info: ModelInfo) -> str:
    format = info.geometry.format
    return f"{_here()}; {fingerprint}; {format} bits, {format.scheme}, groups of {format.group_size}"


@cache
def _here() -> str:
    """Name all that a proof hangs on besides the model."""
    root = Path(inference_service.__file__).parent
    files = sorted(path for path in root.rglob("*") if path.suffix in {".py", ".cu"})
    code = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    return f"{device_and_version()}; mlx-lm {metadata.version('mlx-lm')}; code {code}"
