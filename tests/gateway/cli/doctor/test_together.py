"""What two halves say together."""

from agentmem.checkup import State, ok
from gateway.cli.doctor.together import together


def test_a_model_whose_agents_the_store_has_no_room_for() -> None:
    store, small, large = (
        ok("disk space", "", "", {"limit_bytes": 1000}),
        *(ok(f"model {size}", "", "", {"agent_bytes": size}) for size in (1000, 1001)),
    )
    (found,) = together([store, small, large])
    assert found.check == "model 1001" and found.state is State.PROBLEM and "WARM_BYTES" in found.advice
    assert list(together([small, large])) == list(together([store, small])) == []
