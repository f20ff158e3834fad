"""Where the messages of a turn are in the text that the model's template made of them."""

from agentmem.v1 import cache_store_pb2
from inference_service.domain import AppendInput, MessagesInput, TurnInput


def message_places(
    given: TurnInput, before: bytes, added: bytes, *, appended: bool
) -> list[cache_store_pb2.MessagePlace]:
    """The places in `added`, which follows `before`, of what the messages of an input say; none of other inputs.

    They are at the end of `added` if they were `appended`; else the first of them is at the beginning of `before`. A
    content that the template leaves out, or changes by more than white space around it, has no place.
    """
    chat = given.content if isinstance(given, AppendInput) else given
    if not isinstance(chat, MessagesInput):
        return []
    text, start = before + added, len(before)
    low, high = start if appended else 0, len(text)
    places = []
    for message in reversed(chat.messages) if appended else chat.messages:
        find = text.rfind if appended else text.find
        content = str(message.get("content") or "").encode(errors="surrogatepass")
        begin = find(content, low, high)
        if begin < 0:
            content = content.strip()
            begin = find(content, low, high)
        if begin < 0 or not content:
            continue
        end = begin + len(content)
        low, high = (low, begin) if appended else (end, high)
        if end > start:
            back = {"start_from_end": len(text) - max(begin, start), "end_from_end": len(text) - end}
            places.append(cache_store_pb2.MessagePlace(role=str(message.get("role")), **back))
    return places[::-1] if appended else places
