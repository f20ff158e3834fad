"""Attention and experts for training with transformers' models: small kernels, no mask of the whole length.

transformers has no fast attention with sinks on every GPU, and its mask of a window is as large as the length squared.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.moe import ExpertsInterface

NAME = "agentmem_training"
_SINK_COLUMNS = 8
"""A sink takes one key and one dimension; kernels want multiples of eight."""


def register() -> None:
    """Make `NAME` known to transformers as an implementation of attention and of experts."""
    AttentionInterface.register(NAME, attention)
    ExpertsInterface.register(NAME, experts)


def attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention of whole, right-padded rows, in the values' dtype.

    query [batch, heads, length, width], key and value [batch, kv_heads, length, width]; `s_aux` are sinks [heads].
    Returns [batch, length, heads, width of values].
    """
    assert attention_mask is None
    group = query.shape[1] // key.shape[1]
    query, key = query.to(value.dtype), key.to(value.dtype)
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    if sliding_window is None or query.shape[2] <= sliding_window:
        out = _whole(query, key, value, scaling, s_aux)
    else:
        out = _windows(query, key, value, scaling, s_aux, sliding_window)
    return out.transpose(1, 2).contiguous(), None


def _with_sink_dimension(query: Tensor, key: Tensor, sinks: Tensor, scaling: float) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key with a dimension more, in which the sink's key [batch, heads, 1, width] alone is not zero.

    A sink is a logit that no query changes: the query's 1 / scaling times the key's sink, times scaling.
    """
    one = functional.pad(query.new_full((1,), 1 / scaling), (0, _SINK_COLUMNS - 1))
    query = torch.cat((query, one.expand(*query.shape[:3], _SINK_COLUMNS)), dim=-1)
    width = key.shape[-1]
    column = functional.pad(sinks.to(key.dtype)[None, :, None, None], (width, _SINK_COLUMNS - 1))
    return query, functional.pad(key, (0, _SINK_COLUMNS)), column.expand(key.shape[0], -1, -1, -1)


def _whole(query: Tensor, key: Tensor, value: Tensor, scaling: float, sinks: Tensor | None) -> Tensor:
    """Causal attention. A sink comes before the first key, and with it a query whose output is dropped."""
    if sinks is None:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    width = value.shape[-1]
    query, key, sink = _with_sink_dimension(query, key, sinks, scaling)
    query = functional.pad(query, (0, 0, 1, 0))
    key = torch.cat((sink, key), dim=2)
    value = functional.pad(value, (0, _SINK_COLUMNS, 1, 0))
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return out[:, :, 1:, :width]


def _windows(query: Tensor, key: Tensor, value: Tensor, scaling: float, sinks: Tensor | None, window: int) -> Tensor:
    """Each block of `window` queries sees its own keys and those of the block before, as far as the window goes."""
    heads, length = query.shape[1:3]
    blocks = -(-length // window)

    def in_blocks(x: Tensor) -> Tensor:
        return functional.pad(x, (0, 0, 0, blocks * window - length)).unflatten(2, (blocks, window))

    def with_previous(x: Tensor) -> Tensor:
        x = in_blocks(x)
        return torch.cat((functional.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x), dim=3)

    first = None
    if sinks is not None:
        query, key, first = _with_sink_dimension(query, key, sinks, scaling)
    query, key, value = in_blocks(query), with_previous(key), with_previous(value)
    row = torch.arange(window, device=query.device)
    own, previous = row[None, :] <= row[:, None], row[None, :] > row[:, None]
    mask = torch.cat((previous, own), dim=1).expand(blocks, -1, -1).clone()
    mask[0, :, :window] = False
    if first is not None:
        first = functional.pad(first, (0, 0, 0, _SINK_COLUMNS - 1))
        key = torch.cat((first[:, :, None].expand(-1, -1, blocks, -1, -1), key), dim=3)
        value = functional.pad(value, (0, 0, _SINK_COLUMNS, 0))
        mask = functional.pad(mask, (_SINK_COLUMNS, 0))
        mask[:, :, 0] = True
    mask = mask.repeat(heads, 1, 1)[None]
    out = functional.scaled_dot_product_attention(
        query.flatten(1, 2), key.flatten(1, 2), value.flatten(1, 2), attn_mask=mask, scale=scaling
    )
    return out.unflatten(1, (heads, blocks)).flatten(2, 3)[:, :, :length]


def fuse_norms(causal: nn.Module) -> None:
    """One kernel for each RMSNorm instead of six, and its output rounded once for all that reads it."""
    for module in causal.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_norm, module, type(module).__name__.startswith("Gemma"))  # type: ignore[assignment]


def _norm(module: Any, offset: bool, x: Tensor) -> Tensor:
    """`offset` is Gemma's way: weights say by how much they differ from one."""
    weight = 1 + module.weight if offset else module.weight
    epsilon = module.eps if offset else module.variance_epsilon
    out = functional.rms_norm(x.float(), weight.shape, weight, epsilon)
    rounded = torch.is_autocast_enabled(x.device.type)
    return out.to(torch.get_autocast_dtype(x.device.type) if rounded else x.dtype)


def experts(module: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Every expert for every token in two matrix products, weighted by 0 where not chosen: quickest when they are few.

    hidden [tokens, width], index and weights [tokens, chosen].
    """
    count = module.num_experts
    share = torch.zeros(hidden.shape[0], count, device=hidden.device, dtype=weights.dtype).scatter(1, index, weights)
    gate_up, down = module.gate_up_proj, module.down_proj
    if module.is_transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    bias = module.gate_up_proj_bias.flatten() if module.has_bias else None
    inner = module._apply_gate(functional.linear(hidden, gate_up.flatten(0, 1), bias).unflatten(-1, (count, -1)))
    weighted = (inner * share[..., None].to(inner.dtype)).flatten(1)
    out = functional.linear(weighted, down.transpose(0, 1).flatten(1))
    if module.has_bias:
        out = out + share.to(out.dtype) @ module.down_proj_bias.to(out.dtype)
    return out
