"""Which rows decode together, and what memory that takes. Pure.

A batch is padded to its longest row, so a long agent makes short ones take its length; a group more reads the weights
once more in every step. Lengths are tokens; bytes are of the full-attention layers only, since sliding layers hold no
more than their window and some slack.
"""

from collections.abc import Sequence

from inference_service.engine.caches.buffers import STEP

Groups = tuple[tuple[int, ...], ...]
"""Indices of rows: of each row once. Shorter rows come before longer ones, and of equals the first is first."""


def split(lengths: Sequence[int], token_bytes: int, weight_bytes: int) -> Groups:
    """The groups whose steps read least: per group the weights, and for each of its rows its longest row's KV.

    All rows grow by one token a step, which costs every split the same; so a split stays the best one until a row
    joins or leaves. Of splits that cost the same it is the one of fewest groups.
    """
    return _best(lengths, token_bytes, weight_bytes)[1]


def most_batch_bytes(lengths: Sequence[int], token_bytes: int, weight_bytes: int) -> int:
    """The most that the batches take as long as no row is longer than here, whichever of the rows run.

    What `split` minimizes grows with every length and every row, so at all times it is at most what it is here; take
    off the weights, of which every split reads at least one set, and what is left bounds the batches. It is no more
    than one padded batch of all the rows, and above what the groups take at these lengths by a set of weights for each
    group but the first. What they take would be no bound: shorter rows can take more, in one group, than longer ones in
    two.
    """
    if not lengths:
        return 0
    cost, _ = _best(lengths, token_bytes, weight_bytes)
    return cost - weight_bytes + len(lengths) * (STEP - 1) * token_bytes


def _best(lengths: Sequence[int], token_bytes: int, weight_bytes: int) -> tuple[int, Groups]:
    """The least bytes that a step reads, and the groups; dynamic programming over the rows by length."""
    order = sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    least: list[tuple[int, int, int]] = [(0, 0, 0)]  # of the first n rows: bytes, groups, where the last group starts
    for end, row in enumerate(order, 1):
        costs = (
            (least[start][0] + weight_bytes + (end - start) * lengths[row] * token_bytes, least[start][1] + 1, start)
            for start in range(end)
        )
        least.append(min(costs))
    groups: list[tuple[int, ...]] = []
    end = len(order)
    while end:
        start = least[end][2]
        groups.append(tuple(order[start:end]))
        end = start
    return least[-1][0], tuple(reversed(groups))
