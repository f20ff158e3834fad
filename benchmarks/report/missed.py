"""Why figures were missed, where it was found out. Every committed result that misses one has its reason here."""

from collections.abc import Mapping

_BEFORE = (
    "measured before files were put together while they are uploaded (engine/uploading.py), and to be measured again: "
    "joining tensors on the device, and page faults, were the larger part of these turns"
)

REASONS: Mapping[tuple[str, str], str] = {
    ("ttft-demo-cpu", "hot at 32,000"): (
        "the demo model has 5 million weights, so that attention, which grows with the context, is nearly all of a "
        "turn on a CPU; mlx-lm's first tokens from its own unquantized files grow more in the same run, 19.6x. Most of "
        "that attention are exponentials, which MLX computes one at a time on x86 (12 ns each; NumPy takes 0.6)"
    ),
    ("ttft-llama-3.1-8b-gpu", "warm over its parts"): _BEFORE,
    ("ttft-llama-3.1-8b-gpu", "cold over warm"): _BEFORE,
    ("restoring-cpu", "restored and verified over"): (
        "the raw read is one pass over the bytes by one thread; a restore is three, with hashing, and two cores share "
        "one memory. Of a warm turn it is little: the demo model's KV is a fortieth of that of Llama 3.1 8B"
    ),
    ("quality-cpu", "deepseek_v2, 4 bits: recall"): (
        "the model had learned too little in the minutes that it was trained (71 % unquantized); 6 answers lost and 2 "
        "gained of 90 are within noise (p = 0.29), whose interval is wider than 2 points"
    ),
}
"""By the result's name and the beginning of the claim's text."""


def reason(result: str, claim: str) -> str:
    """Why; "" where nobody has said it."""
    found = [text for (name, beginning), text in REASONS.items() if name == result and claim.startswith(beginning)]
    return found[0] if found else ""
