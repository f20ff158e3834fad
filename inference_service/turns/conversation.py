"""Which part of a chat an agent has had: by the hash chain of its messages, and by what the ledger has of answers."""

from collections.abc import Mapping
from typing import Any

from agentmem.conversations import message_hashes
from agentmem.v1 import types_pb2
from inference_service.domain import MessagesInput
from inference_service.memory.ledger import Ledger, TurnPlace
from inference_service.text.answering import told_apart
from inference_service.text.reasoning import ReasoningFormat
from inference_service.text.tokenizer import Tokenizer


def last_common_turn(
    chat: MessagesInput, ledger: Ledger, tokenizer: Tokenizer, reasoning: ReasoningFormat | None
) -> TurnPlace | None:
    """The last turn of the ledger up to whose answer `chat` is the agent's conversation, and has something new behind.

    None where there is none, where an answer of the model comes with other reasoning than it had, and where the chat
    wants its history rendered. Answers without their reasoning are the same answers.
    """
    if chat.history == types_pb2.HISTORY_TEMPLATE:
        return None
    turns = [turn for turn in ledger.turns if 0 < turn.messages < len(chat.messages) and turn.generated_tokens]
    if not turns:
        return None
    longest = max(turn.messages for turn in turns)
    hashes = message_hashes(chat.messages[:longest], chat.tools, chat.template_arguments)
    common = [turn for turn in turns if hashes[turn.messages - 1] == turn.message_hash]
    answers = {turn.messages - 1: turn for turn in common}
    last = max(answers, default=-1)
    for place, message in enumerate(chat.messages[: last + 1]):
        own = answers.get(place)
        if message.get("role") == "assistant" and not _as_it_was(message, own, ledger, tokenizer, reasoning):
            return None
    return answers.get(last)


def _as_it_was(
    message: Mapping[str, Any],
    turn: TurnPlace | None,
    ledger: Ledger,
    tokenizer: Tokenizer,
    reasoning: ReasoningFormat | None,
) -> bool:
    """Whether the ledger has what an assistant's message says, and thinks, if it comes with that.

    Its hash says so of the text; but a stop string may have cut a token, which the ledger then has not. `turn` is the
    one that the message is the answer of; other messages were rendered, and their reasoning too, or left out.
    """
    thought, text = (str(message.get(name) or "").strip() for name in ("reasoning_content", "content"))
    if turn is None:
        return thought.encode() in ledger.text
    start = turn.end_token - turn.generated_tokens
    if not thought and (text or reasoning is None):
        written = ledger.text[ledger.offsets[start - 1] if start else 0 : ledger.offsets[turn.end_token - 1]]
        if text.encode() in written:
            return True
    if reasoning is None:
        return False
    said = told_apart(reasoning, tokenizer, ledger.token_ids[:start], ledger.token_ids[start : turn.end_token])
    if said.reasoning and not said.text:
        return False  # cut in its reasoning, which has no end: what follows would be a part of it
    return text in said.text and thought in ("", said.reasoning)
