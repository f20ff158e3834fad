"""What the simulation takes as given: `inputs.json`, and what a turn costs by it.

An input names the committed result and the figure in it, or has a value of its own with who says so. Where
`agentmem bench cluster` measures one of the latter, its entry gets `result` and `figure` instead of `value` and
`source`: nothing else changes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks import results

FILE = Path(__file__).with_name("inputs.json")
SLOTS = 32
"""Turns that run on a node at once: as many as decoding was measured with."""
CLASSES = 64
"""Lengths of memories, each as frequent as the others."""
MEDIAN_TOKENS = 4096
SPREAD = 0.8
"""Lengths are lognormal: of this median, and so much spread of their logarithms."""

Array = np.ndarray[Any, np.dtype[np.float64]]
Inputs = Mapping[str, Any]
"""By name: a number, or seconds by tokens."""


@dataclass(frozen=True)
class Costs:
    """What turns cost on one node, in seconds; sequences are by class of length.

    `prompt` and `cold` occupy the GPU: computing a turn's new tokens, and with them all that came before. `memory` and
    `disk` occupy the node's disk, `network` its card: KV from the page cache, from files, from another node. `remote`
    is from S3, on the same card. `step` is of one token for each of so many agents at once, `step[0]` is not used.
    """

    tokens: Sequence[float]
    prompt: Sequence[float]
    cold: Sequence[float]
    memory: Sequence[float]
    disk: Sequence[float]
    network: Sequence[float]
    remote: Sequence[float]
    step: Sequence[float]
    overhead: float = 0.0
    """Of each first token, on the way through the services."""
    answer: float = 256.0
    """Tokens of an answer in the mean; they are exponential."""
    new_tokens: int = 50
    pool_agents: int = 1 << 30
    memory_agents: int = 1 << 30
    """How many agents of the mean length a pool, and a page cache, hold."""

    @property
    def slots(self) -> int:
        """Turns that run at once."""
        return len(self.step) - 1

    @property
    def turn(self) -> float:
        """Seconds of GPU of one turn whose KV is there, where all slots are full."""
        return float(np.mean(self.prompt)) + self.answer * self.step[-1] / self.slots

    @property
    def capacity(self) -> float:
        """Turns/s of one node when all KV is in its pool."""
        return 1 / self.turn

    def stay(self, load: float) -> float:
        """Seconds of a turn at a load below 1, but for waiting: its prompt, and an answer among others."""
        rate, stay, prompt = self.capacity * load, self.turn, float(np.mean(self.prompt))
        for _ in range(100):
            beside = min(max(rate * stay, 1), self.slots)
            stay = prompt + self.answer * float(np.interp(beside, range(self.slots + 1), self.step)) / (
                1 - rate * prompt
            )
        return stay


def read(path: Path = FILE, directory: Path = results.RESULTS) -> Inputs:
    """Return all inputs. Raises KeyError where a result has no such figure."""
    return {name: _value(entry, directory) for name, entry in json.loads(path.read_text()).items()}


def sources(path: Path = FILE) -> list[dict[str, Any]]:
    """Return of each input its name, what it is, its unit and where it is from."""
    return [
        {"name": name, "what": entry["what"], "unit": entry["unit"], "source": _source(entry)}
        for name, entry in json.loads(path.read_text()).items()
    ]


def costs(inputs: Inputs, *, fetched: bool = True, prefill: float = 1.0) -> Costs:
    """Return what turns cost by the inputs; without `fetched` no KV comes from elsewhere. `prefill`: so much faster."""
    tokens = _lengths(inputs["cold"])
    sizes = tokens * inputs["bytes_per_token"]
    overhead = min(inputs["hot"][length] - inputs["prompt"][length] for length in inputs["hot"])
    never = np.full(CLASSES, np.inf)
    prompt = _by_tokens(inputs["prompt"], tokens)
    mean = float(sizes.mean())
    found = Costs(
        tokens=tokens.tolist(),
        prompt=prompt.tolist(),
        cold=(np.maximum(_by_tokens(inputs["cold"], tokens) - overhead, prompt) / prefill).tolist(),
        memory=_by_tokens(inputs["memory"], tokens).tolist(),
        disk=_by_tokens(inputs["disk"], tokens).tolist(),
        network=(sizes / inputs["network_bytes"] if fetched else never).tolist(),
        remote=(sizes / inputs["remote_bytes"] + inputs["remote_seconds"] if fetched else never).tolist(),
        step=[0.0, *_steps({agents: inputs[f"decode_{agents}"] for agents in (1, 8, SLOTS)})],
        overhead=overhead,
        new_tokens=inputs["new_tokens"],
        pool_agents=int(inputs["pool_bytes"] / mean),
        memory_agents=int(inputs["memory_bytes"] / mean),
    )
    return replace(found, prompt=(prompt / prefill).tolist()) if prefill != 1 else found


def _value(entry: Mapping[str, Any], directory: Path) -> Any:
    if "value" in entry:
        return entry["value"]
    figures = json.loads((directory / f"{entry['result']}.json").read_text())["figures"]
    before, star, after = entry["figure"].partition("/*/")
    if not star:
        return _at(figures, before)
    return {int(tokens): _at(row, after) for tokens, row in _at(figures, before).items()}


def _at(figures: Any, path: str) -> Any:
    for name in path.split("/"):
        figures = figures[name]
    return figures


def _source(entry: Mapping[str, Any]) -> str:
    return entry["source"] if "value" in entry else f"results/{entry['result']}.json: {entry['figure']}"


def _lengths(measured: Mapping[int, float]) -> Array:
    """Of the classes: the middle of each, within what was measured."""
    normal = NormalDist()
    middles = [normal.inv_cdf((number + 0.5) / CLASSES) for number in range(CLASSES)]
    found: Array = np.clip(MEDIAN_TOKENS * np.exp(SPREAD * np.array(middles)), min(measured), max(measured))
    return found


def _by_tokens(measured: Mapping[int, float], tokens: Any) -> Array:
    known = sorted(measured)
    found: Array = np.interp(tokens, known, [measured[length] for length in known])
    return found


def _steps(rates: Mapping[int, float]) -> list[float]:
    """Seconds of a step for 1 to SLOTS agents, from tokens/s in all; between what was measured linear."""
    agents = sorted(rates)
    found = np.interp(range(1, SLOTS + 1), agents, [number / rates[number] for number in agents])
    return [float(seconds) for seconds in found]
