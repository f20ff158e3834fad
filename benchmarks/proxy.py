"""A TCP proxy to a server of this machine, as a network that can be cut, or that carries nothing for a while."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final, TypeAlias

_CHUNK: Final = 1 << 16

Target: TypeAlias = Path | tuple[str, int]


class Proxy:
    """Listens on a port of this machine. Any thread; `close` once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: set[socket.socket] = set()
        self._lock = Lock()
        self._is_cut = False
        self._questions, self._answers = Event(), Event()
        self._flow()
        Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        self._is_cut = True
        self._break()
        try:
            yield
        finally:
            self._is_cut = False

    @contextmanager
    def holding(self, *, answers_only: bool = False) -> Iterator[None]:
        self._answers.clear()
        if not answers_only:
            self._questions.clear()
        try:
            yield
        finally:
            self._flow()

    @contextmanager
    def losing_answers(self) -> Iterator[None]:
        with self.holding(answers_only=True):
            yield
            with self.cut():
                pass

    def close(self) -> None:
        self._is_cut = True
        self._listener.close()
        self._break()
        self._flow()

    def _flow(self) -> None:
        self._questions.set()
        self._answers.set()

    def _break(self) -> None:
        with self._lock:
            ends = tuple(self._ends)
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                client, _ = self._listener.accept()
                Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(self._target, Path) else socket.AF_INET
        with client, socket.socket(family, socket.SOCK_STREAM) as server, suppress(OSError):
            server.connect(str(self._target) if isinstance(self._target, Path) else self._target)
            with self._lock:
                self._ends |= {client, server}
            try:
                if not self._is_cut:
                    back = Thread(target=self._carry, args=(server, client, self._answers, self._answered), daemon=True)
                    back.start()
                    self._carry(client, server, self._questions, self._asked)
                    back.join()
            finally:
                with self._lock:
                    self._ends -= {client, server}

    def _carry(self, source: socket.socket, sink: socket.socket, flowing: Event, count: Callable[[bytes], int]) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                flowing.wait()
                sink.sendall(data[: (carried := count(data))])
                if carried < len(data):
                    self._break()
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _asked(self, question: bytes) -> int:
        """Return how many of its bytes arrive."""
        return len(question)

    def _answered(self, answer: bytes) -> int:
        return len(answer)
