"""`agentmem chat` at two terminals."""

from gateway.cli.chat import Conversation, open_conversation, take_turn
from tests.system.stack import Stack


async def test_two_who_begin_at_once_talk_with_one_agent(stack: Stack) -> None:
    await stack.renew("gateway")
    channel = (await stack.client("gateway")).channel
    first, second = (Conversation("ada", "tiny", max_tokens=4) for _ in range(2))
    for conversation in (first, second):
        await open_conversation(channel, conversation)
    await take_turn(channel, conversation=first, text="the boat is green", echo=False)
    await take_turn(channel, conversation=second, text="the key is red", echo=False)
    ledger = await stack.ledger("ada")
    assert b"the boat is green" in ledger.text
    assert b"the key is red" in ledger.text
