"""A stream that broke and begins again: nothing that was handed out is handed out twice. Pure."""

from collections.abc import Iterator

from agentmem.client.answers import Event, Growing, Restarted


class Replay:
    """Hands an answer out as it grows, over any number of attempts to get it."""

    def __init__(self) -> None:
        self._given = Growing()

    def grown(self, answer: Growing, *, complete: bool = False) -> Iterator[Event]:
        """Yield what is new of the answer so far. One that begins again is waited for, until it is `complete`.

        Where it comes out differently, and be it shorter, all of it comes again behind Restarted.
        """
        if answer == self._given or (answer.begins(self._given) and not complete):
            return
        given = self._given
        if not given.begins(answer):
            given = Growing()
            yield Restarted()
        yield from answer.since(given)
        self._given = Growing(answer.reasoning, answer.text, list(answer.calls))
