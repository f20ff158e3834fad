"""Which models may be in memory together: the arithmetic of the device's memory, and who goes to make room. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentmem.errors import FailedPrecondition
from agentmem.sizes import byte_size


@dataclass(frozen=True)
class Needs:
    """What a model takes, in bytes, besides the KV of agents: its weights, and what computing takes at its peak.

    `least_kv_bytes` is the KV memory without which it cannot run, `useful_kv_bytes` that for an agent of 4096 tokens.
    """

    weight_bytes: int
    activation_bytes: int
    least_kv_bytes: int
    useful_kv_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Weights and activations."""
        return self.weight_bytes + self.activation_bytes


@dataclass(frozen=True)
class Resident:
    """A loaded model: all bytes that it takes, and when a request last used it, on the monotonic clock."""

    model_id: str
    taken_bytes: int
    last_used: float
    pinned: bool = False


@dataclass(frozen=True)
class Limits:
    """What all models may take of the device's memory, and how many of them may be loaded at once."""

    usable_bytes: int
    models: int = 1


def make_room(model_id: str, needs: Needs, residents: Sequence[Resident], limits: Limits) -> list[str]:
    """The models that must go before this one can be loaded: least recently used first, no pinned one, the fewest.

    Others rather go than that the new one gets a pool without room for an agent of 4096 tokens. Raises
    FailedPrecondition, saying what is missing, where all that may go are not enough.
    """
    staying = list(residents)
    going: list[str] = []
    candidates = iter(sorted((each for each in residents if not each.pinned), key=lambda each: each.last_used))
    while not _fits(needs.fixed_bytes + needs.useful_kv_bytes, staying, limits):
        victim = next(candidates, None)
        if victim is None:
            break
        staying.remove(victim)
        going.append(victim.model_id)
    if not _fits(needs.fixed_bytes + needs.least_kv_bytes, staying, limits):
        raise FailedPrecondition(_what_is_missing(model_id, needs, staying, limits))
    return going


def kv_bytes(needs: Needs, residents: Sequence[Resident], limits: Limits) -> int:
    """The model's share of memory for KV, beside those that are loaded; never negative.

    What is free is shared evenly among this model and those that may still come.
    """
    free = _free(residents, limits) - needs.fixed_bytes
    return max(0, free // max(1, limits.models - len(residents)))


def _fits(wanted: int, residents: Sequence[Resident], limits: Limits) -> bool:
    return len(residents) < limits.models and wanted <= _free(residents, limits)


def _free(residents: Sequence[Resident], limits: Limits) -> int:
    return limits.usable_bytes - sum(each.taken_bytes for each in residents)


def _what_is_missing(model_id: str, needs: Needs, pinned: Sequence[Resident], limits: Limits) -> str:
    names = ", ".join(repr(each.model_id) for each in pinned)
    if len(pinned) >= limits.models:
        return (
            f"model {model_id!r} cannot be loaded: {limits.models} may be loaded at once, and {names} "
            f"{'is' if len(pinned) == 1 else 'are'} pinned; unpin one, or raise --loaded-models"
        )
    free = _free(pinned, limits)
    missing = needs.fixed_bytes + needs.least_kv_bytes - free
    held = f", of which pinned models ({names}) take {byte_size(limits.usable_bytes - free)}" if pinned else ""
    return (
        f"model {model_id!r} does not fit: its weights take {byte_size(needs.weight_bytes)}, computing "
        f"{byte_size(needs.activation_bytes)} and the least KV {byte_size(needs.least_kv_bytes)}; models may take "
        f"{byte_size(limits.usable_bytes)}{held}; {byte_size(missing)} are missing. Take a smaller or quantized model, "
        "or make memory free"
    )
