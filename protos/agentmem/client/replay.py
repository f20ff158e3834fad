"""Continues a stream that broke and began again. Pure."""

from collections.abc import Iterator

from agentmem.client.answers import Event, Growing, Restarted


class Replay:
    def __init__(self) -> None:
        self._given = Growing()

    def grown(self, answer: Growing, *, complete: bool = False) -> Iterator[Event]:
        """Yield what is new in the answer so far; nothing while a new attempt has less than was yielded.

        If the new answer differs, or is `complete` and shorter, yield Restarted and then all of it.
        """
        if answer == self._given or (answer.begins(self._given) and not complete):
            return
        given = self._given
        if not given.begins(answer):
            given = Growing()
            yield Restarted()
        yield from answer.since(given)
        self._given = Growing(answer.reasoning, answer.text, list(answer.calls))
