"""What a model may think before an answer that is held to a grammar, as rules of llguidance's dialect of Lark. Pure."""

from dataclasses import dataclass

from inference_service.text.lark import literal, token_ranges
from inference_service.text.reasoning import BEGINNING, CONTENT, REASONING, ReasoningFormat, controlled
from inference_service.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Thinking:
    """How the reasoning before one answer is written. `opening` is the tag that begins it.

    It is empty where the prompt has opened the reasoning: then it comes first, and otherwise the model may leave it
    out. `closing` are the rules of `thoughts`: everything up to the end of the tag that closes it.
    """

    opening: str
    closing: tuple[str, ...]

    def before(self, answer: str) -> list[str]:
        """The rules of a `start` that goes on with `answer`, whose first words are not free text."""
        thinking = f"thinking: SPACE? {self.opening} thoughts SPACE?" if self.opening else "thinking: thoughts SPACE?"
        start = f"start: {'thinking?' if self.opening else 'thinking'} ({answer})"
        return [start, thinking, r"SPACE: /[ \t\r\n]{1,8}/", *self.closing]

    def before_text(self, answer: str) -> list[str]:
        """The same for an answer that begins with free text, which reasoning that may be left out is a part of."""
        return [f"start: {answer}"] if self.opening else [f"start: thoughts ({answer})", *self.closing]


def thinking(reasoning: ReasoningFormat, state: str, tokenizer: Tokenizer) -> Thinking | None:
    """The reasoning of an answer that begins in `state`; None for none, and for formats with more than two tags."""
    opens = [edge.marker for edge in reasoning.transitions.get(BEGINNING, ()) if edge.state == REASONING]
    closes = reasoning.transitions.get(REASONING, ())
    if state not in (BEGINNING, REASONING) or not opens or [edge.state for edge in closes] != [CONTENT]:
        return None
    specials = {controlled([(tokenizer.token_bytes(i), True)]): i for i in tokenizer.special_ids}
    try:
        opening, closing = (_tag(tag, specials) for tag in (opens[0], closes[0].marker))
    except (KeyError, UnicodeDecodeError):  # part of a special token
        return None
    end = specials.get(closes[0].marker)
    others = tokenizer.special_ids - tokenizer.eos_ids - {end}
    between = f"(THOUGHT? {token_ranges(others)})* " if others else ""
    rules: tuple[str, ...]
    if end is None:
        rules = (f"thoughts: {between}closed", f"closed[lazy]: /(?s:.*)/ {closing}")
    else:
        rules = (f"thoughts: {between}THOUGHT? {closing}",)
    return Thinking(opening if state == BEGINNING else "", (*rules, "THOUGHT: /(?s:.+)/"))


def _tag(marker: bytes, specials: dict[bytes, int]) -> str:
    """Raises KeyError, or UnicodeDecodeError, where it is neither text nor one special token."""
    return f"<[{specials[marker]}]>" if marker in specials else literal(marker.decode())
