import pytest

from gateway.cli.chat import Answer


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


def test_reasoning_is_written_apart() -> None:
    screen: list[str] = []
    answer = Answer(screen.append, lambda text: screen.append(f"({text})"))
    for _ in range(2):
        answer.begin()
        answer.think("I ")
        answer.think("muse.")
        answer.add("")
        answer.add("Hel")
        answer.add("lo")
        answer.end()
    assert "".join(screen) == "(I )(muse.)\n\nHello"
    assert answer.is_mid_line


def test_reasoning_that_has_no_place_is_left_out() -> None:
    screen: list[str] = []
    answer = Answer(screen.append)
    answer.think("I muse.")
    assert not answer.is_mid_line
    answer.add("Hello")
    assert screen == ["Hello"]
