"""Where the messages of a turn are in the text that the model's template made of them."""

from agentmem.v1 import cache_store_pb2
from inference_service.domain import AppendInput, MessagesInput, TurnInput


def message_places(
    given: TurnInput, before: bytes, added: bytes, *, appended: bool
) -> list[cache_store_pb2.MessagePlace]:
    """The places in `added`, which follows `before`, of what the messages of an input say; none of other inputs.

    Where they were not `appended`, the first of them is at the beginning of `before`. A content that the template
    leaves out, or changes by more than white space around it, has no place.
    """
    chat = given.content if isinstance(given, AppendInput) else given
    if not isinstance(chat, MessagesInput):
        return []
    text, start = before + added, len(before)
    at, places = start if appended else 0, []
    for message in chat.messages:
        content = str(message.get("content") or "").encode(errors="surrogatepass")
        begin = text.find(content, at)
        if begin < 0:
            content = content.strip()
            begin = text.find(content, at)
        if begin < 0 or not content:
            continue
        at = begin + len(content)
        if at > start:
            role, first = str(message.get("role")), max(0, begin - start)
            places.append(cache_store_pb2.MessagePlace(role=role, start_byte=first, end_byte=at - start))
    return places
