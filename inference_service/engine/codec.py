"""The codec of a layer's KV: what is done to K and V before they are packed, and to queries and outputs in return.

`plain` packs K and V as they are. `rotated` first centres and rotates them:

    packed K = (K - mean of K) R        packed V = (V - mean of V) R        R = diag(signs) Hadamard

- **Centred.** A constant that is taken from all keys of a head changes all scores of a query by the same number, which
  the softmax does not see; only the logit of an attention sink has to take the same number. The mean of the values is
  added to the output, since weights sum to 1; with a sink to less, so it is weighted with their sum. The means are
  the model's own, measured once (`calibration`).
- **Rotated.** R is orthogonal, so rotated queries have the same scores with rotated keys, and an output over rotated
  values is rotated back, once per query. It spreads an outlier channel over all, so that a group's scale is not that
  channel's alone (QuIP#, Tseng et al. 2024; QuaRot, Ashkboos et al. 2024).

What is packed has the layout of `plain`, so kernels, pool and files are the same. Figures are in docs/concepts.

The kernel for NVIDIA GPUs (encoding.cu) also fits scale and bias to the codes, which leaves SmolLM2 21 % less
divergence. MLX's operations do not: ten of them a layer would take longer than the rest of the codec. Nor do they take
a group's range as it is, but move its scale until zero is a level. Keys that are lifted far from zero first, whose
biases are then lowered, have those ranges; that gains 4 %, which is within noise, and takes 4 µs a layer and step.

What `rotated` takes over `plain` on a CPU (two cores of an AMD EPYC, OpenBLAS, MLX 0.32.4, float32, by turns in one
process): about 20 µs of a decode step of one row for each layer. That is 0 to 3 %, but 4 % for one row of 512 tokens
of the demo model, 256 wide; and 2 to 4 % of its prompts of 512 tokens, of 4,096 nothing that shows. On an H200
(Llama 3.1 8B, bfloat16) it takes 2 to 3 % of a prompt of 2,048 tokens; a decode step takes as long as with `plain`,
with any bits: of 8 and of 32 rows of 4,096 tokens 1 % less, and one row is within its noise of 5 %.
"""

import mlx.core as mx

from inference_service.engine.cuda_encoding import encoded
from inference_service.engine.quantization import (
    FOUR_BITS,
    PLAIN,
    KVFormat,
    Quantized,
    dequantize,
    filled_up,
    quantize,
)
from inference_service.engine.rotation import rotated, rotated_back


class KVCodec:
    """How one layer's K and V are packed and read. Engine thread only.

    `means` are those of K and of V, [kv_heads, width] in the compute dtype; without, K and V are not centred. "The
    packed basis" is what K and V are packed in, and queries and outputs with them; widths there are filled up to whole
    groups.
    """

    def __init__(self, format: KVFormat = FOUR_BITS, means: tuple[mx.array, mx.array] | None = None) -> None:
        self.format = format
        self.rotates = format.scheme != PLAIN
        self.k_mean, self.v_mean = (
            filled_up(mean, format.group_size)[:, None] if mean is not None and self.rotates else None
            for mean in means or (None, None)
        )
        """What is taken from K and V, [kv_heads, 1, width filled up to whole groups]."""

    @property
    def centred(self) -> bool:
        """Whether means are taken from K and V."""
        return self.k_mean is not None

    def encode(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """K [rows, kv_heads, n, k_dim] and V [rows, kv_heads, n, v_dim], packed."""
        if self.rotates and (packed := encoded(keys, values, self.k_mean, self.v_mean, self.format)) is not None:
            return packed
        return self.encode_by_operations(keys, values)

    def encode_by_operations(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """As `encode`, by MLX's operations alone, as on every device without a kernel."""
        by = self.format
        return (
            quantize(self._packed_basis(keys, self.k_mean), by.k),
            quantize(self._packed_basis(values, self.v_mean), by.v),
        )

    def decode(self, keys: Quantized, values: Quantized) -> tuple[mx.array, mx.array]:
        """K and V [rows, kv_heads, n, width filled up to whole groups], in the model's own basis, with their means."""
        k, v = dequantize(keys, self.format.k), dequantize(values, self.format.v)
        return (rotated_back(k, self.k_mean), rotated_back(v, self.v_mean)) if self.rotates else (k, v)

    def release(self) -> None:
        """Give the means' memory back. The codec must not be used afterwards."""
        self.k_mean = self.v_mean = None

    def _packed_basis(self, x: mx.array, mean: mx.array | None) -> mx.array:
        x = filled_up(x, self.format.group_size)
        return rotated(x, mean) if self.rotates else x
