import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.diagnostics import FileError
from agentmem.errors import InvalidArgument
from agentmem.tracing import without_secrets
from gateway.edge.key_file import parse, render
from gateway.edge.keys import new, secret_digest, split

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_key_is_shown_once_and_kept_as_a_hash() -> None:
    key, shown = new("team-a", NOW, label="ci", expires=NOW + timedelta(days=1))
    assert str(shown) == f"am_{key.id}_{shown.secret}"
    assert split(str(shown)) == shown
    assert key.sha256 == secret_digest(shown.secret).hex()
    text = render([key])
    assert shown.secret not in text
    assert parse(Path("keys.json"), text) == {key.id: key}
    assert not key.expired(NOW)
    assert key.expired(NOW + timedelta(days=1))


@given(
    st.lists(
        st.builds(
            lambda namespace, label, admin, running, rate: new(
                namespace, NOW, label=label, admin=admin, max_running=running, max_per_minute=rate
            )[0],
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
            st.text(st.characters(codec="utf-8")),
            st.booleans(),
            st.none() | st.integers(0, 10**6),
            st.none() | st.integers(0, 10**6),
        )
    )
)
def test_a_file_says_what_was_written(keys: list[Any]) -> None:
    assert list(parse(Path("keys.json"), render(keys)).values()) == keys


@given(st.text() | st.builds(lambda a, b: f"am_{a}_{b}", st.text(), st.text()))
def test_whatever_is_shown_is_taken_apart_or_not(credential: str) -> None:
    shown = split(credential)
    assert shown is None or str(shown) == credential


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"namespace": ""}, "namespace"),
        ({"namespace": "x" * 257}, "namespace"),
        ({"namespace": "n", "max_running": -1}, "max_running"),
    ],
)
def test_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        new(created=NOW, **fields)


def damaged(**changed: Any) -> str:
    file = json.loads(render([new("n", NOW)[0]]))
    file["keys"][0].update(changed)
    return json.dumps(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"^keys\.json:1:1: is not JSON: "),
        ("[" * 100_000, "is not JSON"),
        ("[]", r"^keys\.json: Input should be"),
        ('{"version": 2, "keys": []}', r"^keys\.json: version: "),
        ('{"keys": []}', r"^keys\.json: version: "),
        (damaged(sha256="SECRET"), r"^keys\.json: keys\.0\.sha256: "),
        (damaged(id="../x"), r"^keys\.json: keys\.0\.id: "),
        (damaged(namespace=""), r"^keys\.json: keys\.0\.namespace: must not be empty"),
        (damaged(expires="2026-01-01T00:00:00"), r"^keys\.json: keys\.0\.expires: "),
        (damaged(scope="SECRET"), r"^keys\.json: keys\.0\.scope: "),
        (render([new("n", NOW)[0]] * 2), "has an id twice"),
    ],
)
def test_no_file(text: str, said: str) -> None:
    with pytest.raises(FileError, match=said) as caught:
        parse(Path("keys.json"), text)
    assert "SECRET" not in str(caught.value)


def test_secrets_are_left_out_of_a_text() -> None:
    identifier = "0123456789abcdef"[:12]
    shown = f"am_{identifier}_{'s' * 43}"
    assert split(shown) is not None
    assert without_secrets(f"/v1/agents/{shown}?x") == f"/v1/agents/am_{identifier}_…?x"
    assert without_secrets("am_bient_music and am_") == "am_bient_music and am_"
