import pytest

from agentmem.client.answers import Called, Event, Growing, Reasoning, Restarted, Text, ToolCall
from agentmem.client.stream import Replay

CALL = ToolCall("call_1", "look", "{}")


def handed_out(*tellings: list[str]) -> list[str]:
    """Return what is yielded of an answer told so, the last telling alone complete; | stands for Restarted."""
    replay, events = Replay(), list[Event]()
    for telling in tellings:
        for told in range(1, len(telling) + 1):
            events += replay.grown(Growing(text="".join(telling[:told])))
    events += replay.grown(Growing(text="".join(tellings[-1])), complete=True)
    return ["|" if isinstance(event, Restarted) else event.text for event in events if not isinstance(event, Called)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("tellings", "expected"),
    [
        ([["Hel", "lo"]], ["Hel", "lo"]),
        ([["Hel"], ["Hello"]], ["Hel", "lo"]),
        ([["Hel", "lo"], ["H", "ell", "o", " you"]], ["Hel", "lo", " you"]),
        ([["Hel"], [], ["Hello"]], ["Hel", "lo"]),
        ([["Hello"], ["Help", "!"]], ["Hello", "|", "Help", "!"]),
        ([["Hello"], ["Hel"]], ["Hello", "|", "Hel"]),
        ([["Hello"], ["He"], ["Hello", "!"]], ["Hello", "!"]),
        ([[], []], []),
    ],
)
def test_nothing_is_handed_out_twice(tellings: list[list[str]], expected: list[str]) -> None:
    assert handed_out(*tellings) == expected


def test_reasoning_and_calls_are_compared_too() -> None:
    replay = Replay()
    first = [*replay.grown(Growing("I ")), *replay.grown(Growing("I muse.", "Hel")), *replay.grown(Growing("I "))]
    assert first == [Reasoning("I "), Reasoning("muse."), Text("Hel")]
    called = Growing("I muse.", "Hello", [CALL])
    assert list(replay.grown(called)) == [Text("lo"), Called(CALL)]
    another = Growing("I muse.", "Hello", [ToolCall("call_2", "look", "{}")])
    assert list(replay.grown(Growing("I muse.", "Hello"))) == []
    assert list(replay.grown(another)) == [Restarted(), Reasoning("I muse."), Text("Hello"), Called(another.calls[0])]


def test_more_reasoning_before_a_text_that_was_handed_out_is_another_answer() -> None:
    replay = Replay()
    list(replay.grown(Growing("I muse.", "Hello")))
    assert Restarted() in list(replay.grown(Growing("I muse. And muse.", "Hello")))
