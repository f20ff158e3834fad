"""The codec of a layer's KV: transforms of K and V before packing, and of queries and outputs in return.

`plain` packs K and V as they are. `rotated` first centres and rotates them:

    packed K = (K - mean of K) R        packed V = (V - mean of V) R        R = diag(signs) Hadamard

- **Centred.** A constant subtracted from all keys of a head shifts all scores of a query by the same number, which the
  softmax ignores; only the logit of an attention sink has to be shifted, too. The mean of the values is added to the
  output, since weights sum to 1; with a sink they sum to less, and the mean is multiplied by their sum. The means are
  the model's own, measured once (`calibration`).
- **Rotated.** R is orthogonal, so rotated queries have the same scores with rotated keys, and an output over rotated
  values is rotated back, once per query. Rotation spreads an outlier channel over all, so that it sets no group's
  scale alone (QuIP#, Tseng et al. 2024; QuaRot, Ashkboos et al. 2024).

Packed K and V have the layout of `plain`, so kernels, pool and files are the same. Figures are in docs/concepts.

The kernel for NVIDIA GPUs (encoding.cu) also fits scale and bias to the codes, which leaves SmolLM2 21 % less
divergence. MLX's operations do not: ten more a layer would take longer than the rest of the codec. They also move a
group's scale until zero is a level, instead of taking its range as it is. Lifting keys far from zero before, and
lowering their biases after, keeps the range; that gains 4 %, which is within noise, for 4 µs a layer and step.

Cost of `rotated` over `plain` on a CPU (two cores of an AMD EPYC, OpenBLAS, MLX 0.32.4, float32, by turns in one
process): about 20 µs a layer of a one-row decode step. That is 0 to 3 %, but 4 % for one row of 512 tokens of the demo
model, 256 wide; prompts of that model take 2 to 4 % longer with 512 tokens, and not measurably with 4,096. On an H200
(Llama 3.1 8B, bfloat16) a prompt of 2,048 tokens takes 2 to 3 % longer; a decode step takes as long as with `plain`,
with any bits: 8 and 32 rows of 4,096 tokens take 1 % less, and one row is within its noise of 5 %.
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
    """Packs and reads one layer's K and V. Engine thread only.

    `means` of K and V are [kv_heads, width] in the compute dtype; without them, K and V are not centred. "The packed
    basis" is that of packed K and V, and of queries and outputs over them; its widths are padded to whole groups.
    """

    def __init__(self, format: KVFormat = FOUR_BITS, means: tuple[mx.array, mx.array] | None = None) -> None:
        self.format = format
        self.rotates = format.scheme != PLAIN
        self.k_mean, self.v_mean = (
            filled_up(mean, format.group_size)[:, None] if mean is not None and self.rotates else None
            for mean in means or (None, None)
        )
        """Means subtracted from K and V, [kv_heads, 1, padded width]."""

    @property
    def centred(self) -> bool:
        """True if means are subtracted from K and V."""
        return self.k_mean is not None

    def encode(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Pack K [rows, kv_heads, n, k_dim] and V [rows, kv_heads, n, v_dim]."""
        if self.rotates and (packed := encoded(keys, values, self.k_mean, self.v_mean, self.format)) is not None:
            return packed
        return self.encode_by_operations(keys, values)

    def encode_by_operations(self, keys: mx.array, values: mx.array) -> tuple[Quantized, Quantized]:
        """Pack like `encode`, with MLX's operations alone, as on every device without a kernel."""
        by = self.format
        return (
            quantize(self._packed_basis(keys, self.k_mean), by.k),
            quantize(self._packed_basis(values, self.v_mean), by.v),
        )

    def decode(self, keys: Quantized, values: Quantized) -> tuple[mx.array, mx.array]:
        """Return K and V [rows, kv_heads, n, padded width] in the model's own basis, with their means."""
        k, v = dequantize(keys, self.format.k), dequantize(values, self.format.v)
        return (rotated_back(k, self.k_mean), rotated_back(v, self.v_mean)) if self.rotates else (k, v)

    def release(self) -> None:
        """Free the means. The codec must not be used afterwards."""
        self.k_mean = self.v_mean = None

    def _packed_basis(self, x: mx.array, mean: mx.array | None) -> mx.array:
        x = filled_up(x, self.format.group_size)
        return rotated(x, mean) if self.rotates else x
