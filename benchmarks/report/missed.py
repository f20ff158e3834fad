"""Why figures were missed, where it was found out. Every committed result that misses one has its reason here."""

from collections.abc import Mapping

_SHORT_ANSWERS = (
    "the window is 87 steps in 3 to 3.5 s (it began with the last agent's first token then), of which 0.2 s are lost "
    "once and not in every step: at 1,024 tokens with 600 tokens each it was 0.977x and 0.997x, on such a GPU at the "
    "same commit"
)

_EIGHT_STREAMS = (
    "a step is 5.6 ms in the engine alone and 6.2 with 1,024 tokens each: writing to eight streams takes 1.1 ms of "
    "processor time a step, and the thread that prepares the next step waits for a part of it, since both need the "
    "interpreter. Waking the event loop once a step instead of once a token gained nothing (0.834x)"
)

_FEW_ANSWERS = (
    "3 answers lost and none gained of 266, within noise (p = 0.25), whose interval is wider than 2 points; with "
    "8 bits none is lost"
)

_PROCESSOR_BOUND = (
    "a step of 8 rows waits for the processor that launches it, and this machine's gave 20 million additions of Python "
    "in 1.6 to 2.2 s: the engine alone took 6.1 to 7.1 ms a step, the stack's rounds 7.1 to 10.9 ms a token, in no "
    "order. Steps of 32 rows wait for the GPU: the engine's rates differ by 1 %. Other runs gave 0.66x on such a "
    "machine, 0.74x on an H200 with a faster processor (862 tokens/s), and 0.93x on an H100 (783 tokens/s)"
)

REASONS: Mapping[tuple[str, str], str] = {
    ("work-llama-3.1-8b-gpu", "8 agents at work"): _PROCESSOR_BOUND,
    ("speculation-llama-3.1-8b-gpu", "speculation over plain steps, prose, at worst"): (
        "nothing was drafted, so both ways computed the same; the five runs of that answer differ by 29 % (0.82x to "
        "1.06x; the other two answers 1.00x). A look for a draft takes 0.02 of 7.3 ms"
    ),
    ("speculation-cpu", "speculation over plain steps, prose, at worst"): (
        "the sampled story; nothing was drafted for it, so both ways computed the same, and its runs differ by 4 %. "
        "The other three were 1.01x to 1.07x"
    ),
    ("ttft-demo-cpu", "hot at 32,000"): (
        "the demo model has 5 million weights, so that attention, which grows with the context, is nearly all of a "
        "turn on a CPU; mlx-lm's first tokens from its own unquantized files grow more in the same run, 19.6x. Most of "
        "that attention are exponentials, which MLX computes one at a time on x86 (12 ns each; NumPy takes 0.6)"
    ),
    ("ttft-llama-3.1-8b-gpu", "warm over its parts at 1,000"): (
        "3 of 91 ms: of the 32 ms that loading 37 MB takes, 9 are the raw read; hashing and putting 192 tensors "
        "together on the device take 10 more (see restoring); the others are calls between the worker and the store"
    ),
    ("throughput-llama-3.1-8b-gpu", "decode of 8 agents through all services at 1024"): _SHORT_ANSWERS,
    ("throughput-llama-3.1-8b-gpu", "decode of 8 agents through all services at 8192"): _SHORT_ANSWERS,
    ("restoring-cpu", "restored and verified over"): (
        "38 MB take 20 ms, and 33 before they went straight into blocks, but MLX reads them in 7 here (17 there): all "
        "is in the page cache, and 2 cores hash every byte beside reading. At 4,096 tokens it is 1.26x, at 16,384 "
        "0.94x. Of a warm turn it is little: the demo model's KV is a fortieth of that of Llama 3.1 8B"
    ),
    ("peers-cpu", "growing, prompt of turn 1"): (
        "47 GFLOP/s here, 49 in mlx_lm.server, while MLX's products alone reach 171 in the same run: what is not "
        "products, and computed by one thread, is most of a prompt of 135 million float32 weights. llama.cpp has 59"
    ),
    ("peers-cpu", "growing, turn 4: first token: as fast as llama.cpp"): (
        "its new tokens are computed as fast as the row before says"
    ),
    ("peers-cpu", "growing, answer of turn 4, tokens/s: as fast as mlx_lm.server"): (
        "of a commit at which each step dequantized the context's K and V again on a CPU; see peers-4k-cpu"
    ),
    ("peers-cpu", "growing, answer of turn 4, tokens/s: as fast as llama.cpp"): (
        "a token reads all weights, 538 MB in float32 here and 98 MB in 4 bits there: 6.3 and 8.6 GB/s"
    ),
    ("peers-cpu", "restart, from the start of its process"): (
        "three processes are started one after the other, whose imports take 6 s of processor time, 2.2 of them mlx_lm "
        "and transformers; and at the first load attention's paths (no longer), products and the quality of 4-bit KV "
        "are measured"
    ),
    ("peers-cpu", "together, at once"): (
        "of a commit at which prompts that go on from KV were computed one after the other; they are computed in a "
        "batch now, see peers-together-cpu"
    ),
    ("peers-4k-cpu", "growing, turn 2: first token: as fast as mlx_lm.server"): (
        "two samples each, of 2.4 and 3.1 s here and 2.3 and 3.1 s there"
    ),
    ("start-demo-cpu", "until the first token"): (
        "2.67 to 3.48 s; another run of the same day had 2.96 (at-rest-demo-cpu). 1.6 s are the worker's interpreter "
        "and imports, mlx_lm and transformers most of them, 0.8 the model with its self-tests; 0.4 is the supervisor"
    ),
    ("at-rest-demo-cpu", "what idle processes take"): (
        "three servers of 0.18 to 0.25 % each, where mlx_lm's one takes 0.20: timers of asyncio and gRPC, and the "
        "streams by which they know of each other's health"
    ),
    ("throughput-llama-3.1-8b-2k-gpu", "decode of 8 agents"): _EIGHT_STREAMS,
    ("throughput-llama-3.1-8b-long-answers-gpu", "decode of 8 agents"): _EIGHT_STREAMS,
    ("peers-cpu", "edit, the"): (
        "as many tokens are reused as by mlx_lm.server, 68 % and 69 % of the prompts, and samples are as far apart "
        "as the figures: another run had 1.18x and 1.23x. llama.cpp computes the other tokens faster, see the prompts"
    ),
    ("peers-cpu", "disconnects, 3 left in their answers: first token: as fast as llama.cpp"): (
        "with nobody gone it is 0.74x: llama.cpp computes prompts faster, see there"
    ),
    ("architectures-cpu", "gemma3_text, 4 bits, plain: recall"): _FEW_ANSWERS,
    ("architectures-gpu", "gemma3_text, 4 bits, plain: recall"): _FEW_ANSWERS,
}
"""By the result's name and the beginning of the claim's text."""


def reason(result: str, claim: str) -> str:
    """Why; "" where nobody has said it."""
    found = [text for (name, beginning), text in REASONS.items() if name == result and claim.startswith(beginning)]
    return found[0] if found else ""
