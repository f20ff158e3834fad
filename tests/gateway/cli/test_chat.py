import pytest

from gateway.cli.chat import Answer


def written(*tellings: list[str]) -> str:
    """What is on the screen after an answer was told so; only the last telling is complete."""
    screen: list[str] = []
    answer = Answer(screen.append, screen.append)
    for telling in tellings:
        for told in range(1, len(telling) + 1):
            answer.show("", "".join(telling[:told]))
    answer.show("", "".join(tellings[-1]), complete=True)
    return "".join(screen)


@pytest.mark.parametrize(
    ("tellings", "expected"),
    [
        ([["Hel", "lo"]], "Hello"),
        ([["Hel"], ["Hello"]], "Hello"),
        ([["Hel", "lo"], ["H", "ell", "o", " you"]], "Hello you"),
        ([["Hel"], [], ["Hello"]], "Hello"),
        ([["Hello"], ["Help", "!"]], "Hello\nHelp!"),
        ([["Hello"], ["Hel"]], "Hello\nHel"),
        ([["Hello\n"], ["Bye"]], "Hello\nBye"),
        ([["Hello"], ["He"], ["Hello", "!"]], "Hello!"),
        ([["\x1b[2J"], ["\x1b[2J", "x"]], "\\x1b[2Jx"),
        ([[], []], ""),
    ],
)
def test_what_is_written(tellings: list[list[str]], expected: str) -> None:
    assert written(*tellings) == expected


def test_reasoning_is_written_apart() -> None:
    screen: list[str] = []
    answer = Answer(screen.append, lambda text: screen.append(f"({text})"))
    for _ in range(2):
        for reasoning, text in (("I ", ""), ("I muse.", ""), ("I muse.", "Hel"), ("I muse.", "Hello")):
            answer.show(reasoning, text)
        answer.show("I muse.", "Hello", complete=True)
    assert "".join(screen) == "(I )(muse.)\n\nHello"
    assert answer.is_mid_line
