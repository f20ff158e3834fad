from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.workflows.audience import Audience, addressees, audience, hear_all, pairs, present, speakers
from gateway.workflows.definition.schema import Phase

AGENTS = ["ann", "bob", "cem", "dia"]


def phase(topology: str, channel: str = "public", **more: Any) -> Phase:
    return Phase.model_validate(
        {"name": "p", "agents": AGENTS, "listeners": ["eve"], "topology": topology, "channel": channel, **more}
    )


@pytest.mark.parametrize(
    ("made", "meant"),
    [
        (phase("round_robin"), {"ann": [["bob", "cem", "dia"]], "cem": [["ann", "bob", "dia"]]}),
        (phase("round_robin", to={"cem": ["eve", "ann"]}), {"ann": [["bob", "cem", "dia"]], "cem": [["eve", "ann"]]}),
        (phase("all_at_once", to={"ann": ["bob"]}), {"ann": [["bob"]], "dia": [["ann", "bob", "cem"]]}),
        (phase("pairs"), {"ann": [["bob"]], "bob": [["ann"]], "cem": [["dia"]], "dia": [["cem"]]}),
        (
            phase("pairs", pairs=[["dia", "ann"], ["bob", "cem"]]),
            {"ann": [["dia"]], "bob": [["cem"]], "dia": [["ann"]]},
        ),
        (phase("hub", center="bob"), {"bob": [["ann"], ["cem"], ["dia"]], "ann": [["bob"]], "dia": [["bob"]]}),
        (phase("ring"), {"ann": [["bob"]], "bob": [["cem"]], "cem": [["dia"]], "dia": [["ann"]]}),
        (phase("broadcast", center="cem"), {"cem": [["ann", "bob", "dia"]], "ann": [], "eve": []}),
        (phase("broadcast", center="cem", to={"cem": ["dia"]}), {"cem": [["dia"]]}),
    ],
    ids=["robin", "robin-to", "at-once-to", "pairs", "given-pairs", "hub", "ring", "broadcast", "broadcast-to"],
)
def test_for_whom_utterances_are_meant(made: Phase, meant: dict[str, list[list[str]]]) -> None:
    assert {name: [list(one) for one in addressees(made, name)] for name in meant} == meant


@pytest.mark.parametrize(
    ("made", "who"),
    [
        (phase("round_robin"), AGENTS),
        (phase("all_at_once"), AGENTS),
        (phase("pairs", pairs=[["dia", "ann"]]), ["ann", "dia"]),
        (phase("hub", center="bob"), AGENTS),
        (phase("ring"), AGENTS),
        (phase("broadcast", center="cem"), ["cem"]),
    ],
    ids=lambda one: one.topology if isinstance(one, Phase) else "",
)
def test_who_speaks(made: Phase, who: list[str]) -> None:
    assert list(speakers(made)) == who


def test_the_channel_says_who_hears() -> None:
    others = ("bob", "cem", "dia", "eve")
    assert audience(phase("ring"), "ann", ("bob",)) == Audience(others, ())
    assert audience(phase("ring", "private"), "ann", ("bob",)) == Audience(("bob",), ())
    assert audience(phase("ring", "whisper"), "ann", ("bob",)) == Audience(("bob",), ("cem", "dia", "eve"))
    assert audience(phase("round_robin", "private"), "ann", ("eve", "cem")) == Audience(("cem", "eve"), ())


@pytest.mark.parametrize(
    ("made", "speaker", "who"),
    [
        (phase("hub", center="bob"), "bob", "ann cem dia eve"),
        (phase("hub", "private", center="bob"), "bob", ""),
        (phase("hub", "whisper", center="bob"), "bob", ""),
        (phase("hub", "whisper", center="bob", agents=["ann", "bob"]), "bob", "ann"),
        (phase("hub", "private", center="bob"), "ann", "bob"),
        (phase("pairs", "private"), "cem", "dia"),
        (phase("pairs"), "cem", "ann bob dia eve"),
        (phase("ring", "whisper"), "dia", "ann"),
        (phase("all_at_once", "private"), "dia", "ann bob cem"),
        (phase("all_at_once", "whisper", to={"dia": ["cem"]}), "dia", "cem"),
        (phase("broadcast", "private", center="ann"), "ann", "bob cem dia"),
        (phase("broadcast", center="ann"), "ann", "bob cem dia eve"),
        (phase("broadcast", center="ann"), "bob", ""),
        (phase("round_robin"), "eve", ""),
    ],
)
def test_who_surely_hears_all_that_one_says(made: Phase, speaker: str, who: str) -> None:
    assert hear_all(made, speaker) == set(who.split())


@given(
    st.sampled_from(["round_robin", "all_at_once", "pairs", "hub", "ring", "broadcast"]),
    st.sampled_from(["public", "private", "whisper"]),
    st.integers(1, 6),
    st.integers(0, 2),
)
def test_an_audience_is_others_of_the_phase_each_once(topology: str, channel: str, size: int, listening: int) -> None:
    agents = [f"a{i}" for i in range(size)]
    made = phase(topology, channel, agents=agents, listeners=[f"l{i}" for i in range(listening)], center="a0")
    for name in speakers(made):
        for meant in addressees(made, name):
            heard = audience(made, name, meant)
            assert name not in meant
            assert set(meant) <= set(heard.listeners)
            together = [*heard.listeners, *heard.bystanders]
            assert len(together) == len(set(together))
            assert name not in together
            assert set(together) <= set(present(made))
            assert hear_all(made, name) <= set(heard.listeners)
            # Only in private may somebody learn nothing at all.
            assert channel == "private" or set(together) == set(present(made)) - {name}


def test_what_a_phase_does_not_say_is_left_out() -> None:
    assert pairs(phase("pairs", agents=["a", "b", "c"])) == (("a", "b"),)
    assert addressees(phase("pairs", agents=["a", "b", "c"]), "c") == ()
    assert addressees(phase("hub"), "ann") == ((),)
    assert addressees(phase("ring", agents=["ann"]), "ann") == ()
    assert addressees(phase("broadcast"), "ann") == ()
