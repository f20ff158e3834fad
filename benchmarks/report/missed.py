"""Why figures were missed, where it was found out. Every committed result that misses one has its reason here."""

from collections.abc import Mapping

_BEFORE = (
    "measured at f297201, and to be measured again: since then a restore takes a tensor out of all files at once, by "
    "some threads (joining was 80 of the 150 ms in which 600 MB were put together), and a short prompt's last chunk "
    "gives the first token's logits (the step that it saves, and building its graph, took 14 ms of a turn)"
)

_FEW_ANSWERS = (
    "3 answers lost and none gained of 266, within noise (p = 0.25), whose interval is wider than 2 points; with "
    "8 bits none is lost"
)

REASONS: Mapping[tuple[str, str], str] = {
    ("ttft-demo-cpu", "hot at 32,000"): (
        "the demo model has 5 million weights, so that attention, which grows with the context, is nearly all of a "
        "turn on a CPU; mlx-lm's first tokens from its own unquantized files grow more in the same run, 19.6x. Most of "
        "that attention are exponentials, which MLX computes one at a time on x86 (12 ns each; NumPy takes 0.6)"
    ),
    ("ttft-llama-3.1-8b-gpu", "warm over its parts"): _BEFORE,
    ("ttft-llama-3.1-8b-gpu", "cold over warm"): _BEFORE,
    ("ttft-llama-3.1-8b-gpu", "hot at 32,000"): (
        "36 ms more: all KV is dequantized in each layer for the 50 tokens, and their scores (105 MB a layer in that "
        "run, and twice that since they are float32) are written and read; a kernel that reads packed KV for each "
        "token alone took 60 ms more (flash decoding by rows)"
    ),
    ("throughput-llama-3.1-8b-gpu", "decode of 8 agents through all services at 8192"): (
        "0.944x and 0.955x in two samples: at the figure, within what samples differ by"
    ),
    ("restoring-gpu", "restored and verified over"): (
        "8 ms more for 38 MB, measured at f297201: MLX reads 24 tensors for the raw read, while a restore hashes all "
        "bytes, and copies 192 tensors apart on the device. From 4,096 tokens on it was 1.5x"
    ),
    ("restoring-cpu", "restored and verified over"): (
        "the raw read is one pass over the bytes by one thread; a restore is three, with hashing, and two cores share "
        "one memory. Of a warm turn it is little: the demo model's KV is a fortieth of that of Llama 3.1 8B"
    ),
    ("quality-cpu", "gemma3_text, 4 bits: recall"): _FEW_ANSWERS,
    ("quality-gpu", "gemma3_text, 4 bits: recall"): _FEW_ANSWERS,
}
"""By the result's name and the beginning of the claim's text."""


def reason(result: str, claim: str) -> str:
    """Why; "" where nobody has said it."""
    found = [text for (name, beginning), text in REASONS.items() if name == result and claim.startswith(beginning)]
    return found[0] if found else ""
