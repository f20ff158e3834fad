"""A GGUF file once more with all of its weights in float32, in which llama.cpp then computes."""

from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

_ARCHITECTURE: Final = "general.architecture"
_NOT_COPIED: Final = (_ARCHITECTURE, "general.file_type", "GGUF.")
"""Beginnings of names: the writer adds them, or they tell the type of weights."""


def write_float32(gguf: Path, into: Path) -> None:
    reader = GGUFReader(gguf)
    writer = GGUFWriter(into, reader.fields[_ARCHITECTURE].contents())
    for field in reader.fields.values():
        if not field.name.startswith(_NOT_COPIED):
            element = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
