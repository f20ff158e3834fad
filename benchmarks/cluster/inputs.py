"""The simulation's inputs with their sources, and what a turn costs by them. Times are seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

SLOTS = 32
"""Turns that run on a node at once: as many as decoding was measured with."""
CLASSES = 64
"""Lengths of memories, each as frequent as the others."""
MEDIAN_TOKENS, SPREAD = 4096, 0.8
"""Lengths are lognormal; SPREAD is of their logarithms."""

Array = np.ndarray[Any, np.dtype[np.float64]]
Inputs = Mapping[str, Any]
"""By name: a number, or seconds by tokens."""

GIVEN: Inputs = {
    # First tokens and their parts, by tokens: results/ttft-llama-3.1-8b-gpu.json.
    "cold": {1000: 0.2662, 4000: 0.6112, 16000: 2.522, 32000: 6.192},
    "hot": {1000: 0.06543, 4000: 0.06475, 16000: 0.06804, 32000: 0.07881},
    "prompt": {1000: 0.0449, 4000: 0.04379, 16000: 0.04523, 32000: 0.05316},  # 50 new tokens
    "memory": {1000: 0.03169, 4000: 0.05936, 16000: 0.1791, 32000: 0.3389},  # KV from the page cache
    "disk": {1000: 0.04846, 4000: 0.1381, 16000: 0.4844, 32000: 0.8759},  # KV that only the disk has
    "new_tokens": 50,
    "bytes_per_token": 36_864,  # 32 layers, 8 heads of K and V, 128 wide, in 4.5 bits
    # Answers, tokens/s of so many agents at 2,048 tokens: results/engine-llama-3.1-8b-2k-gpu.json.
    **{"decode_1": 150.1, "decode_8": 1087.0, "decode_32": 2379.0},
    # Not measured.
    "network_bytes": 1.25e9,  # a second of KV from another node: 10 Gbit/s
    **{"remote_bytes": 5e8, "remote_seconds": 0.05},  # KV from S3: a second, and before its first byte
    "upload_seconds": 5,  # until what was committed is in S3
    # Chosen: a GPU with 80 GB, 4.5 of them weights.
    **{"pool_bytes": 6e10, "memory_bytes": 1.28e11},
    # The design.
    "heartbeat_seconds": 2,
    "lease_seconds": 10,  # until a node that says nothing is gone, and its streams have ended
    "connect_seconds": 2,  # until a node that does not answer is passed over
    "retry_seconds": 1,  # until a client repeats a turn that failed
}


@dataclass(frozen=True)
class Costs:
    """Seconds of a turn on one node, by class of length. GPU: `prompt` (new tokens), `cold` (all). Disk: `memory`
    (page cache), `disk`. Card: `network`, `remote` (S3). `step[n]` is one token for each of n agents."""

    tokens: Sequence[float]
    prompt: Sequence[float]
    cold: Sequence[float]
    memory: Sequence[float]
    disk: Sequence[float]
    network: Sequence[float]
    remote: Sequence[float]
    step: Sequence[float]
    overhead: float = 0.0
    """Seconds of each first token in the services."""
    answer: float = 256.0
    """Tokens of an answer in the mean; they are exponential."""
    new_tokens: int = 50
    pool_agents: int = 1 << 30
    memory_agents: int = 1 << 30
    """How many agents of the mean length a pool, and a page cache, hold."""

    @property
    def slots(self) -> int:
        return len(self.step) - 1

    @property
    def turn(self) -> float:
        """Seconds of GPU of one turn whose KV is there, where all slots are full."""
        return float(np.mean(self.prompt)) + self.answer * self.step[-1] / self.slots

    @property
    def capacity(self) -> float:
        return 1 / self.turn

    def stay(self, load: float) -> float:
        rate, stay, prompt = self.capacity * load, self.turn, float(np.mean(self.prompt))
        for _ in range(100):
            beside = min(max(rate * stay, 1), self.slots)
            stay = prompt + self.answer * float(np.interp(beside, range(self.slots + 1), self.step)) / (
                1 - rate * prompt
            )
        return stay


def costs(inputs: Inputs, *, prefill: float = 1.0) -> Costs:
    tokens = _lengths(inputs["cold"])
    sizes = tokens * inputs["bytes_per_token"]
    overhead = min(inputs["hot"][length] - inputs["prompt"][length] for length in inputs["hot"])
    prompt = _by_tokens(inputs["prompt"], tokens)
    mean = float(sizes.mean())
    found = Costs(
        tokens=tokens.tolist(),
        prompt=prompt.tolist(),
        cold=(np.maximum(_by_tokens(inputs["cold"], tokens) - overhead, prompt) / prefill).tolist(),
        memory=_by_tokens(inputs["memory"], tokens).tolist(),
        disk=_by_tokens(inputs["disk"], tokens).tolist(),
        network=(sizes / inputs["network_bytes"]).tolist(),
        remote=(sizes / inputs["remote_bytes"] + inputs["remote_seconds"]).tolist(),
        step=[0.0, *_steps({agents: inputs[f"decode_{agents}"] for agents in (1, 8, SLOTS)})],
        overhead=overhead,
        new_tokens=inputs["new_tokens"],
        pool_agents=int(inputs["pool_bytes"] / mean),
        memory_agents=int(inputs["memory_bytes"] / mean),
    )
    return replace(found, prompt=(prompt / prefill).tolist()) if prefill != 1 else found


def _lengths(measured: Mapping[int, float]) -> Array:
    normal = NormalDist()
    middles = [normal.inv_cdf((number + 0.5) / CLASSES) for number in range(CLASSES)]
    found: Array = np.clip(MEDIAN_TOKENS * np.exp(SPREAD * np.array(middles)), min(measured), max(measured))
    return found


def _by_tokens(measured: Mapping[int, float], tokens: Any) -> Array:
    known = sorted(measured)
    found: Array = np.interp(tokens, known, [measured[length] for length in known])
    return found


def _steps(rates: Mapping[int, float]) -> list[float]:
    """Seconds of a step for 1 to SLOTS agents, from tokens/s in all."""
    agents = sorted(rates)
    found = np.interp(range(1, SLOTS + 1), agents, [number / rates[number] for number in agents])
    return [float(seconds) for seconds in found]
