"""The portable file's parts, as `agentmem/v1/portable.proto` describes them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Self

from google.protobuf.message import DecodeError

from agentmem.errors import DataLoss, FailedPrecondition, InvalidArgument
from agentmem.kv.blockfile import CHUNK_BYTES, digest
from agentmem.kv.ledger import Ledger
from agentmem.v1 import portable_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.engine.calibration import Calibration
from inference_service.text.template import parse_moment

MAGIC = b"agentmem.agent"
FORMAT_VERSION = 4
BEGINNING = MAGIC + FORMAT_VERSION.to_bytes(2, "little")
MAX_PART_BYTES = 32 << 20
"""A ledger of about three million tokens."""
MAX_TURNS = 1 << 17
_LENGTH_BYTES, _DIGEST_BYTES = 4, 16


@dataclass(frozen=True)
class Manifest:
    """The file's head: `fingerprint` of the KV, `model_fingerprint` of the model's files, `calibration` as safetensors
    or empty.
    """

    key: AgentKey
    fingerprint: str
    ledger: Ledger
    context_policy: types_pb2.ContextPolicy.ValueType = types_pb2.CONTEXT_POLICY_UNSPECIFIED
    model_fingerprint: str = ""
    calibration: bytes = b""
    kv_bits: str = ""

    @classmethod
    def from_proto(cls, head: pb.PortableHead) -> Self:
        """The ledger is not checked. Raises DataLoss."""
        if len(head.ledger.turns) > MAX_TURNS:
            raise damaged(f"it has more than {MAX_TURNS} turns")
        try:
            if head.calibration:
                Calibration.of_bytes(head.calibration)
            if head.ledger.template_time:
                parse_moment("template_time", head.ledger.template_time)
            key = AgentKey.from_proto(head.key)
            policy = types_pb2.ContextPolicy.ValueType(head.context_policy)
            types_pb2.ContextPolicy.Name(policy)
        except (ValueError, InvalidArgument) as error:
            raise damaged("its head is not that of an exported agent") from error
        ledger = Ledger.from_proto(head.ledger)
        named = head.model_fingerprint, head.calibration, head.kv_bits
        return cls(key, head.kv_fingerprint, ledger, policy, *named)

    def to_proto(self) -> pb.PortableHead:
        ledger = self.ledger.to_proto()
        for version, turn in enumerate(ledger.turns, 1):
            turn.version = turn.version and version  # as an import numbers them: a second export is the same file
        return pb.PortableHead(
            key=self.key.to_proto(),
            ledger=ledger,
            context_policy=self.context_policy,
            kv_fingerprint=self.fingerprint,
            model_fingerprint=self.model_fingerprint,
            calibration=self.calibration,
            kv_bits=self.kv_bits,
        )


def damaged(problem: str) -> DataLoss:
    return DataLoss(f"the file is damaged: {problem}; export the agent again")


def framed(part: pb.PortablePart) -> bytes:
    """Return a part's bytes. Raises FailedPrecondition for too long a ledger."""
    text = part.SerializeToString()
    if len(text) > MAX_PART_BYTES or len(part.head.ledger.turns) > MAX_TURNS:
        raise FailedPrecondition("the agent's ledger is too long for a file; fork its first tokens and export the fork")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + digest(text) + text


def pieces(data: bytes | memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield bytes(data[start : start + CHUNK_BYTES])


@dataclass(eq=False)
class Parts:
    """A file read from `chunks` in bounded memory. Event loop."""

    _chunks: AsyncIterator[bytes]
    _waiting: bytearray = field(default_factory=bytearray)

    async def manifest(self) -> Manifest:
        """Raises DataLoss, and FailedPrecondition for other versions."""
        beginning = await self.take(len(BEGINNING))
        version = int.from_bytes(beginning[len(MAGIC) :], "little")
        is_safetensors = beginning[8:10] == b'{"'  # as versions up to 3 were
        if is_safetensors or (beginning.startswith(MAGIC) and version != FORMAT_VERSION):
            found = "an older version" if is_safetensors else f"version {version}"
            raise FailedPrecondition(
                f"the file has {found} of the format, and this worker reads version {FORMAT_VERSION}; the agentmem "
                "that made it reads it"
            )
        if beginning != BEGINNING:
            raise damaged("it is not an exported agent")
        part = await self.part()
        if not part.HasField("head"):
            raise damaged("it has no head")
        return await asyncio.to_thread(Manifest.from_proto, part.head)

    async def part(self) -> pb.PortablePart:
        """Raises DataLoss."""
        size = int.from_bytes(await self.take(_LENGTH_BYTES), "little")
        if size > MAX_PART_BYTES:
            raise damaged(f"a part would have {size} bytes")
        expected, text = await self.take(_DIGEST_BYTES), await self.take(size)
        if digest(text) != expected:
            raise damaged("a part's checksum is another")
        try:
            return pb.PortablePart.FromString(text)
        except DecodeError as error:
            raise damaged("a part is no message") from error

    async def take(self, size: int) -> bytes:
        """Raises DataLoss."""
        while len(self._waiting) < size:
            self._waiting += await self._next()
        found = bytes(memoryview(self._waiting)[:size])
        del self._waiting[:size]
        return found

    async def skip(self, size: int) -> None:
        """Raises DataLoss."""
        while len(self._waiting) < size:
            size -= len(self._waiting)
            self._waiting.clear()
            self._waiting += await self._next()
        del self._waiting[:size]

    async def end(self) -> None:
        """Raises DataLoss if something follows."""
        if self._waiting or await anext(self._chunks, None) is not None:
            raise damaged("it goes on behind its end")

    async def _next(self) -> bytes:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            raise damaged("it ends too early")
        return chunk
