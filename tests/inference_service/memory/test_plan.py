"""Plans: what of a ledger a prompt keeps, and which tokens are new."""

import json
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from agentmem.errors import InvalidArgument
from agentmem.kv.ledger import Ledger
from agentmem.v1.types_pb2 import (
    MATCH_DIVERGE,
    MATCH_EXACT,
    MATCH_EXTEND,
    MISS_REASON_DIVERGED,
)
from inference_service.domain import MessagesInput
from inference_service.text.prompt import Rendered
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.memory.planning import World, check, hostile, texts, whole_characters, world
from tests.inference_service.real_tokenizers import (
    BOS,
    CHATML,
    END,
    STRIPS_THINKING,
    byte_level,
    byte_level_backend,
    byte_level_with_bos,
    llama3_like,
    nfc,
    sentence_piece,
)


@pytest.mark.parametrize("make", [byte_level, byte_level_with_bos, llama3_like])
@given(data=st.data())
def test_any_ledger_and_any_raw_prompt(make: Callable[[], Tokenizer], data: st.DataObject) -> None:
    of = world(make)
    token_ids = st.lists(st.integers(0, of.tokenizer.vocab_size + 2), max_size=8)
    ledger = of.ledger(
        of.renderer.text(data.draw(hostile), parse_special=data.draw(st.booleans())), data.draw(token_ids)
    )
    remembered = whole_characters(ledger.text)
    beginning = remembered[: data.draw(st.integers(0, len(remembered)))]
    prompt = of.renderer.text(beginning + data.draw(hostile), parse_special=data.draw(st.booleans()))
    if not prompt.text:
        return
    plan = of.planner.for_text(ledger, prompt, heal_extension=data.draw(st.booleans()))
    check(of, ledger, prompt, plan)


@given(data=st.data())
def test_any_chat(data: st.DataObject) -> None:
    """Turn after turn as an agent has them, with answers that are any tokens and messages that are edited."""
    of = world(byte_level_with_bos, data.draw(st.sampled_from([CHATML, STRIPS_THINKING])))
    messages: list[dict[str, str]] = []
    ledger = Ledger()
    for _ in range(data.draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": data.draw(hostile)})
        if data.draw(st.booleans()) and len(messages) > 1:
            index = data.draw(st.integers(0, len(messages) - 1))
            messages[index] = {**messages[index], "content": data.draw(hostile)}
        prompt = of.renderer.messages(MessagesInput(tuple(messages)), generation_prompt=True, parse_special=False)
        plan = of.planner.for_text(ledger, prompt, heal_extension=False)
        check(of, ledger, prompt, plan)
        assert plan.checkpoints, "the generation prompt's at least"
        assert plan.sequence.tolist().count(of.tokenizer.special_id(BOS)) == 1
        answer = data.draw(st.lists(st.integers(3, of.tokenizer.vocab_size - 1), max_size=6))
        answer += [of.tokenizer.special_id(END)] * data.draw(st.integers(0, 1))
        ledger = of.ledger(plan.sequence.tolist(), answer)
        said = whole_characters(of.tokenizer.decode(answer)).removesuffix(END)
        messages.append({"role": "assistant", "content": said})


@pytest.mark.parametrize("make", [byte_level, byte_level_with_bos, llama3_like])
@given(text=texts, other=texts, data=st.data())
def test_a_raw_prompt_that_goes_on_anywhere_is_tokenized_as_if_whole(
    make: Callable[[], Tokenizer], text: str, other: str, data: st.DataObject
) -> None:
    of = world(make)
    ledger = of.ledger(of.renderer.text(text, parse_special=False))
    beginning = text[: data.draw(st.integers(0, len(text)))]
    prompt = of.renderer.text(beginning + other, parse_special=False)
    if not prompt.text:
        return
    plan = of.planner.for_text(ledger, prompt, heal_extension=True)
    check(of, ledger, prompt, plan)
    assert plan.sequence.tolist() == of.renderer.encode(prompt)


def test_the_same_character_in_two_tokens_is_there() -> None:
    """The last token is computed again, and the cut before it is inside the character."""
    of = world(byte_level)
    prompt = of.renderer.text("\x80", parse_special=False)
    ledger = of.ledger(prompt)
    plan = of.planner.for_text(ledger, prompt, heal_extension=True)
    check(of, ledger, prompt, plan)
    assert (plan.kind, plan.keep_tokens, len(plan.sequence)) == (MATCH_EXACT, 1, 2)


@pytest.mark.parametrize(
    ("make", "common", "remembered", "new"),
    [
        (llama3_like, "s    ", "' x", "\t'LL345"),
        (llama3_like, "  ", "'l", " 12\n_"),
        (llama3_like, " 'the1    ", "és", " 12the"),
        (byte_level, "1\n\n", "_", " colour 12"),
        (byte_level, "'l        ", "'ss", " colour "),
        (byte_level, "\n\n", "'1's", " 'LLs"),
    ],
)
def test_where_only_the_ledger_or_only_the_prompt_splits(
    make: Callable[[], Tokenizer], common: str, remembered: str, new: str
) -> None:
    """The text after a run of spaces decides how it is split, and differs in the two."""
    of = world(make)
    ledger = of.ledger(of.renderer.text(common + remembered, parse_special=False))
    prompt = of.renderer.text(common + new, parse_special=False)
    plan = of.planner.for_text(ledger, prompt, heal_extension=True)
    assert plan.sequence.tolist() == of.renderer.encode(prompt)


@pytest.mark.parametrize("cut", range(300, 330))
def test_digits_that_are_grouped_from_far_away(cut: int) -> None:
    of = world(llama3_like)
    text = "pi is 3." + "1415926535" * 60
    ledger = of.ledger(of.renderer.text(text, parse_special=False))
    prompt = of.renderer.text(text[:cut] + "0 or so", parse_special=False)
    plan = of.planner.for_text(ledger, prompt, heal_extension=True)
    assert plan.sequence.tolist() == of.renderer.encode(prompt)


def test_mid_word_extension_is_healed_and_a_boundary_costs_nothing() -> None:
    of = world(byte_level_with_bos)
    ledger = of.ledger(of.renderer.text("the colour of the bo", parse_special=False))
    healed = of.planner.for_text(
        ledger, of.renderer.text("the colour of the boat", parse_special=False), heal_extension=True
    )
    assert healed.kind == MATCH_EXTEND
    assert ledger.text[: ledger.offsets[healed.keep_tokens - 1]].decode() == f"{BOS}the colour of the"
    boundary = of.planner.for_text(
        ledger, of.renderer.text("the colour of the bo is", parse_special=False), heal_extension=True
    )
    assert boundary.keep_tokens == len(ledger)
    unhealed = of.planner.for_text(
        ledger, of.renderer.text("the colour of the boat", parse_special=False), heal_extension=False
    )
    assert unhealed.keep_tokens == len(ledger)


@pytest.mark.slow("1234567")
@pytest.mark.parametrize("run", ["a", "=", " ", "é", "東", "\n", "7", "1234567", "12", " 12"])
def test_runs_longer_than_any_window(run: str) -> None:
    of = world(llama3_like)
    text = "the boat " + run * (7_000 // len(run))
    ledger = of.ledger(of.renderer.text(text, parse_special=False))
    for more in (run * 7, "x", "1"):
        for beginning in (text, text[:3_001], text[:5_999]):
            prompt = of.renderer.text(beginning + more, parse_special=False)
            plan = of.planner.for_text(ledger, prompt, heal_extension=True)
            check(of, ledger, prompt, plan)
            assert plan.sequence.tolist() == of.renderer.encode(prompt)


@pytest.mark.slow
def test_long_text_is_cut_at_the_right_place() -> None:
    of = world(llama3_like)
    text = "the colour of the boat is green, 12 é 東京\n" * 200
    ledger = of.ledger(of.renderer.text(text, parse_special=False))
    for cut in range(4000, 4040):
        prompt = of.renderer.text(text[:cut] + "ink", parse_special=False)
        plan = of.planner.for_text(ledger, prompt, heal_extension=True)
        assert plan.sequence.tolist() == of.renderer.encode(prompt)
        assert len(prompt.text) - 64 < ledger.offsets[plan.keep_tokens - 1], "only a word is given back"


SMILE = "🙂".encode()


def smile_tokens(of: World) -> list[int]:
    """A character in four tokens of one byte each."""
    by_piece = {of.tokenizer.token_bytes(i): i for i in range(of.tokenizer.vocab_size)}
    return [by_piece[SMILE[i : i + 1]] for i in range(4)]


@pytest.mark.parametrize("there", [1, 2, 3])
def test_ledger_that_ends_inside_a_character(there: int) -> None:
    of = world(byte_level_with_bos)
    ledger = of.ledger(of.renderer.text("hello", parse_special=False), smile_tokens(of)[:there])
    before = len(ledger) - there
    for more in ("🙂!", "🙃!", " x"):
        prompt = of.renderer.text(f"hello{more}", parse_special=False)
        plan = of.planner.for_text(ledger, prompt, heal_extension=False)
        check(of, ledger, prompt, plan)
        # The bytes of half a character are the same tokens again, where the whole one begins with them.
        assert plan.keep_tokens == before + (0 if more == " x" else there)


def test_token_that_begins_inside_a_character_and_crosses_a_boundary() -> None:
    """The last bytes of a character and the space after it are one token; a word takes the space to itself."""
    backend = json.loads(byte_level_backend().to_str())
    vocabulary, merges = backend["model"]["vocab"], backend["model"]["merges"]
    last, space = _stand_in(SMILE[3:]), _stand_in(b" ")
    vocabulary[last + space] = max(vocabulary.values()) + 1
    merges.append([last, space])
    of = world(lambda: Tokenizer(Backend.from_str(json.dumps(backend)), []))
    straddling = vocabulary[last + space]
    assert of.tokenizer.token_bytes(straddling) == SMILE[3:] + b" "
    hi, z = of.tokenizer.encode("hi", parse_special=False), of.tokenizer.encode("z", parse_special=False)
    ledger = of.ledger([*hi, *smile_tokens(of)[:3], straddling, *z])
    assert ledger.text.decode() == "hi🙂 z"
    prompt = of.renderer.text("hi🙂 y", parse_special=False)
    plan = of.planner.for_text(ledger, prompt, heal_extension=True)
    check(of, ledger, prompt, plan)
    assert plan.keep_tokens == len(hi) + 3, "up to the straddling token"


def _stand_in(byte: bytes) -> str:
    backend = byte_level_backend()
    spelled = (backend.id_to_token(i) for i in range(3, backend.get_vocab_size()))
    return next(token for token in spelled if byte_level().token_bytes(backend.token_to_id(token)) == byte)


def test_partial_of_which_nothing_is_left_is_diverged() -> None:
    of = world(byte_level)
    ledger = of.ledger(of.renderer.text("abcdef", parse_special=False))
    plan = of.planner.for_text(ledger, of.renderer.text("abcxyz", parse_special=False), heal_extension=True)
    assert (plan.kind, plan.keep_tokens, plan.reason) == (MATCH_DIVERGE, 0, MISS_REASON_DIVERGED)


@given(ids=st.lists(st.integers(0, 400), min_size=1, max_size=8), data=st.data())
def test_prompts_as_tokens(ids: list[int], data: st.DataObject) -> None:
    of = world(byte_level_with_bos)
    ledger = of.ledger(data.draw(st.one_of(st.just(ids), st.lists(st.integers(0, 400), max_size=8))))
    kept = data.draw(st.integers(0, len(ledger)))
    sequence = [*ledger.token_ids.tolist()[:kept], *ids]
    plan = of.planner.for_tokens(ledger, sequence)
    assert plan.sequence.tolist() == sequence
    assert plan.sequence.tolist() == [*ledger.token_ids.tolist()[: plan.keep_tokens], *plan.new_ids.tolist()]
    assert len(plan.new_ids)
    assert plan.keep_tokens in (0, min(len(sequence) - 1, _common(ledger.token_ids.tolist(), sequence)))


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("make", [byte_level_with_bos, nfc, sentence_piece])
@given(first=texts, addition=texts.filter(bool).map(lambda text: text.replace("\u2581", " ")))
def test_append_gives_nothing_back(make: Callable[[], Tokenizer], first: str, addition: str) -> None:
    of = world(make)
    ledger = of.ledger(of.renderer.text(first, parse_special=False), [of.tokenizer.vocab_size - 1])
    plan = of.planner.for_append(ledger, of.renderer.appended_text(addition, parse_special=False))
    assert plan.kind == MATCH_EXTEND
    assert plan.sequence.tolist()[: len(ledger)] == ledger.token_ids.tolist()
    assert len(plan.new_ids)
    assert plan.keep_tokens == len(ledger)
    assert not of.tokenizer.special_ids & set(plan.new_ids.tolist())
    added = of.tokenizer.decode(plan.new_ids.tolist()).decode()
    assert unicodedata.normalize("NFC", added) == unicodedata.normalize("NFC", addition), "and nothing comes between"


def test_append_that_adds_nothing_runs_the_last_token_again() -> None:
    of = world(byte_level_with_bos)
    ledger = of.ledger(of.renderer.text("hello", parse_special=False))
    plan = of.planner.for_append(ledger, Rendered(b""))
    assert plan.sequence.tolist() == ledger.token_ids.tolist()
    assert plan.keep_tokens == len(ledger) - 1


def test_prompt_without_tokens_is_refused() -> None:
    of = world(byte_level)
    with pytest.raises(InvalidArgument):
        of.planner.for_append(Ledger(), Rendered(b""))
    with pytest.raises(InvalidArgument):
        of.planner.for_tokens(Ledger(), ())
