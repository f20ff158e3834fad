"""The client of a gateway: `from agentmem import Client, AsyncClient`.

aio.py, agent.py, models.py, workflows.py   coroutines over grpc.aio
sync.py, blocking.py                        the same, run by one event loop on a thread
inputs.py                                   arguments as requests
answers.py, records.py                      results as frozen values
stream.py                                   an answer as it comes
connection.py                               address, credentials, deadlines, retries, errors
"""

from agentmem.channels import ClientTls
from agentmem.client.agent import AsyncAgent
from agentmem.client.aio import AsyncClient
from agentmem.client.answers import (
    Answer,
    Called,
    ContextTrim,
    Memory,
    Reasoning,
    Recalled,
    Restarted,
    Text,
    Timings,
    TokenLogprob,
    ToolCall,
    Usage,
    Version,
)
from agentmem.client.connection import GatewayUnreachable
from agentmem.client.inputs import Message, ToolChoice
from agentmem.client.records import (
    AgentInfo,
    Erased,
    Imported,
    LoadStep,
    Model,
    Prefetched,
    Probe,
    Snapshot,
    TokenCount,
    Turn,
)
from agentmem.client.stream import AnswerChanged, AsyncStream
from agentmem.client.sync import Agent, Client, Stream
from agentmem.client.workflows import Workflow
from agentmem.errors import AgentmemError

__all__ = [
    "Agent",
    "AgentInfo",
    "AgentmemError",
    "Answer",
    "AnswerChanged",
    "AsyncAgent",
    "AsyncClient",
    "AsyncStream",
    "Called",
    "Client",
    "ClientTls",
    "ContextTrim",
    "Erased",
    "GatewayUnreachable",
    "Imported",
    "LoadStep",
    "Memory",
    "Message",
    "Model",
    "Prefetched",
    "Probe",
    "Reasoning",
    "Recalled",
    "Restarted",
    "Snapshot",
    "Stream",
    "Text",
    "Timings",
    "TokenCount",
    "TokenLogprob",
    "ToolCall",
    "ToolChoice",
    "Turn",
    "Usage",
    "Version",
    "Workflow",
]
