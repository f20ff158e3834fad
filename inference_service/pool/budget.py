"""The device's memory as models share it: what each of them was promised, and what is there for more."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager


class Budget:
    """Promises of memory, against what the device has at this moment, whoever else takes of it. Event loop only.

    `obtainable` says how many bytes this process could have in all, with what it holds. A promise is what a model
    holds or may still take, without asking again.
    """

    def __init__(self, obtainable: Callable[[], int]) -> None:
        self._obtainable = obtainable
        self._promises: dict[Hashable, Callable[[], int]] = {}

    def promise(self, owner: Hashable, promised: Callable[[], int]) -> None:
        """Count what `promised` says from now on, until `withdraw` of the same owner: a name, or another key."""
        self._promises[owner] = promised

    def withdraw(self, owner: Hashable) -> None:
        """End the owner's promise, if it has one."""
        self._promises.pop(owner, None)

    @contextmanager
    def promised(self, nbytes: int) -> Iterator[None]:
        """Promise so many bytes for as long as the context lasts."""
        owner = object()
        self.promise(owner, lambda: nbytes)
        try:
            yield
        finally:
            self.withdraw(owner)

    def spare(self) -> int:
        """Bytes that may be promised besides. Negative where others have taken what was promised here."""
        return self._obtainable() - sum(promised() for promised in self._promises.values())
