"""Turn hints: who is evicted first, how long a hint holds, and what is refused."""

import pytest

from agentmem.errors import InvalidArgument
from agentmem.hints import HINT_SECONDS, MAX_HINTS, TurnHints, from_request
from agentmem.keys import AgentKey
from agentmem.v1 import agent_pb2, types_pb2

NAMES = ("unknown", "far", "near", "never", "other")


def key(name: str) -> AgentKey:
    return AgentKey("n", name, "m")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def order(hints: TurnHints) -> list[str]:
    return sorted(NAMES, key=lambda name: hints.rank(key(name)))


def test_who_never_speaks_again_goes_first_and_who_speaks_next_last() -> None:
    hints = TurnHints()
    hints.set({key("far"): 9, key("near"): 0, key("never"): None})
    assert order(hints) == ["never", "unknown", "other", "far", "near"]
    hints.set({key("near"): 10})
    assert order(hints) == ["never", "unknown", "other", "near", "far"], "hints of others stay"
    hints.forget(key("near"))
    hints.forget(key("unheard of"))
    assert order(hints) == ["never", "unknown", "near", "other", "far"]


def test_a_hint_ends() -> None:
    clock = Clock()
    hints = TurnHints(clock)
    hints.set({key("never"): None})
    clock.now = HINT_SECONDS - 1
    hints.set({key("far"): 9})
    assert order(hints) == ["never", "unknown", "near", "other", "far"]
    clock.now += 2
    assert order(hints) == ["unknown", "near", "never", "other", "far"]
    clock.now += HINT_SECONDS
    assert order(hints) == list(NAMES)


def test_a_request_is_checked() -> None:
    hint = agent_pb2.TurnHint(key=key("a").to_proto(), steps=0)
    never = agent_pb2.TurnHint(key=key("b").to_proto())
    assert from_request(agent_pb2.SetTurnHintsRequest(hints=[hint, never])) == {key("a"): 0, key("b"): None}
    with pytest.raises(InvalidArgument) as error:
        from_request(agent_pb2.SetTurnHintsRequest(hints=[hint] * (MAX_HINTS + 1)))
    assert error.value.field == "hints"
    nobody = agent_pb2.TurnHint(key=types_pb2.AgentKey(namespace="n", model_id="m"))
    with pytest.raises(InvalidArgument) as error:
        from_request(agent_pb2.SetTurnHintsRequest(hints=[hint, nobody]))
    assert error.value.field == "hints[1].key.agent_id"
