import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem import tracing
from agentmem.tracing import without_secrets

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NAMES = ["x-request-id", "traceparent", "tracestate", "baggage", "authorization"]


def test_what_is_well_formed_is_kept() -> None:
    given_pairs = [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2"), ("baggage", "k=v")]
    trace = tracing.received([("x-request-id", "abc"), *given_pairs, ("authorization", "Bearer secret")])
    assert trace == tracing.Trace("abc", PARENT, "a=1,b=2", "k=v")
    assert dict(trace.metadata) == {
        "x-request-id": "abc", "traceparent": PARENT, "tracestate": "a=1,b=2", "baggage": "k=v",
    }  # fmt: skip
    assert trace.answer == (("x-request-id", "abc"), ("traceparent", PARENT))


@pytest.mark.parametrize("bad", ["", " ", "a b", "a\nb", "a\r\nset-cookie: x", "é", "\x7f", "x" * 129, "x" * 10_000])
def test_a_bad_id_is_replaced(bad: str) -> None:
    first, second = (tracing.received([("x-request-id", bad), ("traceparent", PARENT)]) for _ in range(2))
    assert first.request_id.startswith("req-")
    assert first.request_id != second.request_id
    assert first.traceparent == PARENT


def test_of_several_ids_the_first_good_one_counts() -> None:
    assert tracing.received([("x-request-id", ""), ("x-request-id", "a"), ("x-request-id", "b")]).request_id == "a"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "nonsense",
        PARENT.upper(),
        PARENT + " ",
        PARENT + "\n",
        PARENT + "-more",
        PARENT[:-1],
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01",
        "01" + PARENT[2:] + "more",
        "01" + PARENT[2:] + "-" + "x" * 10_000,
        PARENT.replace("-", "_"),
    ],
)
def test_a_bad_traceparent_is_dropped_with_its_state(bad: str) -> None:
    trace = tracing.received([("x-request-id", "a"), ("traceparent", bad), ("tracestate", "a=1"), ("baggage", "k=v")])
    assert trace == tracing.Trace("a", baggage="k=v")
    assert trace.answer == (("x-request-id", "a"),)


def test_a_later_version_may_say_more() -> None:
    later = "cc" + PARENT[2:]
    for value in (later, later + "-what-the-future-holds"):
        assert tracing.received([("traceparent", value)]).traceparent == value


def test_two_traceparents_are_none() -> None:
    assert tracing.received([("traceparent", PARENT), ("traceparent", PARENT)]).traceparent == ""


def test_lists_are_bounded_together() -> None:
    half = "k=" + "v" * 4000
    assert tracing.received([("baggage", half), ("baggage", half)]).baggage == f"{half},{half}"
    assert tracing.received([("baggage", half), ("baggage", half), ("baggage", half)]).baggage == ""
    assert tracing.received([("traceparent", PARENT), ("tracestate", "a=" + "1" * 511)]).tracestate == ""


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.text() | st.binary()), max_size=8))
def test_whatever_comes_what_is_passed_on_is_a_header(pairs: list[tuple[str, str | bytes]]) -> None:
    trace = tracing.received(pairs)
    assert trace.request_id
    assert sum(len(name) + len(value) + 32 for name, value in trace.metadata) < 10_000
    for _, value in trace.metadata:
        assert value.isascii()
        assert value.isprintable()
    assert tracing.received(trace.metadata) == trace
    assert set(dict(trace.answer)) <= {"x-request-id", "traceparent"}


async def test_tasks_and_threads_serve_the_request_that_made_them() -> None:
    trace = tracing.Trace("a")

    async def seen() -> tracing.Trace | None:
        await asyncio.sleep(0)
        return tracing.current()

    with tracing.Threads(1) as pool:
        with tracing.serving(trace):
            task = asyncio.create_task(seen())
            work = pool.submit(tracing.current)
            assert await asyncio.to_thread(tracing.current) == trace
        assert tracing.current() is None
        assert await task == trace
        assert work.result() == trace
        assert pool.submit(tracing.current).result() is None


KEY_ID = st.from_regex("[0-9a-f]{12}", fullmatch=True)
SECRET = st.from_regex("[A-Za-z0-9_-]{20,60}", fullmatch=True)
OTHER = st.text(st.characters(exclude_characters="_"))


@given(KEY_ID, SECRET, OTHER, st.sampled_from(["", "\n", '"', "é", "?x", " am_"]))
def test_no_secret_stays_wherever_it_stands(key_id: str, secret: str, before: str, after: str) -> None:
    assert without_secrets(f"{before}am_{key_id}_{secret}{after}") == f"{before}am_{key_id}_…{after}"


@given(OTHER)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text
    assert without_secrets(f"am_{text}") == f"am_{text}"
