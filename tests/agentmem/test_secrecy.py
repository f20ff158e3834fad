from hypothesis import given
from hypothesis import strategies as st

from agentmem.tracing import without_secrets

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
