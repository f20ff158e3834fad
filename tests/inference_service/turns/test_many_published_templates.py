"""All chat templates of text models that the package `trl` ships, over a small tokenizer with the tokens they spell.

What the tests of `test_published_templates` show of some models holds of the others: a chat that goes on costs what is
new, whether its template leaves reasoning out, trims, or ends a turn in a way of its own.
"""

from pathlib import Path

import pytest

from agentmem.v1.types_pb2 import MATCH_EXTEND
from tests import trl_templates
from tests.inference_service.published_models import Conversation, Published, opened_by


@pytest.mark.slow("cohere")
@pytest.mark.parametrize("name", trl_templates.NAMES)
async def test_a_chat_that_goes_on_costs_what_is_new(name: str, tmp_path: Path) -> None:
    chat = Conversation(Published(name, ""), model=opened_by(trl_templates.template(name), tmp_path))
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
