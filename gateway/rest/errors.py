"""Our errors in REST's shape: OpenAI's, under the contract's own names of fields."""

from agentmem.errors import AgentmemError
from gateway.exchange import Json
from gateway.openai import errors as openai


def error_body(error: AgentmemError) -> Json:
    """The JSON that tells of `error`."""
    return openai.error_body(error, named=str)
