"""Turns of an agent whose memory outgrows the context, against the oracle: cold, hot, and from files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentmem.errors import Cancelled, FailedPrecondition
from agentmem.kv.ledger import Ledger
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.domain import AppendInput, MessagesInput, TextInput
from inference_service.engine import gathering
from inference_service.turns import restoring, summarizing
from tests.inference_service.turns.world import TOLERANCE, Answer, Worker, answer, difference, working
from tests.oracle import Oracle
from tests.scripted_model import write_scripted, write_thinking
from tests.tiny_models import write_gemma3, write_llama

CONTEXT = 600
KEY = AgentKey("n", "a", "m")
SYSTEM = {"role": "system", "content": "The boat is green. Nobody knows who told you that, by the sea."}


def model(directory: Path, write: Callable[[Path], Path], context: int = CONTEXT) -> Path:
    directory = write(directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
    return directory


@pytest.fixture(scope="module", params=[write_llama, write_gemma3], ids=["llama", "gemma3"])
def directory(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return model(tmp_path_factory.mktemp("m"), request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("llama"), write_llama)


def question(number: int) -> AppendInput:
    content = f"{number}: who told you of the house by the sea? " + "The colour is red. " * (number % 4)
    user = {"role": "user", "content": content}
    return AppendInput(MessagesInput((SYSTEM, user) if number == 0 else (user,)))


async def say(worker: Worker, number: int, **arguments: Any) -> Answer:
    said = await answer(worker.say("a", question(number), **arguments))
    await worker.idle()
    return said


def ledger(worker: Worker) -> Ledger:
    return worker.store.ledgers[KEY][1]


def is_what_the_oracle_says(oracle: Oracle, worker: Worker, said: Answer) -> bool:
    ids = ledger(worker).token_ids.tolist()
    return difference(oracle, ids[: len(ids) - len(said.token_ids)], said) < TOLERANCE


def told(said: Answer) -> types_pb2.ContextTrim | None:
    return said.started.context_trim if said.started.HasField("context_trim") else None


async def until_trimmed(worker: Worker, first: int = 0, **arguments: Any) -> tuple[int, Answer]:
    """Turns up to the first one that drops something; its number."""
    for number in range(first, first + 90):
        said = await say(worker, number, **arguments)
        if told(said):
            return number, said
    pytest.fail("the memory never outgrew the context")


async def filled(worker: Worker, tokens: int) -> Any:
    """Store a memory by turns that make so many tokens."""
    number = 0
    while not number or len(ledger(worker)) < tokens:
        await say(worker, number)
        number += 1
    return worker.store.ledgers[KEY]


@pytest.mark.slow
async def test_an_agent_goes_on_past_its_context(directory: Path, tmp_path: Path) -> None:
    """Three times over: after each trim the answers are the oracle's, cold, hot, and from files."""
    oracle = Oracle(directory)
    async with working(directory, tmp_path, blocks=12) as worker:
        number = -1
        for _ in range(3):
            before = worker.store.ledgers.get(KEY)
            number, said = await until_trimmed(worker, number + 1)
            trim = told(said)
            assert trim is not None
            assert trim.policy == types_pb2.CONTEXT_POLICY_TRIM
            assert trim.dropped_turns
            assert before is None or trim.snapshot.startswith("auto-")
            assert len(ledger(worker)) <= CONTEXT // 2 + 4
            assert ledger(worker).text.startswith(f"<|bos|><|im_start|>system\n{SYSTEM['content']}".encode())
            assert is_what_the_oracle_says(oracle, worker, said), "computed again"
            length = len(ledger(worker))
            hot = await say(worker, number := number + 1)
            assert (hot.reused, is_what_the_oracle_says(oracle, worker, hot)) == (length, True)
            worker.model.memory.evict(KEY)
            warm = await say(worker, number := number + 1)
            assert warm.reused > 0
            assert warm.started.cache.cached[0].tier == types_pb2.TIER_WARM
            assert is_what_the_oracle_says(oracle, worker, warm)
        for turn in ledger(worker).turns:
            ended = ledger(worker).kept(turn.end_token).text
            assert ended.count(b"<|im_start|>user") == ended.count(b"<|im_start|>assistant"), "turns are whole"


@pytest.mark.slow
async def test_old_kv_behind_the_cut_is_noticed(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that takes the KV of the ledger's positions for that of what stands there now."""
    oracle, real = Oracle(llama), restoring.look_up

    def mistaken(fingerprint: str, namespace: str, ledger_ids: Any, keep: int, sequence: Any, *rest: Any) -> Any:
        keep = min(len(ledger_ids), len(sequence) - 1) if len(ledger_ids) > len(sequence) else keep
        return real(fingerprint, namespace, ledger_ids, keep, [*ledger_ids[:keep], *sequence[keep:]], *rest)

    async with working(llama, tmp_path, blocks=12) as worker:
        monkeypatch.setattr(restoring, "look_up", mistaken)
        _, said = await until_trimmed(worker)
        assert not is_what_the_oracle_says(oracle, worker, said)


async def test_a_policy_that_refuses(llama: Path, tmp_path: Path) -> None:
    async with working(llama, tmp_path, blocks=12) as worker:
        worker.store.policies[KEY] = types_pb2.CONTEXT_POLICY_REFUSE
        with pytest.raises(FailedPrecondition, match="context policy"):
            await until_trimmed(worker)
        assert len(ledger(worker)) > CONTEXT // 2


async def test_what_cannot_be_shortened_is_refused(llama: Path, tmp_path: Path) -> None:
    """A client's own history, and what does not fit after the system prompt."""
    async with working(llama, tmp_path, blocks=12) as worker:
        await say(worker, 0)
        before = worker.store.ledgers[KEY]
        messages = [
            SYSTEM,
            *({"role": ("user", "assistant")[n % 2], "content": "The house is red. "} for n in range(99)),
        ]
        for given, said in (
            (MessagesInput(tuple(messages)), "context holds 600"),
            (TextInput("The house is red. " * 500), "context holds 600"),
            (AppendInput(MessagesInput(({"role": "user", "content": "The house is red. " * 100},))), "append less"),
        ):
            with pytest.raises(FailedPrecondition, match=said):
                await answer(worker.say("a", given))
        assert worker.store.ledgers[KEY] == before


@pytest.mark.slow
async def test_context_is_taken_in_past_the_end(llama: Path, tmp_path: Path) -> None:
    """Prefill trims, too, and so do raw texts."""
    async with working(llama, tmp_path, blocks=12) as worker:
        trims = 0
        for number in range(30):
            text = AppendInput(TextInput(f"{number}: " + "the colour of the house by the sea is red, " * 3))
            trims += told(await answer(worker.say("a", text, generates=False))) is not None
            await worker.idle()
        assert trims > 1
        assert ledger(worker).text.startswith(b"<|bos|>")
        assert ledger(worker).text.removeprefix(b"<|bos|>").split(b":")[0].isdigit()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says "Nobody knows." and ends its turn. Each of its tokens is a letter, so it gets more of them."""
    return model(tmp_path_factory.mktemp("scripted"), write_scripted, 3 * CONTEXT)


@pytest.mark.slow
async def test_a_note_takes_the_place_of_what_goes(
    scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn is not waited for by its own note."""
    monkeypatch.setattr(gathering, "_SECONDS", 60.0)
    async with working(scripted, tmp_path, blocks=12) as worker:
        worker.store.policies[KEY] = types_pb2.CONTEXT_POLICY_SUMMARIZE
        write, expected = worker.runner.summarizer.note, []

        async def noted(*of: Any) -> Any:
            expected.append(worker.model.engine.gathering.expected)
            return await write(*of)

        monkeypatch.setattr(worker.runner.summarizer, "note", noted)
        _, said = await until_trimmed(worker, sampling=types_pb2.Sampling())
        trim = told(said)
        assert trim is not None and expected == [0]
        assert (trim.policy, trim.summary, trim.summary_failure) == (
            types_pb2.CONTEXT_POLICY_SUMMARIZE,
            "Nobody knows.",
            "",
        )
        text = ledger(worker).text.decode()
        beginning, note, rest = text.partition(": Nobody knows.]\n\n")
        assert note
        assert beginning.startswith(f"<|bos|><|im_start|>system\n{SYSTEM['content']}<|im_end|>\n<|im_start|>user\n[")
        assert rest.split(":")[0] == str(trim.dropped_turns), "the first question that stays"
        assert [turn.end_token for turn in ledger(worker).turns][-1] == len(ledger(worker))
        length = len(ledger(worker))
        assert (await say(worker, 1, sampling=types_pb2.Sampling())).reused == length


@pytest.mark.slow
@pytest.mark.parametrize("why", ["never ends", "refused"])
async def test_without_a_note_it_is_a_trim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """A random model ends no turn within its room; and a note may find no memory, say."""
    llama = model(tmp_path / "llama", write_llama, 3 * CONTEXT)
    async with working(llama, tmp_path, blocks=16) as worker:
        worker.store.policies[KEY] = types_pb2.CONTEXT_POLICY_SUMMARIZE
        if why == "refused":
            monkeypatch.setattr(summarizing, "_request", refusing)
        _, said = await until_trimmed(worker)
        trim = told(said)
        assert trim is not None
        assert (trim.policy, trim.summary) == (types_pb2.CONTEXT_POLICY_TRIM, "")
        assert (
            trim.summary_failure
            == {
                "never ends": "the note was longer than 112 tokens",
                "refused": "the model could not write it (FAILED_PRECONDITION)",
            }[why]
        )
        assert b"[Earlier" not in ledger(worker).text


def refusing(*_: Any) -> None:
    raise FailedPrecondition("no")


@pytest.mark.slow
async def test_a_turn_is_cancelled_while_the_note_is_written(
    scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(scripted, tmp_path, blocks=12) as worker:
        before, turns = await filled(worker, 3 * CONTEXT - 100), []
        worker.store.policies[KEY] = types_pb2.CONTEXT_POLICY_SUMMARIZE
        real = summarizing.TurnJob

        def cancelling(*arguments: Any, **named: Any) -> Any:
            turns[0].cancel()
            return real(*arguments, **named)

        monkeypatch.setattr(summarizing, "TurnJob", cancelling)
        turns.append(worker.say("a", question(3), 100))
        with pytest.raises(Cancelled):
            await answer(turns[0])
        await worker.idle()
        assert worker.store.ledgers[KEY] == before


@pytest.mark.slow
async def test_the_note_of_a_model_that_thinks_is_its_answer(tmp_path: Path) -> None:
    directory = model(tmp_path / "t", write_thinking, 3 * CONTEXT)
    async with working(directory, tmp_path, blocks=12) as worker:
        worker.store.policies[KEY] = types_pb2.CONTEXT_POLICY_SUMMARIZE
        _, said = await until_trimmed(worker, sampling=types_pb2.Sampling())
        assert told(said).summary == "It is calm 🌊!"


async def test_a_chat_does_not_go_on_inside_reasoning_that_was_cut(tmp_path: Path) -> None:
    directory = model(tmp_path / "t", write_thinking, 3 * CONTEXT)
    question, more = {"role": "user", "content": "Who told you that?"}, {"role": "user", "content": "Go on."}
    async with working(directory, tmp_path, blocks=12) as worker:
        await answer(worker.say("a", MessagesInput((question,)), max_tokens=3, sampling=types_pb2.Sampling()))
        await worker.idle()
        cut = {"role": "assistant", "content": ""}
        await answer(worker.say("a", MessagesInput((question, cut, more)), max_tokens=8, sampling=types_pb2.Sampling()))
        await worker.idle()
        assert b"I muse<|im_end|>" not in ledger(worker).text and b"Go on." in ledger(worker).text
