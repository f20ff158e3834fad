"""Portable files as an export makes them, without a model: random ledgers and random tensors."""

import random
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from hypothesis import strategies as st

from agentmem.kv.blockfile import TENSORS
from agentmem.kv.ledger import Ledger, TurnPlace
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.calibration import Calibration, LayerCalibration
from inference_service.portable import header
from inference_service.portable.format import DTYPE_BYTES, SLACK, KVGeometry, LayerShape, Manifest, StateShape

STATES = ((StateShape("F32", (3, 5)), StateShape("U32", (2,))), (StateShape("BF16", (7,)),))
"""Of two recurrent layers."""
ITEM = {"U32": np.uint32, "F32": np.float32, "F16": np.uint16, "BF16": np.uint16}


@dataclass(frozen=True)
class File:
    """A whole file, and what it says."""

    manifest: Manifest
    data: bytes

    @property
    def bytes(self) -> bytes:
        """As it would travel."""
        return header.encode(self.manifest, xxhash.xxh3_128_digest(self.data)) + self.data


def ledger(tokens: int, turns: tuple[TurnPlace, ...] = (), seed: int = 0) -> Ledger:
    """Tokens that stand for one to three bytes, which are seldom UTF-8."""
    rng = random.Random(seed)
    pieces = [rng.randbytes(rng.randint(0, 3)) for _ in range(tokens)]
    ids = [rng.choice([rng.randrange(320), rng.randrange(1 << 32)]) for _ in range(tokens)]
    made = Ledger().followed_by(ids, pieces, "tokenizer")
    return Ledger(made.token_ids, made.text, made.offsets, "tokenizer", turns)


def file(tokens: int = 20, kv_tokens: int = 17, seed: int = 0, geometry: KVGeometry | None = None) -> File:
    """A file of random numbers."""
    geometry = geometry or KVGeometry("F32", 4, 64, (LayerShape(2, 64, 128), LayerShape(1, 64, 64, window=8)))
    firsts = tuple(max(0, kv_tokens - (layer.window or kv_tokens)) for layer in geometry.layers) if kv_tokens else ()
    turns = (TurnPlace(tokens // 2, tokens // 4), TurnPlace(tokens, 0)) if tokens else ()
    key = AgentKey("default", "a", "org/model")
    manifest = Manifest(
        key,
        "print",
        geometry,
        ledger(tokens, turns, seed),
        kv_tokens,
        firsts,
        model_fingerprint="model",
        calibration=means(seed).portable,
        state_position=kv_tokens if geometry.states else 0,
    )
    rng = np.random.default_rng(seed)
    data = bytearray()
    for place in manifest.places.values():
        shape = place.shape
        if place.dtype in ("U32", "F32"):
            kind = np.uint32 if place.dtype == "U32" else np.float32
            data += rng.integers(0, 1 << 20, shape).astype(kind).tobytes()
        else:
            data += rng.integers(0, 0x3C00, shape).astype(np.uint16).tobytes()
    return File(manifest, bytes(data))


def recurrent(**changes: int) -> File:
    """As `file`, with states."""
    return file(**changes, geometry=replace(file().manifest.geometry, states=STATES))


def means(seed: int = 0) -> Calibration:
    """Of one layer."""
    rng = np.random.default_rng(seed)
    return Calibration([LayerCalibration(*(rng.normal(size=(2, 64)).astype(np.float16) for _ in "kv"))])


@st.composite
def geometries(draw: st.DrawFn) -> KVGeometry:
    """Models of up to four layers with KV of all kinds, and up to three recurrent ones."""
    group = draw(st.sampled_from([32, 64]))
    dims = st.sampled_from([64, 128, 192])
    layer = st.builds(LayerShape, st.integers(1, 3), dims, dims, st.sampled_from([None, 4, 16]))
    dtype = draw(st.sampled_from(["F32", "BF16", "F16"]))
    layers = draw(st.lists(layer, max_size=4))
    shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)
    arrays = st.lists(st.builds(StateShape, st.sampled_from([*DTYPE_BYTES]), shapes), min_size=1, max_size=3)
    states = tuple(draw(st.lists(arrays.map(tuple), min_size=0 if layers else 1, max_size=3)))
    return KVGeometry(dtype, draw(st.sampled_from([3, 4, 5, 6, 8, "5/4", "4/3", "8/6"])), group, tuple(layers), states)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Any manifest that an export could write."""
    tokens = draw(st.integers(0, 400))
    ends = sorted(draw(st.lists(st.integers(0, tokens), max_size=4)))
    turns = tuple(
        TurnPlace(end, draw(st.integers(0, end - before))) for before, end in zip([0, *ends], ends, strict=False)
    )
    geometry = draw(geometries())
    kv_tokens = draw(st.integers(0, tokens))
    if not kv_tokens:
        geometry = replace(geometry, states=())
    firsts: list[int] = []
    if kv_tokens:
        windows = {layer.window for layer in geometry.layers if layer.window}
        most = max(0, kv_tokens - max(windows, default=0))
        least = max(0, kv_tokens - min(windows, default=0) - SLACK)
        first = draw(st.integers(least, most)) if windows else 0
        firsts = [first if layer.window else 0 for layer in geometry.layers]
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
    key = AgentKey(draw(names), draw(names), draw(names))
    remembered = replace(ledger(tokens, turns), opening_bytes=draw(st.integers(0, 2 * tokens)))
    policy = draw(st.sampled_from(types_pb2.ContextPolicy.values()))
    named = (draw(st.text(min_size=1, max_size=8)), draw(st.sampled_from([b"", means().portable])))
    return Manifest(
        key,
        draw(st.text(max_size=8)),
        geometry,
        remembered,
        kv_tokens,
        tuple(firsts),
        policy,
        *draw(st.sampled_from([named, ("", b"")])),
        state_position=kv_tokens if geometry.states else 0,
    )


def block(layers: int, heads: int, k: tuple[int, int], v: tuple[int, int], tokens: int, dtype: str, seed: int = 0):
    """Random tensors of a block; `k` and `v` are the widths of weights and of scales."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name in TENSORS:
        weights, scales = k if name.startswith("k") else v
        shape = (layers, heads, tokens, weights if name.endswith("weights") else scales)
        if name.endswith("weights"):
            tensors[name] = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
        elif dtype == "F32":
            tensors[name] = rng.normal(size=shape).astype(np.float32)
        else:
            tensors[name] = rng.integers(0, 0x3C00, shape).astype(np.uint16)
    return tensors
