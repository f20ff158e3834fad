"""Tensors of blocks and windows into the portable file and out of it. NumPy only; any thread.

Files of KV have all layers of one kind in one tensor, [layers, kv_heads, tokens, width]; the portable file has one
tensor per layer, [1, tokens, kv_heads, width], so that what follows is written behind what was before.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from agentmem.blockfile import TENSORS
from inference_service.portable.format import TensorPlace, damaged, tensor_name
from inference_service.portable.spool import SpoolFile

Tensors = Mapping[str, npt.NDArray[np.generic]]
"""The six tensors of a block or window by name ("k.weights", …); 16-bit floats as uint16."""

Places = Mapping[str, TensorPlace]

_DTYPES: dict[str, np.dtype[np.generic]] = {
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<u2"),
    "BF16": np.dtype("<u2"),
}
_EXPONENTS = {"F16": 0x7C00, "BF16": 0x7F80}


def write(
    file: SpoolFile, places: Places, layers: Sequence[int], first_position: int, tokens: int, tensors: Tensors
) -> None:
    """Put the first `tokens` tokens of a block or window, which begins at `first_position`, where they belong.

    `layers` are its layers' numbers in the model; `file` has the data without header. Raises OSError, and
    ResourceExhausted where the disk is full.
    """
    for name in TENSORS:
        for row, layer in enumerate(layers):
            place = places[tensor_name(layer, _part(name))]
            data = np.ascontiguousarray(tensors[name][row, :, :tokens].swapaxes(0, 1))
            file.write(data.tobytes(), place.start + (first_position - place.first_position) * place.token_bytes)


def read(file: SpoolFile, places: Places, layers: Sequence[int], first_position: int, tokens: int) -> dict[str, bytes]:
    """The tensors of a block or window, taken from the data of a portable file.

    Raises OSError, and DataLoss for scales or biases that are not finite: they would spoil whatever attends to them.
    """
    found = {}
    for name in TENSORS:
        parts = []
        for layer in layers:
            place = places[tensor_name(layer, _part(name))]
            at = place.start + (first_position - place.first_position) * place.token_bytes
            piece = file.read(tokens * place.token_bytes, at)
            if len(piece) != tokens * place.token_bytes:
                raise damaged("it ends too early")
            data = np.frombuffer(piece, _DTYPES[place.dtype])
            if not _is_finite(data, place.dtype):
                raise damaged("some numbers are not finite")
            parts.append(data.reshape(tokens, *place.shape[2:]).swapaxes(0, 1))
        found[name] = np.stack(parts).tobytes()
    return found


def _part(name: str) -> str:
    return name.replace(".", "_")


def _is_finite(data: npt.NDArray[np.generic], dtype: str) -> bool:
    if dtype == "U32":
        return True
    if dtype == "F32":
        return bool(np.isfinite(data.view(np.float32)).all())
    exponent = _EXPONENTS[dtype]
    return bool(((data.view(np.uint16) & exponent) != exponent).all())
