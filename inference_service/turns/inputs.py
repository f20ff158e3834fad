"""From a turn's input to its plan: rendered, and taken as the whole conversation or as what is new in it.

Which of the two it is where a request leaves that open is decided here, against the ledger that the turn is based on
and under the agent's lock, so that no other turn comes between the decision and the commit.
"""

from dataclasses import replace

from agentmem.errors import FailedPrecondition, InvalidArgument
from agentmem.v1 import inference_pb2, types_pb2
from inference_service.domain import AppendInput, MessagesInput, TextInput, TokensInput, TurnInput, TurnRequest
from inference_service.memory.ledger import Ledger
from inference_service.memory.match import common_length
from inference_service.memory.plan import Plan, Planner
from inference_service.text.checkpoints import system_messages
from inference_service.text.rendered import Rendered
from inference_service.text.rendering import Renderer
from inference_service.turns.conversation import last_common_turn

_GOES_ON = (types_pb2.MATCH_NEW, types_pb2.MATCH_EXACT, types_pb2.MATCH_EXTEND)
_WHAT_ELSE = (
    "X-Agent-Memory: append (memory_mode APPEND) adds it to the memory, and replace (REPLACE) begins anew, while a "
    "snapshot keeps the memory"
)


def plan_turn(planner: Planner, renderer: Renderer, request: TurnRequest, ledger: Ledger) -> tuple[Plan, bool]:
    """The plan of a turn, and whether its input was appended; else `check_kept` says whether it may run.

    Raises InvalidArgument and FailedPrecondition as MemoryMode says.
    """
    turn = _Turn(renderer, request, ledger)
    if isinstance(request.input, AppendInput) or not turn.is_new():
        options = {"parse_special": request.parse_special, "cue": request.generates}
        plan = plan_input(planner, renderer, request.input, ledger, **options)
        return plan, isinstance(request.input, AppendInput)
    return turn.added(planner), True


def check_kept(renderer: Renderer, request: TurnRequest, ledger: Ledger, plan: Plan) -> None:
    """Refuse a whole conversation that leaves more of the memory behind than its mode allows.

    `ledger` is what the plan goes on from. Raises FailedPrecondition.
    """
    if plan.kind in _GOES_ON:
        return
    if request.memory_mode == inference_pb2.MEMORY_MODE_REFUSE:
        raise FailedPrecondition(
            f"this does not continue the agent's memory of {len(ledger)} tokens; send all of its conversation and what "
            "is new, or only what is new with X-Agent-Memory: append (memory_mode APPEND)"
        )
    if request.memory_mode == inference_pb2.MEMORY_MODE_AUTO and _Turn(renderer, request, ledger).keeps_nothing(plan):
        raise FailedPrecondition(
            f"the agent has a memory of {len(ledger)} tokens, and this would leave all of it behind; send only what is "
            f"new, or say what is meant: {_WHAT_ELSE}"
        )


def plan_input(
    planner: Planner, renderer: Renderer, turn_input: TurnInput, ledger: Ledger, *, parse_special: bool, cue: bool
) -> Plan:
    """The plan of an input that is what its field says. `cue` adds what makes the model answer."""
    match turn_input:
        case TokensInput(token_ids):
            return planner.for_tokens(ledger, token_ids)
        case TextInput(text):
            prompt = renderer.text(text, parse_special=parse_special)
            return planner.for_text(ledger, _not_empty(prompt, "prompt"), heal_extension=True)
        case MessagesInput():
            prompt = renderer.messages(turn_input, cue=cue, parse_special=parse_special)
            plan = planner.for_text(ledger, _not_empty(prompt, "messages"), heal_extension=False)
            if plan.kind in _GOES_ON:
                return plan
            remembered = _remembered(planner, renderer, turn_input, ledger, parse_special=parse_special, cue=cue)
            if remembered is None or remembered.keep_tokens <= plan.keep_tokens or not planner.fits(remembered):
                return plan
            return remembered
        case AppendInput(chat):
            if isinstance(chat, TextInput):
                render = renderer.appended_text if len(ledger) else renderer.text
                return planner.for_append(ledger, render(chat.text, parse_special=parse_special))
            try:
                return _appended(planner, renderer, chat, ledger, parse_special=parse_special, cue=cue)
            except InvalidArgument as error:
                raise InvalidArgument(f"append.{error.field}", error.problem) from error


class _Turn:
    """One turn's input against one ledger."""

    def __init__(self, renderer: Renderer, request: TurnRequest, ledger: Ledger) -> None:
        self._renderer, self._ledger = renderer, ledger
        self._input, self._mode = request.input, request.memory_mode
        self._parse_special, self._cue = request.parse_special, request.generates

    def is_new(self) -> bool:
        """Whether the input is only what is new."""
        if not len(self._ledger):
            return False
        if self._mode == inference_pb2.MEMORY_MODE_APPEND:
            return True
        if self._mode != inference_pb2.MEMORY_MODE_AUTO or not isinstance(self._input, MessagesInput):
            return False
        if any(message.get("role") == "assistant" for message in self._input.messages):
            return False
        try:
            whole = self._rendered(self._input)
        except (InvalidArgument, FailedPrecondition):  # many templates want a user's message first
            return True
        return not whole.text.startswith(self._ledger.text)

    def added(self, planner: Planner) -> Plan:
        """The plan of what is new."""
        match self._input:
            case TokensInput(token_ids):
                return planner.for_tokens(self._ledger, (*self._ledger.token_ids, *token_ids))
            case MessagesInput():
                chat = self._new_messages(self._input)
                return _appended(
                    *(planner, self._renderer, chat, self._ledger),
                    parse_special=self._parse_special,
                    cue=self._cue,
                )
            case TextInput(text):
                addition = self._renderer.appended_text(text, parse_special=self._parse_special)
                return planner.for_append(self._ledger, addition)
            case _:
                raise AssertionError("an append is not asked")

    def _new_messages(self, chat: MessagesInput) -> MessagesInput:
        """`chat` without the system messages that the memory begins with. Tools have no place but there."""
        system = system_messages(chat)
        if system and self._begins_with(chat):
            chat = MessagesInput(chat.messages[len(system) :], chat.tools, chat.template_arguments)
            if not chat.messages:
                raise InvalidArgument("messages", "bring nothing new: the memory begins with them; add what is new")
            return chat
        if system and self._mode == inference_pb2.MEMORY_MODE_AUTO:
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

    def _begins_with(self, chat: MessagesInput) -> bool:
        beginning = self._renderer.beginning(chat, parse_special=self._parse_special)
        return bool(beginning.text) and self._shared(beginning) == len(beginning.text)

    def keeps_nothing(self, plan: Plan) -> bool:
        """Whether nothing that was said stays: of a chat, the first message besides system messages counts."""
        if not isinstance(self._input, MessagesInput):
            return plan.kind == types_pb2.MATCH_DIVERGE
        system = system_messages(self._input)
        first = MessagesInput(
            self._input.messages[: len(system) + 1], self._input.tools, self._input.template_arguments
        )
        try:
            message = self._renderer.messages(first, cue=False, parse_special=self._parse_special)
        except (InvalidArgument, FailedPrecondition):
            return plan.kind == types_pb2.MATCH_DIVERGE
        whole = self._rendered(self._input)
        return self._shared(whole) < common_length(message.text, whole.text)

    def _rendered(self, chat: MessagesInput) -> Rendered:
        return self._renderer.messages(chat, cue=self._cue, parse_special=self._parse_special)

    def _shared(self, rendered: Rendered) -> int:
        """Bytes of the beginning that the memory has in common with it."""
        return common_length(self._ledger.text, rendered.text)


def _appended(
    planner: Planner, renderer: Renderer, chat: MessagesInput, ledger: Ledger, *, parse_special: bool, cue: bool
) -> Plan:
    before = Rendered(ledger.text, tuple(planner.specials(ledger)))
    kept, addition = renderer.continuation(
        before, chat, cue=cue, parse_special=parse_special, answered=ledger.ends_with_an_answer
    )
    return planner.for_append(ledger, _not_empty(addition, "messages"), kept)


def _remembered(
    planner: Planner, renderer: Renderer, chat: MessagesInput, ledger: Ledger, *, parse_special: bool, cue: bool
) -> Plan | None:
    """The plan of a chat whose beginning the agent has had, as it remembers that; None where it has had none of it.

    A memory that has more than that beginning is gone on from there.
    """
    turn = last_common_turn(chat, ledger, planner.tokenizer, renderer.reasoning)
    if turn is None:
        return None
    if not ledger.text.startswith(renderer.beginning(chat, parse_special=parse_special).text):
        return None  # the date has been moved
    new, kept = replace(chat, messages=chat.messages[turn.messages :]), ledger.kept(turn.end_token)
    try:
        plan = _appended(planner, renderer, new, kept, parse_special=parse_special, cue=cue)
    except (InvalidArgument, FailedPrecondition):
        return None  # what is new depends on what was before
    if len(kept) == len(ledger):
        return plan
    return replace(planner.for_tokens(ledger, plan.sequence), checkpoints=plan.checkpoints)


def _tool_names(chat: MessagesInput) -> list[str]:
    functions = [tool.get("function", tool) for tool in chat.tools]
    return [str(each["name"]) for each in functions if isinstance(each, dict) and "name" in each]


def _not_empty(rendered: Rendered, field: str) -> Rendered:
    if not rendered.text:
        raise InvalidArgument(field, "the model's chat template makes no text of it")
    return rendered
