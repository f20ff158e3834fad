"""From a turn's input to its plan: rendered, and taken as the whole conversation or as what is new.

A chat whose beginning the agent has had, by its hash chain, continues from the ledger's answers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from agentmem.conversations import message_hashes
from agentmem.errors import FailedPrecondition, InvalidArgument
from agentmem.kv.ledger import Ledger, TurnPlace, common_length
from agentmem.v1 import inference_pb2, types_pb2
from inference_service.domain import AppendInput, MessagesInput, TextInput, TokensInput, TurnInput, TurnRequest
from inference_service.memory.plan import Plan, Planner
from inference_service.text.answering import split_answer
from inference_service.text.prompt import Rendered
from inference_service.text.reasoning import ReasoningFormat
from inference_service.text.template import system_messages
from inference_service.text.tokenizer import Tokenizer

_CONTINUES = (types_pb2.MATCH_NEW, types_pb2.MATCH_EXACT, types_pb2.MATCH_EXTEND)
_WHAT_ELSE = (
    "X-Agent-Memory: append (memory_mode APPEND) adds it to the memory, and replace (REPLACE) begins anew, while a "
    "snapshot keeps the memory"
)


class InputPlanner:
    """Plans inputs against one ledger. Not on the event loop."""

    def __init__(self, planner: Planner, ledger: Ledger, *, parse_special: bool, generation_prompt: bool) -> None:
        self._planner, self._renderer, self._ledger = planner, planner.renderer, ledger
        self._parse_special, self._generation_prompt = parse_special, generation_prompt

    def plan_turn(self, request: TurnRequest) -> tuple[Plan, bool]:
        """Return a turn's plan, and whether its input was appended; otherwise `check_kept` decides. Raises as
        MemoryMode says.
        """
        if not isinstance(request.input, AppendInput) and self._is_new(request):
            return self._plan_new(request), True
        return self.plan(request.input), isinstance(request.input, AppendInput)

    def plan(self, turn_input: TurnInput) -> Plan:
        match turn_input:
            case TokensInput(token_ids):
                return self._planner.for_tokens(self._ledger, token_ids)
            case TextInput(text):
                prompt = self._renderer.text(text, parse_special=self._parse_special)
                return self._planner.for_text(self._ledger, _not_empty(prompt, "prompt"), heal_extension=True)
            case MessagesInput():
                prompt = _not_empty(self._rendered(turn_input), "messages")
                plan = self._planner.for_text(self._ledger, prompt, heal_extension=False)
                return plan if plan.kind in _CONTINUES else self._remembered_or(plan, turn_input)
            case AppendInput(TextInput(text)):
                return self._append_text(text)
            case AppendInput(MessagesInput() as chat):
                try:
                    return self._append_messages(chat, self._ledger)
                except InvalidArgument as error:
                    raise InvalidArgument(f"append.{error.field}", error.problem) from error
        raise AssertionError("an input of no known kind")

    def check_kept(self, request: TurnRequest, plan: Plan) -> None:
        """Refuse a whole conversation that leaves more of the memory than its mode allows. Raises
        FailedPrecondition.
        """
        if plan.kind in _CONTINUES:
            return
        tokens = len(self._ledger)
        if request.memory_mode == inference_pb2.MEMORY_MODE_REFUSE:
            raise FailedPrecondition(
                f"this does not continue the agent's memory of {tokens} tokens; send all of its conversation and what "
                "is new, or only what is new with X-Agent-Memory: append (memory_mode APPEND)"
            )
        if request.memory_mode == inference_pb2.MEMORY_MODE_AUTO and self._keeps_nothing(request.input, plan):
            raise FailedPrecondition(
                f"the agent has a memory of {tokens} tokens, and this would leave all of it behind; send only what is "
                f"new, or say what is meant: {_WHAT_ELSE}"
            )

    def _is_new(self, request: TurnRequest) -> bool:
        if not len(self._ledger):
            return False
        if request.memory_mode == inference_pb2.MEMORY_MODE_APPEND:
            return True
        chat = request.input
        if request.memory_mode != inference_pb2.MEMORY_MODE_AUTO or not isinstance(chat, MessagesInput):
            return False
        if any(message.get("role") == "assistant" for message in chat.messages):
            return False
        try:
            whole = self._rendered(chat)
        except (InvalidArgument, FailedPrecondition):  # Many templates want a user's message first.
            return True
        return not whole.text.startswith(self._ledger.text)

    def _plan_new(self, request: TurnRequest) -> Plan:
        match request.input:
            case TokensInput(token_ids):
                return self._planner.for_tokens(self._ledger, np.concatenate([self._ledger.token_ids, token_ids]))
            case MessagesInput() as chat:
                return self._append_messages(self._new_messages(chat, request.memory_mode), self._ledger)
            case TextInput(text):
                return self._append_text(text)
        raise AssertionError("an append needs no decision")

    def _new_messages(self, chat: MessagesInput, mode: inference_pb2.MemoryMode.ValueType) -> MessagesInput:
        """Return `chat` without the system messages that the memory begins with. Tools can only stand there."""
        system = system_messages(chat)
        prefix = self._renderer.system_prefix(chat, parse_special=self._parse_special).text if system else b""
        if prefix and self._ledger.text.startswith(prefix):
            chat = MessagesInput(chat.messages[len(system) :], chat.tools, chat.template_arguments)
            if not chat.messages:
                raise InvalidArgument("messages", "bring nothing new: the memory begins with them; add what is new")
            return chat
        if system and mode == inference_pb2.MEMORY_MODE_AUTO:
            raise FailedPrecondition(
                "the agent's memory does not begin with this system message, under these tools and template arguments; "
                f"leave it out, send the conversation as it was, or say what is meant: {_WHAT_ELSE}"
            )
        if unknown := [name for name in _tool_names(chat) if name.encode() not in self._ledger.text]:
            raise FailedPrecondition(
                f"the agent's memory does not know the tools {', '.join(unknown)}, and what is appended cannot bring "
                "them; leave them out, or begin anew with all tools: X-Agent-Memory: replace (memory_mode REPLACE)"
            )
        return chat

    def _keeps_nothing(self, turn_input: TurnInput, plan: Plan) -> bool:
        """Return whether nothing that was said stays; of a chat, the first message besides system messages counts."""
        diverges = plan.kind == types_pb2.MATCH_DIVERGE
        if not isinstance(turn_input, MessagesInput):
            return diverges
        first = replace(turn_input, messages=turn_input.messages[: len(system_messages(turn_input)) + 1])
        try:
            message = self._renderer.messages(first, generation_prompt=False, parse_special=self._parse_special)
        except (InvalidArgument, FailedPrecondition):
            return diverges
        whole = self._rendered(turn_input).text
        return common_length(self._ledger.text, whole) < common_length(message.text, whole)

    def _append_text(self, text: str) -> Plan:
        render = self._renderer.appended_text if len(self._ledger) else self._renderer.text
        return self._planner.for_append(self._ledger, render(text, parse_special=self._parse_special))

    def _append_messages(self, chat: MessagesInput, ledger: Ledger) -> Plan:
        kept, addition = self._renderer.continuation(
            Rendered(ledger.text, tuple(self._planner.specials(ledger))),
            chat,
            generation_prompt=self._generation_prompt,
            parse_special=self._parse_special,
            answered=ledger.ends_with_an_answer,
        )
        return self._planner.for_append(ledger, _not_empty(addition, "messages"), kept)

    def _remembered_or(self, plan: Plan, chat: MessagesInput) -> Plan:
        """Return the plan by the agent's memory if that keeps more; otherwise `plan`, whose reason is then the
        template.
        """
        turn = last_common_turn(chat, self._ledger, self._planner.tokenizer, self._renderer.reasoning)
        if turn is None or turn.end_token <= plan.keep_tokens:
            return plan
        if chat.history != types_pb2.HISTORY_TEMPLATE and self._begins_alike(chat):
            remembered = self._plan_remembered(chat, turn)
            if remembered is not None and remembered.keep_tokens > plan.keep_tokens and self._planner.fits(remembered):
                return remembered
        return replace(plan, reason=types_pb2.MISS_REASON_TEMPLATE)

    def _begins_alike(self, chat: MessagesInput) -> bool:
        """Return whether the memory begins as such chats do: not if the date moved. Mistral has the system prompt
        before the last question, which is the first in a new chat only.
        """
        prefix = self._renderer.system_prefix(chat, parse_special=self._parse_special).text
        if self._ledger.text.startswith(prefix):
            return True
        longer = self._renderer.system_prefix(chat, parse_special=self._parse_special, answered=True).text
        return bool(longer) and self._ledger.text.startswith(longer)

    def _plan_remembered(self, chat: MessagesInput, turn: TurnPlace) -> Plan | None:
        """Return the plan of a chat that continues the memory after `turn`; None if the new part depends on earlier
        ones.
        """
        new, kept = replace(chat, messages=chat.messages[turn.messages :]), self._ledger.kept(turn.end_token)
        try:
            plan = self._append_messages(new, kept)
        except (InvalidArgument, FailedPrecondition):
            return None
        if len(kept) == len(self._ledger):
            return plan
        return replace(self._planner.for_tokens(self._ledger, plan.sequence), checkpoints=plan.checkpoints)

    def _rendered(self, chat: MessagesInput) -> Rendered:
        options = {"generation_prompt": self._generation_prompt, "parse_special": self._parse_special}
        return self._renderer.messages(chat, **options)


def last_common_turn(
    chat: MessagesInput, ledger: Ledger, tokenizer: Tokenizer, reasoning: ReasoningFormat | None
) -> TurnPlace | None:
    """Return the last turn up to whose answer `chat` is the agent's conversation; None if answers come with other
    reasoning. Answers without reasoning are the same.
    """
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
    """Return whether the ledger has an assistant's message: a stop string may have cut a token. `turn` generated it;
    None: it was rendered.
    """
    thought, text = (str(message.get(name) or "").strip() for name in ("reasoning_content", "content"))
    if turn is None:
        return thought.encode() in ledger.text
    start = turn.end_token - turn.generated_tokens
    if not thought and (text or reasoning is None):
        written = ledger.text[ledger.text_end(start) : ledger.text_end(turn.end_token)]
        if text.encode() in written:
            return True
    if reasoning is None:
        return False
    answer = ledger.token_ids[: turn.end_token].tolist()
    said = split_answer(reasoning, tokenizer, answer[:start], answer[start:])
    if said.reasoning and not said.text:
        return False  # cut in its reasoning, which would go on
    return text in said.text and thought in ("", said.reasoning)


def _tool_names(chat: MessagesInput) -> list[str]:
    functions = [tool.get("function", tool) for tool in chat.tools]
    return [str(each["name"]) for each in functions if isinstance(each, dict) and "name" in each]


def _not_empty(rendered: Rendered, field: str) -> Rendered:
    if not rendered.text:
        raise InvalidArgument(field, "the model's chat template makes no text of it")
    return rendered
