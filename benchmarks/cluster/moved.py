"""First token of an agent's next turn on another node, whose KV comes from its last node, from S3, or is computed.

    agentmem bench moved [--model NAME=DIRECTORY] [--lengths 1000 4000 8000] [--samples 3]
    agentmem bench moved --remote s3://BUCKET/PREFIX [--remote-endpoint https://…]

Two nodes of a real store, worker and gateway each, on one PostgreSQL and one machine; on a GPU they share it, each with
as much memory for KV as its agents need. Node A gives an agent a memory of as many tokens as the length says, all of it
on A's disk, and the next turn appends text of 50 tokens:

- `warm` and `hot`: at A itself, with KV from its disk, and from its memory.
- `peer`: at B while A runs, which so reads A's files over the network of this machine, by mTLS.
- `computed`: at B when A has left, and there is no object storage: all of it is computed again, from the ledger.
- `S3`: at B when A has left, from copies in object storage: --remote, or else a server of moto on this machine, where
  that package is installed; else this row is left out.

Each turn is of an agent whose tokens B has not seen. B fetches only where it expects that to be faster than computing,
so that short memories of a small model may be computed: the share of tokens that came from where they should is told.
"""

import argparse
import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from benchmarks import options, results
from benchmarks.cluster import object_server, shared_options
from benchmarks.cluster.clusters import cluster, database
from benchmarks.cluster.computing_nodes import ComputingNode, flags
from benchmarks.models import model_directory, model_name
from benchmarks.prompts import NEW_TOKENS, Prompts
from benchmarks.tables import Claim, Table, milliseconds, spread
from benchmarks.turns import Turn, WrongTurn

HOT, WARM, PEER, S3, COMPUTED = "hot", "warm", "peer", "S3", "computed"
_TIERS = {HOT: "hot", WARM: "warm", PEER: "remote", S3: "remote"}
_FIRST_TOKENS = 600
"""Of the agents that go first, so that what processes do once is not counted."""
_FETCHED = 0.5
"""Of a memory's tokens: where fewer came from elsewhere, B has computed them by choice."""

Notes = dict[tuple[str, int], list[dict[str, float]]]


class Moving:
    """All turns. `notes` has them by way and length."""

    def __init__(self, model: str, prompts: Prompts, lengths: Sequence[int], samples: int) -> None:
        self._model, self._prompts, self._lengths, self._samples = model, prompts, lengths, samples
        self.notes: Notes = {}

    async def from_peer_and_computed(self, a: ComputingNode, b: ComputingNode) -> None:
        """The ways without object storage."""
        for number, length in self._all():
            memory, other = f"{number} {length}", f"computed {number} {length}"
            await a.remember(self._model, memory, length)
            await a.evict(self._model, memory)
            await a.fork(self._model, memory, f"{memory} here")
            await self._turn(WARM, a, f"{memory} here", length, number)
            await self._turn(HOT, a, f"{memory} here", length, number, length + NEW_TOKENS + 1)
            await self._turn(PEER, b, memory, length, number)
            await a.remember(self._model, other, length)
            await a.evict(self._model, other)
        await asyncio.to_thread(a.leave)
        for number, length in self._all():
            await self._turn(COMPUTED, b, f"computed {number} {length}", length, number)

    async def from_objects(self, a: ComputingNode, b: ComputingNode) -> None:
        """The way with it."""
        for number, length in self._all():
            await a.remember(self._model, f"objects {number} {length}", length)
            await a.evict(self._model, f"objects {number} {length}")
        await a.uploaded()
        await asyncio.to_thread(a.leave)
        for number, length in self._all():
            await self._turn(S3, b, f"objects {number} {length}", length, number)

    def _all(self) -> Iterator[tuple[int, int]]:
        yield 0, _FIRST_TOKENS
        for number in range(1, self._samples + 1):
            for length in self._lengths:
                yield number, length

    async def _turn(
        self, way: str, node: ComputingNode, agent: str, length: int, number: int, tokens: int | None = None
    ) -> None:
        """A next turn of an agent with so many `tokens` (default: `length`)."""
        tokens, text = tokens or length, self._prompts.text(NEW_TOKENS, f"{agent} {way}")
        turn = _checked(await node.next_turn(self._model, agent, text), way, tokens)
        if number:
            self.notes.setdefault((way, length), []).append({"first": turn.first, "reused": turn.reused / tokens})


def _checked(turn: Turn, way: str, tokens: int) -> Turn:
    """The same turn. Raises WrongTurn where it is another one."""
    tiers = {_TIERS[way]} if way in _TIERS else set()
    if turn.prompt != tokens + NEW_TOKENS or not set(turn.cached) <= tiers or (way in (HOT, WARM) and not turn.cached):
        raise WrongTurn(f"a turn of {tokens} tokens, {way}, had {turn.prompt}, and reused {turn.cached}")
    return turn


def figures(asked: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """What is written: medians, those of the ratios to computing, and all samples."""
    found: dict[str, Any] = {}
    for (way, length), mine in notes.items():
        computed = notes[COMPUTED, length]
        first = [each["first"] for each in mine]
        found.setdefault(way, {})[str(length)] = {
            "first": results.summary(first),
            "reused": results.summary([each["reused"] for each in mine]),
            "times": results.summary([other["first"] / each for each, other in zip(first, computed, strict=True)]),
        }
    return {"asked": dict(asked), "ways": {way: found[way] for way in (COMPUTED, S3, PEER, WARM, HOT) if way in found}}


_LABELS = {
    COMPUTED: "on another node, computed",
    S3: "on another node, from S3",
    PEER: "on another node, from the last one",
    WARM: "on the same node, from its disk",
    HOT: "on the same node, from its memory",
}


def tables(figures: dict[str, Any]) -> list[Table]:
    """First tokens, and how much sooner than by computing."""
    asked, ways = figures["asked"], figures["ways"]
    lengths = [str(length) for length in asked["lengths"]]
    columns = ("", *(f"{int(length):,} tokens" for length in lengths))

    def rows(cell: Any, names: Sequence[str]) -> list[tuple[str, ...]]:
        return [(_LABELS[way], *(cell(ways[way][length], way) for length in lengths)) for way in ways if way in names]

    def times(one: Mapping[str, Any], way: str) -> str:
        chosen = way in (PEER, S3) and one["reused"]["median"] < _FETCHED
        return f"{spread(one['times'], 1, 'x')}{' (computed by choice)' if chosen else ''}"

    where = "without object storage" if S3 not in ways else f"S3 is {asked['remote']}"
    return [
        Table(
            f"First token of the next turn ({asked['model']})",
            columns,
            rows(lambda one, _: milliseconds(one["first"]), [*_LABELS]),
            f"Medians of {asked['samples']} (range), by the client's clock. Both nodes are on one machine; {where}.",
        ),
        Table("How many times as fast as computing it", columns, rows(times, (S3, PEER, WARM, HOT))),
        Table(
            "Tokens of the memory that were not computed",
            columns,
            rows(lambda one, _: f"{one['reused']['median'] * 100:.0f} %", (S3, PEER, WARM, HOT)),
        ),
    ]


def claims(_: dict[str, Any]) -> list[Claim]:
    """None: what the way to S3 takes is its operator's."""
    return []


@contextmanager
def objects(arguments: argparse.Namespace) -> Iterator[tuple[str, list[str], dict[str, str]] | None]:
    """What object storage there is, what a store has as flags for it, and in its environment. None: there is none."""
    if arguments.remote:
        endpoint = [f"--remote-endpoint={arguments.remote_endpoint}"] if arguments.remote_endpoint else []
        place = f"{arguments.remote.rstrip('/')}/{uuid.uuid4().hex[:8]}"
        yield "its operator's", [f"--remote={place}", *endpoint], {}
    elif object_server.installed():
        with object_server.serving() as address:
            object_server.create_bucket(address, "bench")
            remote = ["--remote=s3://bench/kv", f"--remote-endpoint={address}"]
            yield "moto's server on this machine", remote, object_server.ENVIRONMENT
    else:
        print("S3 is left out: give --remote, or install moto[server]", file=sys.stderr)
        yield None


async def measure(arguments: argparse.Namespace, made_of: type[ComputingNode] = ComputingNode) -> dict[str, Any]:
    """All ways."""
    directory = model_directory(arguments.model)
    model, lengths = model_name(arguments.model), arguments.lengths
    moving = Moving(model, Prompts(directory), lengths, arguments.samples)
    worker = flags(arguments.model, directory, max(*lengths, _FIRST_TOKENS))
    asked = {"model": model, "lengths": lengths, "samples": arguments.samples, "remote": ""}

    @asynccontextmanager
    async def two(where: str, *store: str, **more: Any) -> AsyncIterator[tuple[ComputingNode, ComputingNode]]:
        name = {"worker": "inference_service"}
        async with cluster(where, 2, worker, store, made_of, **name, **more) as made:
            a, b = made.nodes.values()
            assert isinstance(a, ComputingNode)
            assert isinstance(b, ComputingNode)
            yield a, b

    with database(arguments.database) as (where, _), objects(arguments) as storage:
        async with two(where) as (a, b):
            await moving.from_peer_and_computed(a, b)
        if storage is not None:
            asked["remote"], store, environment = storage
            async with two(where, *store, environment=environment) as (a, b):
                await moving.from_objects(a, b)
    return figures(asked, moving.notes)


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, write."""
    found = await measure(arguments)
    output = arguments.output or f"moved-{found['asked']['model']}-{results.backend()}"
    results.conclude(output, found, tables(found))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = options.parser(__doc__)
    found.add_argument("--model", default="demo", help="demo, or NAME=DIRECTORY of a model")
    found.add_argument("--lengths", type=options.at_least(300), nargs="+", default=[1000, 4000, 8000])
    found.add_argument("--samples", type=options.at_least(1), default=3, help="turns of each kind")
    found.add_argument("--remote", default="", help="object storage, as the store takes it (default: moto's server)")
    found.add_argument("--remote-endpoint", default="", help="its address, where it is not AWS's")
    shared_options.add(found, "database", output="moved-MODEL-BACKEND")
    return found


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parser().parse_args())))
