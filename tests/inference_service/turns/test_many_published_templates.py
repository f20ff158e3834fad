"""All chat templates of text models that the package `trl` ships, over a small tokenizer with the tokens they spell.

What the tests of `test_published_templates` show of some models holds of the others: a chat that goes on costs what is
new, whether its template leaves reasoning out, trims, or ends a turn in a way of its own.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from agentmem.v1.types_pb2 import MATCH_EXTEND
from inference_service.text.template import Template
from tests import trl_templates
from tests.inference_service.published_models import Conversation, Published, opened_from
from tests.inference_service.real_tokenizers import byte_level_backend, hugging_face

_SPECIAL = re.compile(
    r"<[|｜][^|｜<>\n'\"]+[|｜]>|<[|][a-z_]+>|<[a-z_]+[|]>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>|</?s>"
)
"""What special tokens look like in templates."""
_BOS = "<|the beginning|>"


@cache
def _plain_backend() -> str:
    return byte_level_backend().to_str()


def opened(template: str, directory: Path) -> Any:
    """A model whose generation ends with the first special token that the template puts behind an answer."""
    turn = Template(hugging_face(template).apply_chat_template).user_turn
    assert turn is not None
    found = _SPECIAL.search((turn.end + turn.header).decode())
    assert found is not None, "a turn ends with a special token"
    backend = Backend.from_str(_plain_backend())
    backend.add_special_tokens([_BOS, *sorted(set(_SPECIAL.findall(template)))])
    backend.add_tokens(["<think>", "</think>"] if "<think>" in template else [])
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": _BOS, "eos_token": found[0]}
    return opened_from(directory, {**config, "chat_template": template}, [backend.token_to_id(found[0])])


@pytest.mark.slow("cohere")
@pytest.mark.parametrize("name", trl_templates.NAMES)
async def test_a_chat_that_goes_on_costs_what_is_new(name: str, tmp_path: Path) -> None:
    chat = Conversation(Published(name, ""), model=opened(trl_templates.template(name), tmp_path))
    for number in range(4):
        asked = {"role": "user", "content": f"What is the colour of boat number {number}?"}
        before = len(chat.memory.ledger)
        plan = (await chat.plan(asked)).plan
        written = f"Boat {number} is green."
        if "<think>" in chat.text(plan.sequence[-8:]) and "</think>" not in chat.text(plan.sequence[-8:]):
            written = f"I muse on {number}.\n</think>\n\n{written}"
        turn, _ = await chat.turn(written, asked)
        text = chat.text(turn.plan.new_ids)
        assert asked["content"] in text
        if number:
            assert (turn.plan.kind, turn.plan.keep_tokens) == (MATCH_EXTEND, before)
            assert "Boat" not in text and text.count("colour") == 1
