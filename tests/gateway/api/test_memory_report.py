"""An answer reports a memory that outgrew the context, and the version that a turn made."""

import pytest
from google.protobuf import json_format

from agentmem.v1 import inference_pb2, types_pb2
from agentmem.words import warning
from gateway.api.reports import memory_report

TRIM = types_pb2.ContextTrim(
    policy=types_pb2.CONTEXT_POLICY_TRIM, dropped_tokens=900, dropped_turns=7, snapshot="auto-12"
)
NOTED = types_pb2.ContextTrim(
    policy=types_pb2.CONTEXT_POLICY_SUMMARIZE, dropped_tokens=80, dropped_turns=1, snapshot="auto-3", summary="Hm 🌊."
)
FAILED = types_pb2.ContextTrim(
    policy=types_pb2.CONTEXT_POLICY_TRIM, dropped_tokens=80, dropped_turns=2, summary_failure="the model wrote nothing"
)
OUTGREW = "the memory outgrew the model's context, so its oldest "


@pytest.mark.parametrize(
    ("trim", "told"),
    [
        (TRIM, "7 turns (900 tokens) were dropped; its snapshot auto-12 keeps them"),
        (NOTED, "turn (80 tokens) became a note; its snapshot auto-3 keeps it"),
        (FAILED, "2 turns (80 tokens) were dropped without a note, since the model wrote nothing"),
    ],
    ids=["trim", "summarize", "no note, nothing kept"],
)
def test_what_was_dropped_is_a_warning(trim: types_pb2.ContextTrim, told: str) -> None:
    started = inference_pb2.Started(context_trim=trim)
    assert warning(started) == OUTGREW + told
    assert warning(started).isascii(), "it is a header, too"
    report = memory_report(started, inference_pb2.Finished(), "marco")
    assert report["warning"] == OUTGREW + told
    assert report["context_trim"] == {
        "policy": "summarize" if trim is NOTED else "trim",
        "dropped_tokens": trim.dropped_tokens,
        "dropped_turns": trim.dropped_turns,
        "snapshot": trim.snapshot or None,
        "summary": trim.summary or None,
        "summary_failure": trim.summary_failure or None,
    }


def test_a_turn_that_drops_nothing_says_nothing() -> None:
    report = memory_report(inference_pb2.Started(), inference_pb2.Finished(), "marco")
    nothing = ("context_trim", "warning", "version", "miss_reason", "snapshot_version")
    assert [report[name] for name in nothing] == [None] * len(nothing)
    assert report["durable"] is False


def test_the_version_names_that_very_state_to_a_next_turn() -> None:
    version = types_pb2.AgentVersion(uid="u", version=3, revision=bytes(range(16)))
    told = memory_report(inference_pb2.Started(), inference_pb2.Finished(version=version), "marco")["version"]
    request = inference_pb2.GenerateRequest()
    json_format.ParseDict({"if_version": told["version"], "if_revision": told["revision"]}, request)  # as REST does
    assert (told["uid"], request.if_version, request.if_revision) == ("u", 3, version.revision)
