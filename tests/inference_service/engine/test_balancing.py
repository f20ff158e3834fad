"""Bases of K and V: that they are the best there are, what they gain, and what no text can spoil."""

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from inference_service.engine import balancing
from inference_service.engine.attention.reference import plain_attention
from inference_service.engine.balancing import bases
from inference_service.engine.codec import Basis, KVCodec
from inference_service.engine.quantization import BALANCED, ROTATED, KVFormat
from inference_service.engine.rotation import matrix

Array = npt.NDArray[np.float64]
WIDTH, TOKENS = 32, 300


class Head:
    """K, V and queries of one head, whose channels have lengths of their own, mixed; and its attention."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)

        def rows() -> Array:
            mixed = np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))[0] * np.exp(random.normal(size=WIDTH))
            return np.asarray(random.normal(size=(TOKENS, WIDTH)) @ mixed.T)

        self.k, self.v, self.q = rows(), rows(), rows()
        self.scale = 4 / np.linalg.norm(self.q @ self.k.T, axis=1).mean() * TOKENS**0.5
        scores = np.where(np.tri(TOKENS, dtype=bool), self.q @ self.k.T * self.scale, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        self.p = weights / weights.sum(axis=1, keepdims=True)

    def found(self) -> tuple[Array, Array]:
        one = (mx.array(x[None].astype(np.float32)) for x in (self.k, self.v, self.q))
        made = bases(*one, [mx.array(self.p.astype(np.float32))])
        return made.k[0], made.v[0]

    def cost(self, basis: Array) -> float:
        """Return the sum of squares that `balancing` makes small, computed as it is written there."""
        k, q = self.k @ basis, self.q @ np.linalg.inv(basis).T
        errors = np.square(k).sum(axis=1) * np.square(q).sum(axis=1)[:, None]
        return float((self.p * (1 - self.p) * np.square(errors)).sum())

    def off(self, scheme: str) -> float:
        """The mean squared error of the output with 4 bits."""
        k, v = (mx.array(x[None, None].astype(np.float32)) for x in (self.k, self.v))
        means = (k.mean(axis=2)[0], v.mean(axis=2)[0])
        matrices = [(basis @ matrix(WIDTH))[None] for basis in self.found()]
        bases = tuple(Basis.of(of, mx.float32, keys=at == 0) for at, of in enumerate(matrices))
        codec = KVCodec(KVFormat(4, 4, 32, scheme), means, (bases[0], bases[1]) if scheme == BALANCED else None)
        q = mx.array(self.q[None, None].astype(np.float32))
        right, found = (plain_attention(q, *x, self.scale) for x in ((k, v), codec.decode(*codec.encode(k, v))))
        return float(mx.square(right - found).mean().item())


@pytest.fixture
def no_ridge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to none: then bases are the best for these very tokens."""
    monkeypatch.setattr(balancing, "_RIDGE", 0.01)


@pytest.mark.usefixtures("no_ridge")
@pytest.mark.parametrize("seed", range(3))
def test_no_basis_nearby_costs_less(seed: int) -> None:
    head = Head(seed)
    best, _ = head.found()
    random = np.random.default_rng(seed)
    least = head.cost(best)
    assert head.cost(np.eye(WIDTH)) > 1.3 * least
    for _ in range(20):
        other = best @ (np.eye(WIDTH) + 0.3 * random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5)
        assert head.cost(other) > 0.995 * least


@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_nearer(seed: int) -> None:
    head = Head(seed)
    assert head.off(BALANCED) < 0.75 * head.off(ROTATED)


@pytest.mark.usefixtures("no_ridge")
def test_values_of_equal_weight_are_whitened() -> None:
    head = Head(4)
    head.p = np.full((TOKENS, TOKENS), 1 / TOKENS)
    _, v = head.found()
    p = v @ v.T
    whitened = head.v.T @ head.v @ p @ p
    assert np.allclose(whitened / np.trace(whitened) * WIDTH, np.eye(WIDTH), atol=0.3)
    assert np.linalg.det(p) == pytest.approx(1.0)


def test_directions_that_few_tokens_have_stay_near_the_others() -> None:
    few = mx.concatenate([mx.ones((1, TOKENS, 1)), mx.zeros((1, TOKENS, WIDTH - 1))], axis=-1)
    weights = [mx.full((TOKENS, TOKENS), 1 / TOKENS)]
    _, v = bases(few, few, few, weights)
    assert np.linalg.cond(v[0]) == pytest.approx((1 + WIDTH) ** 0.25)


def test_a_text_of_one_token_gives_a_basis() -> None:
    k = mx.random.normal((1, 1, WIDTH), key=mx.random.key(0))
    found = bases(k, k, k, [mx.ones((1, 1))])
    for side in found:
        assert np.isfinite(side).all()
        assert abs(np.linalg.det(side[0])) == pytest.approx(1.0)
        assert np.linalg.cond(side[0]) < 100
