import pytest

from agentmem.client.answers import Growing
from agentmem.client.stream import Replay
from gateway.cli.chat import Shown


def written(*tellings: list[str]) -> str:
    screen: list[str] = []
    shown, replay = Shown(screen.append, screen.append), Replay()
    told = [Growing(text="".join(telling[:count])) for telling in tellings for count in range(1, len(telling) + 1)]
    for answer in told:
        for event in replay.grown(answer):
            shown.show(event)
    for event in replay.grown(Growing(text="".join(tellings[-1])), complete=True):
        shown.show(event)
    return "".join(screen)


@pytest.mark.parametrize(
    ("tellings", "expected"),
    [
        ([["Hel", "lo"], ["H", "ell", "o", " you"]], "Hello you"),
        ([["Hello"], ["Help", "!"]], "Hello\nHelp!"),
        ([["Hello\n"], ["Bye"]], "Hello\nBye"),
        ([["\x1b[2J"], ["\x1b[2J", "x"]], "\\x1b[2Jx"),
    ],
)
def test_what_is_written(tellings: list[list[str]], expected: str) -> None:
    assert written(*tellings) == expected


def test_reasoning_is_written_apart() -> None:
    screen: list[str] = []
    shown, replay = Shown(screen.append, lambda text: screen.append(f"({text})")), Replay()
    told = (("I ", ""), ("I muse.", ""), ("I muse.", "Hel"), ("I muse.", "Hello"))
    for reasoning, text in (*told, *told):
        for event in replay.grown(Growing(reasoning, text)):
            shown.show(event)
    assert "".join(screen) == "(I )(muse.)\n\nHello"
    assert shown.is_mid_line
