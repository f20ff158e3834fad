import pytest

from gateway.cli.answer import Answer


def written(*tellings: list[str]) -> str:
    """What is on the screen after an answer was told so; only the last telling is complete."""
    screen: list[str] = []
    answer = Answer(screen.append)
    for telling in tellings:
        answer.begin()
        for text in telling:
            answer.add(text)
    answer.end()
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
