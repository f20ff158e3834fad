"""Scrapes /metrics of another process: its samples, their growth, and why it cannot be read."""

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from agentmem.addresses import parse_address

Service = Literal["gateway", "worker", "store"]
Labels = frozenset[tuple[str, str]]

_START: Final = "process_start_time_seconds"
_CUMULATIVE: Final = ("_total", "_bucket", "_count", "_sum")

PATIENCE: Final = 5.0
"""Seconds that a source has to answer: a busy machine is not down."""

_LARGEST_PAGE: Final = 16 * 1024 * 1024


@dataclass(frozen=True)
class Samples:
    """The finite samples of a process by name and labels."""

    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, families: Iterable[Metric]) -> Self:
        samples: dict[str, dict[Labels, float]] = {}
        for sample in (sample for family in families for sample in family.samples):
            if math.isfinite(sample.value):
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = float(sample.value)
        return cls(samples)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for what is no page of metrics."""
        try:
            found = cls.of(text_string_to_metric_families(text))
        except (ValueError, IndexError, KeyError) as error:
            raise ValueError("is no page of metrics") from error
        if not found.samples:
            raise ValueError("has no metrics")
        return found

    def where(self, **labels: str) -> "Samples":
        """Return the samples that have these labels."""
        return Samples(
            {
                name: {key: value for key, value in series.items() if labels.items() <= key}
                for name, series in self.samples.items()
            }
        )

    def total(self, name: str) -> float | None:
        """Return the sum of a name's samples; None where there is none."""
        found = self.samples.get(name)
        return math.fsum(found.values()) if found else None

    def by(self, label: str, name: str) -> dict[str, float]:
        """Return those sums by the value of a label."""
        groups: dict[str, list[float]] = {}
        for key, value in self.samples.get(name, {}).items():
            if (group := dict(key).get(label)) is not None:
                groups.setdefault(group, []).append(value)
        return {group: math.fsum(groups[group]) for group in sorted(groups)}

    def count(self, name: str) -> int | None:
        total = self.total(name)
        return None if total is None else int(total)

    def counts(self, label: str, name: str) -> dict[str, int]:
        return {group: int(total) for group, total in self.by(label, name).items()}


def restarted(before: Samples, after: Samples) -> bool:
    """Return whether the samples are of two processes: started at other times, or a counter became smaller."""
    started = before.total(_START), after.total(_START)
    if None not in started:
        return started[0] != started[1]
    return any(
        value < before.samples.get(name, {}).get(key, 0.0)
        for name, series in after.samples.items()
        if name.endswith(_CUMULATIVE)
        for key, value in series.items()
    )


def increase(before: Samples, after: Samples) -> Samples:
    """Return the growth of each counter: a process that restarted began at 0."""
    old = Samples() if restarted(before, after) else before

    def grown(now: float, was: float) -> float:
        return max(0.0, now - was if now >= was else now)

    return Samples(
        {
            name: {key: grown(value, old.samples.get(name, {}).get(key, 0.0)) for key, value in series.items()}
            for name, series in after.samples.items()
        }
    )


def histogram_quantile(quantile: float, buckets: Mapping[float, float]) -> float | None:
    """Return a quantile as Prometheus does; None where nothing was observed. `buckets`: cumulative counts by upper
    bound.
    """
    bounds = sorted(buckets)
    if len(bounds) < 2 or not math.isinf(bounds[-1]):
        return None
    lower = below = 0.0
    rank = quantile * max(buckets.values())
    for bound in bounds:
        count = max(buckets[bound], below)  # samples are read one by one while they grow
        if count >= rank and count > 0:
            return lower if math.isinf(bound) else lower + (bound - lower) * max(0.0, rank - below) / (count - below)
        lower, below = bound, count
    return None


def condition(scraped: Samples | str) -> tuple[Literal["up", "not_ready", "down"], str | None]:
    if isinstance(scraped, str):
        return "down", scraped
    missing = [peer for peer, up in scraped.by("peer", "agentmem_peer_up").items() if not up]
    why = f"does not reach the {' and the '.join(missing)}" if missing else None
    if scraped.total("agentmem_ready") == 0:
        return "not_ready", why or "it says that it is not serving; its log says why"
    return "up", why


async def scrape(service: Service, address: str, names: Collection[str] = ()) -> Samples | str:
    """`address` is "host:port". Return why it cannot be read, or its samples, only of the series `names`, if there
    are any.
    """
    query = "&".join(f"name[]={name}" for name in names)
    try:
        async with asyncio.timeout(PATIENCE):
            status, body = await _get(address, f"/metrics?{query}" if query else "/metrics")
        if status != "200":
            return f"{address} answers with status {status}; is that its page of metrics?"
        samples = await asyncio.to_thread(Samples.parse, body.decode())  # some ms, for the gateway
    except TimeoutError:
        return f"{address} does not answer within {PATIENCE:g} seconds"
    except ConnectionRefusedError:
        return f"nothing listens at {address}"
    except OSError as error:
        return f"{address} cannot be read: {error.strerror or str(error) or 'the connection broke'}"
    except ValueError as error:
        what = "is no page of metrics" if isinstance(error, UnicodeDecodeError) else error
        return f"what {address} answers {what}; another program may have its port"
    owners = list(samples.by("service", "agentmem_build_info"))
    if owners != [service]:
        whose = f"the {owners[0]}'s page" if owners else "another program's page"
        return f"{address} has {whose}, not the {service}'s; give the address that it really has"
    return samples


async def _get(address: str, path: str) -> tuple[str, bytes]:
    """By HTTP/1.0: a request on a thread could not be cancelled. Raises OSError, ValueError."""
    reader, writer = await asyncio.open_connection(*parse_address(address))
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: text/plain; version=0.0.4\r\n\r\n".encode())
        answer = b""
        while len(answer) < _LARGEST_PAGE and (part := await reader.read(1 << 16)):
            answer += part
    finally:
        writer.close()
    head, separator, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("is no page of metrics")
    return words[1].decode("ascii", "replace"), body
