"""A loaded model's KV, as a portable file describes it."""

from inference_service.engine.geometry import SAFETENSORS_DTYPE, Geometry
from inference_service.portable.format import KVGeometry, LayerShape


def kv_geometry(geometry: Geometry) -> KVGeometry:
    """The shape of all layers, in the model's order."""
    layers = {}
    for group in (geometry.full, geometry.sliding):
        if group is not None:
            shape = LayerShape(group.kv_heads, group.k_dim, group.v_dim, group.window)
            layers.update(dict.fromkeys(group.layers, shape))
    return KVGeometry(
        SAFETENSORS_DTYPE[geometry.dtype],
        geometry.bits,
        geometry.group_size,
        tuple(layers[layer] for layer in range(geometry.layers)),
    )


def layers_of(geometry: Geometry, *, window: bool) -> tuple[int, ...]:
    """The layers whose KV is in windows, or those whose KV is in blocks."""
    group = geometry.sliding if window else geometry.full
    return group.layers if group is not None else ()
