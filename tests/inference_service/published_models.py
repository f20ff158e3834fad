"""Well-known models without their weights: the tokenizer that they have, the template that they publish, and a pen.

What a model writes is given; all else is the product's: opening, planning, taking tokens, committing.
"""

import json
import re
import tempfile
import threading
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tokenizers import Tokenizer as Backend

from agentmem.kv.hints import TurnHints
from agentmem.kv.ledger import NO_VERSION, Ledger, Version
from agentmem.v1 import cache_store_pb2, inference_pb2, types_pb2
from agentmem.validation import AgentKey
from inference_service.domain import MessagesInput, Sampling, TurnRequest
from inference_service.engine.generation import TurnJob
from inference_service.engine.mlx_lm_adapter import load_tokenizer
from inference_service.memory.match import MatchLimits
from inference_service.models.chat_format import call_syntax, chat_template, reasoning_format
from inference_service.storage.client import Opened
from inference_service.text.answering import AnswerDelta
from inference_service.text.rendering import Renderer
from inference_service.text.template import Template
from inference_service.text.tokenizer import Tokenizer
from inference_service.threads import WorkerThreads
from inference_service.turns.committing import commit
from inference_service.turns.planning import TurnPlanner
from inference_service.turns.stream import delta
from inference_service.turns.turn import Turn
from tests import npm_tokenizers, trl_templates
from tests.inference_service.real_tokenizers import byte_level_backend, hugging_face
from tests.inference_service.turns.world import NoSnapshots

KEY = AgentKey("n", "a", "m")
_CONTEXT = 1 << 16
_SPECIAL = re.compile(
    r"<[|｜][^|｜<>\n'\"]+[|｜]>|<[|][a-z_]+>|<[a-z_]+[|]>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>|</?s>"
)
"""Special tokens, as templates write them."""
_BOS = "<|the beginning|>"


@dataclass(frozen=True)
class Published:
    """A model. `template` is the name of one in `trl`; None is the one that comes with the tokenizer.

    What it writes: `says` an answer, `thinks` with reasoning before it (None if it has none), `calls` a tool (None if
    the product knows no parser for its calls).
    """

    name: str
    tokenizer: str
    template: str | None = None
    says: str = "{said}"
    thinks: str | None = None
    calls: str | None = None
    stops: tuple[str, ...] = ()
    """Ends of generation besides the tokenizer's EOS."""

    def __str__(self) -> str:
        return self.name


_QWEN_CALL = '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
_FINAL = "<|channel|>final<|message|>{said}"

MODELS = (
    Published("Llama 3.1", "llama3_1", "llama3_1"),
    Published("Llama 3.2", "llama3_1", "llama3_2"),
    Published("Gemma 3", "gemma3", "gemma3"),
    Published("Qwen 3", "qwen3", "qwen3", thinks="<think>\n{thought}\n</think>\n\n{said}", calls=_QWEN_CALL),
    Published("Qwen 3 Instruct", "qwen3", "qwen3_instruct_2507", calls=_QWEN_CALL),
    Published(
        "Mistral Nemo",
        "mistral_nemo",
        calls='[TOOL_CALLS][{{"name": "{name}", "arguments": {arguments}, "id": "{id}"}}]',
    ),
    Published("DeepSeek V3", "deepseek_v3"),
    Published(
        "DeepSeek R1", "deepseek_v3", "deepseekv3", "\n</think>\n\n{said}", thinks="{thought}\n</think>\n\n{said}"
    ),
    Published(
        "GPT-OSS",
        "gptoss",
        "gptoss",
        _FINAL,
        thinks="<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant" + _FINAL,
        stops=("<|call|>", "<|endoftext|>"),
    ),
)


@cache
def opened(of: Published) -> Any:
    """Return the model opened without its weights. Skips the test where its files cannot be fetched."""
    files = npm_tokenizers.directory(of.tokenizer)
    config = json.loads((files / "tokenizer_config.json").read_text())
    if of.template:
        config["chat_template"] = trl_templates.template(of.template)
    eos = config["eos_token"] if isinstance(config["eos_token"], str) else config["eos_token"]["content"]
    backend = npm_tokenizers.backend(of.tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "tokenizer.json").symlink_to(files / "tokenizer.json")
        return opened_from(Path(scratch), config, [backend.token_to_id(stop) for stop in (eos, *of.stops)])


def opened_from(directory: Path, config: dict[str, Any], eos_ids: list[int]) -> Any:
    """The same, of a directory that has a tokenizer.json, and this tokenizer_config.json."""
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    wrapper = load_tokenizer(directory, eos_ids)
    tokenizer = Tokenizer(wrapper.backend_tokenizer, wrapper.eos_token_ids)
    reasoning = reasoning_format(wrapper, tokenizer)
    return text_model(
        tokenizer,
        eos=tokenizer.token_bytes(eos_ids[0]).decode(),
        renderer=Renderer(tokenizer, chat_template(wrapper), context_length=_CONTEXT, reasoning=reasoning),
        reasoning=reasoning,
        call_syntax=call_syntax(wrapper),
    )


def text_model(tokenizer: Tokenizer, **fields: Any) -> Any:
    """The parts of a model that planning reads."""
    plain = {"model_id": "m", "tokenizer": tokenizer, "renderer": Renderer(tokenizer, None), "reasoning": None}
    sizes = {"vocab_size": tokenizer.vocab_size, "context_length": _CONTEXT, "new_caches": list}
    further = {"geometry": SimpleNamespace(resumes_anywhere=True), "sampling": Sampling(), "fingerprint": "f"}
    return SimpleNamespace(**plain | sizes | further | fields)


@cache
def _plain_backend() -> str:
    return byte_level_backend().to_str()


def opened_by(template: str, directory: Path) -> Any:
    """A model whose generation ends with the first special token that the template puts after an answer."""
    turn = Template(hugging_face(template).apply_chat_template).user_turn
    assert turn is not None
    found = _SPECIAL.search((turn.end + turn.header).decode())
    assert found is not None, "a turn ends with a special token"
    backend = Backend.from_str(_plain_backend())
    backend.add_special_tokens([_BOS, *sorted(set(_SPECIAL.findall(template)))])
    backend.add_tokens(["<think>", "</think>"] if "<think>" in template else [])
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": _BOS, "eos_token": found[0]}
    return opened_from(directory, {**config, "chat_template": template}, [backend.token_to_id(found[0])])


class Memory(NoSnapshots):
    def __init__(self) -> None:
        self.version, self.ledger = NO_VERSION, Ledger()

    async def commit(self, commit: cache_store_pb2.CommitTurnRequest) -> tuple[Version, None]:
        pieces = [commit.text[a:b] for a, b in pairwise([0, *commit.offsets])]
        hashes = [bytes(each) for each in commit.message_hashes]
        added = commit.token_ids, pieces, commit.tokenizer_hash, commit.generated_tokens
        kept = self.ledger.kept(commit.keep_tokens)
        self.ledger = replace(
            kept.followed_by(*added, message_hashes=hashes),
            opening_bytes=commit.opening_bytes,
            template_time=commit.template_time,
        )
        self.version = Version("u", self.version.number + 1)
        return self.version, None


class Conversation:
    """A client that sends its whole chat each time, and the agent that it talks with.

    `messages` are the client's. `sent_back` says that it sends reasoning back, and `model` is what `of` is opened as.
    """

    def __init__(
        self, of: Published, *, sent_back: bool = False, tools: tuple[dict[str, Any], ...] = (), model: Any = None
    ) -> None:
        self.of, self.model, self.tools = of, model or opened(of), tools
        self.messages: list[dict[str, Any]] = []
        self.memory = Memory()
        self._sent_back = sent_back
        self._threads = WorkerThreads()
        self._planner = TurnPlanner(cast(Any, self.memory), self._threads, MatchLimits(), 4096)

    async def plan(
        self, *messages: dict[str, Any], template_time: str = "", history: Any = 0, **arguments: Any
    ) -> Turn:
        """The plan of a turn whose chat goes on with `messages`, under these arguments of the template."""
        chat = MessagesInput((*self.messages, *messages), self.tools, arguments, history or types_pb2.HISTORY_MEMORY)
        calls = bool(self.tools) and self.model.call_syntax is not None
        turn = Turn(TurnRequest(KEY, chat, b"", tool_calls=calls, template_time=template_time))
        await self._planner.plan(turn, self.model, Opened(self.memory.version, self.memory.ledger))
        return turn

    async def turn(self, written: str, *messages: dict[str, Any], **options: Any) -> tuple[Turn, AnswerDelta]:
        """A turn in which the model writes that, and ends; its plan, and what the client hears."""
        turn = await self.plan(*messages, **options)
        tokenizer = self.model.tokenizer
        job = TurnJob(turn.plan.sequence.tolist(), list, turn.decoding, turn.stream.tokens.append, threading.Event())
        for token_id in tokenizer.encode(
            written + ("" if self._ended(written) else self.model.eos), parse_special=True
        ):
            job.take(token_id, tokenizer)
        assert job.over
        job.finish()
        turn.generated = job.result
        said = delta(turn.stream.tokens, tokenizer, job.result.rest)
        store = cast(Any, self.memory)
        await commit(turn, self.model, inference_pb2.Finished(), store, self._threads, TurnHints())
        self.messages += [*messages, self._answer(said)]
        calls = tuple(call for event in turn.stream.tokens for call in event.calls)
        return turn, AnswerDelta(said.reasoning, said.text, (*calls, *job.result.rest.calls))

    def text(self, token_ids: Any) -> str:
        return str(self.model.tokenizer.decode(token_ids.tolist()).decode())

    def _ended(self, written: str) -> bool:
        return any(written.endswith(stop) for stop in (self.model.eos, *self.of.stops))

    def _answer(self, said: inference_pb2.Delta) -> dict[str, Any]:
        answer: dict[str, Any] = {"role": "assistant", "content": said.text}
        if self._sent_back and said.reasoning:
            answer["reasoning_content"] = said.reasoning
        if said.tool_calls:
            answer["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.loads(call.arguments_json)},
                }
                for call in said.tool_calls
            ]
        return answer
