import threading
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument
from inference_service.text.template import parse_moment, present_moment, rendering_at
from tests.inference_service.chat_templates import GPT_OSS, model
from tests.inference_service.real_tokenizers import hugging_face

LLAMA_32 = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}"
    "{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}Today Date: {{ date_string }}\n"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
"""How Llama 3.2's template, and others after it, come to their date."""
CHAT = [{"role": "user", "content": "hello"}]


def rendered(template: str) -> str:
    return str(hugging_face(template).apply_chat_template(CHAT, tokenize=False))


def test_templates_see_the_moment_and_afterwards_the_present() -> None:
    today = datetime.now()
    with rendering_at("2024-02-29T23:59:58+05:30"):
        assert rendered(LLAMA_32) == "Today Date: 29 Feb 2024\nhello"
        assert rendered("{{ strftime_now('%H:%M:%S %z') }}") == "23:59:58 +0530"
        assert "Current date: 2024-02-29" in model(GPT_OSS).whole(CHAT)
        with rendering_at(""):
            assert "Feb 2024" not in rendered(LLAMA_32)
    assert rendered("{{ strftime_now('%Y-%m-%d') }}") in (f"{today:%Y-%m-%d}", f"{today + timedelta(1):%Y-%m-%d}")


def test_threads_have_their_own() -> None:
    seen = []
    with rendering_at("2024-02-29"):
        other = threading.Thread(target=lambda: seen.append(rendered(LLAMA_32)))
        other.start()
        other.join()
    assert "Feb 2024" not in seen[0]


def test_the_present_is_kept_with_its_offset_to_the_second() -> None:
    moment = present_moment()
    assert parse_moment("f", moment) == moment
    kept = datetime.fromisoformat(moment)
    assert kept.utcoffset() is not None and kept.microsecond == 0
    assert abs(datetime.now().astimezone() - kept) < timedelta(hours=1)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("2026-03-01", "2026-03-01T00:00:00"),
        ("2026-03-01T09:30", "2026-03-01T09:30:00"),
        ("2026-03-01T09:30:00.123456Z", "2026-03-01T09:30:00+00:00"),
    ],
)
def test_forms_that_are_taken(text: str, kept: str) -> None:
    assert parse_moment("template_time", text) == kept


@given(text=st.text(max_size=30))
def test_what_is_kept_can_be_read(text: str) -> None:
    try:
        kept = parse_moment("template_time", text)
    except InvalidArgument:
        return
    assert parse_moment("template_time", kept) == kept
    with rendering_at(kept):
        assert rendered("{{ strftime_now('%Y') }}").isdigit()
