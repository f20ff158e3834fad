"""Takes the steps in turn: an error in one is its result, and the others go on."""

import asyncio
import json
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from agentmem.errors import AgentmemError
from gateway.cli.bench.machine import facts
from gateway.cli.bench.machine.children import Child, Failed
from gateway.cli.bench.machine.files import Files
from gateway.cli.bench.machine.plan import OURS, THEIRS, Budget, Step, steps
from gateway.cli.bench.machine.scenarios import Known, Skipped, answers, first_tokens, paced, start, work
from gateway.cli.bench.machine.servers import Agentmem, MlxLm, Server, environment
from gateway.cli.bench.machine.subject import Subject
from gateway.cli.live_line import INTERVAL, LiveLine

Scenario = Callable[[Server, Known, float, dict[str, Any]], Awaitable[None]]

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "start": start, "first tokens": first_tokens, "answers": answers, "work": work, "paced": paced,
}  # fmt: skip
_START_SECONDS, _LEAST_SECONDS, _SHARES = 900.0, 60.0, 4.0
"""Limits of a part: of a start, and of others the larger of seconds and shares of the time."""

_DOCTOR_PATIENCE: Final = 5.0
_MOST_LINES: Final = 50
_WARNING: Final = re.compile(r"\b(?:WARNING|ERROR|CRITICAL|Traceback)\b")


class Course:
    """One run, for one event loop. `end` may be called at any time, and leaves no process."""

    def __init__(self, subject: Subject, folder: Path, seconds: float, line: LiveLine, known: Known) -> None:
        self._folder, self._seconds, self._line, self._known = folder, seconds, line, known
        self.ours, self.theirs = Agentmem(folder, subject), MlxLm(folder, subject)
        self._servers: dict[str, Server] = {OURS: self.ours, THEIRS: self.theirs}
        self._children: list[Child] = []
        self._steps, self._at, self._doing = steps(), 0, ""

    async def run(self, found: dict[str, Any], files: Files) -> None:
        """Fill `found`, and write it after each part."""
        budget, down = Budget(self._seconds), set[str]()
        showing = asyncio.create_task(self._show(budget))
        try:
            for number, step in enumerate(self._steps):
                rest = self._steps[number + 1 :]
                share = budget.share(step.weight, sum(each.weight for each in rest))
                record = {"part": step.part, "server": step.server, "round": step.round}
                found["parts"].append(record)
                self._doing, self._at = "", number
                if step.server in down and step.part != "start":
                    record["skipped"] = f"{step.server} was not started"
                else:
                    down.discard(step.server)
                    files.write({**found, "running": record})
                    await self._take(step, share, record, found)
                    if step.part == "start" and ("error" in record or "skipped" in record):
                        down.add(step.server)
                self._line.say(f"{number + 1:2} of {len(self._steps)}  {_line(record)}")
                if step.server and (not rest or (rest[0].server, rest[0].round) != (step.server, step.round)):
                    await self._servers[step.server].stop()
                files.write(found)
        finally:
            showing.cancel()
            found["warnings"] = self._warnings()
            found["seconds"] = self._seconds - (budget.ends - time.monotonic())

    def end(self) -> None:
        for server in self._servers.values():
            server.end()
        for child in self._children:
            child.end()

    async def _take(self, step: Step, share: float, record: dict[str, Any], found: dict[str, Any]) -> None:
        """Fill the record: what was found before an error stays beside it."""
        began, record["found"] = time.monotonic(), dict[str, Any]()
        most = max(_START_SECONDS if step.part in ("start", "model") else _LEAST_SECONDS, _SHARES * share)
        try:
            async with asyncio.timeout(most):
                await self._measure(step, share, found, record["found"])
        except asyncio.CancelledError:
            record["error"] = "stopped by the user"
            raise
        except Skipped as why:
            record["skipped"] = str(why)
        except TimeoutError:
            record["error"] = f"not done after {most:.0f} s, where its share of the time was {share:.0f} s"
        except Failed as error:
            record["error"] = str(error)
        except Exception as error:  # noqa: BLE001 - a mistake in one part must not lose the others
            record["error"] = _described(error)
        finally:
            if "error" in record and self._doing:
                record["during"] = self._doing
            if ("error" in record or "skipped" in record) and not record["found"]:
                del record["found"]
            record["seconds"] = time.monotonic() - began
            record["memory"] = facts.memory()

    async def _measure(self, step: Step, share: float, found: dict[str, Any], filled: dict[str, Any]) -> None:
        if step.part == "doctor":
            filled |= await self._doctor()
            return
        if step.part == "model":
            settled = await self.ours.settle(self._known.tell, max(share, self._seconds / 2))
            found["model"] |= (described := self.ours.described())
            self._known.context = described["context_length"]
            self.theirs.cache_bytes = described["memory"]["pool_bytes"]
            filled |= settled
            return
        server = self._servers[step.server]
        if (
            step.part == "start"
            and server is self.theirs
            and step.round == 1
            and found["model"].get("dtype") == "float32"
        ):
            self._known.tell("a copy of the weights in float32, for MLX on a CPU")
            await self.theirs.copy_in_float32()
            filled |= {"weights": "a copy in float32, since MLX computes 16 bits slowly on a CPU"}
        await SCENARIOS[step.part](server, self._known, share, filled)

    async def _doctor(self) -> dict[str, Any]:
        words = ("gateway.cli.main", "doctor", "--json", *self.ours.flags)
        child = Child(words, _DOCTOR_PATIENCE, self._folder / "doctor.log", environment())
        self._children.append(child)
        try:
            await asyncio.to_thread(child.wait)
        finally:
            await asyncio.to_thread(child.end)
        said = child.log.read_text(encoding="utf-8", errors="replace")
        begin = said.find("{")
        if begin < 0:
            raise Failed(f"`agentmem doctor` wrote no report, but:\n{child.tail()}")
        return {"findings": json.JSONDecoder().raw_decode(said, begin)[0]["findings"]}

    async def _show(self, budget: Budget) -> None:
        while True:
            step = self._steps[self._at]
            doing = ": ".join(filter(None, (step.server, step.part, self._doing)))
            left = max(1, round(budget.left / 60))
            self._line.show(f"part {self._at + 1} of {len(self._steps)}, {doing}; about {left} min left")
            await asyncio.sleep(INTERVAL)

    def tell(self, doing: str) -> None:
        self._doing = doing

    def _warnings(self) -> dict[str, list[str]]:
        logs = {name: each.log for name, each in self._servers.items() if each.log.exists()}
        lines = {name: log.read_text(encoding="utf-8", errors="replace").splitlines() for name, log in logs.items()}
        return {name: [each for each in said if _WARNING.search(each)][-_MOST_LINES:] for name, said in lines.items()}


def _line(record: Mapping[str, Any]) -> str:
    about = ", ".join(filter(None, (record["server"], record["part"])))
    for name in ("error", "skipped"):
        if name in record:
            return f"{about}: {name}: {record[name].splitlines()[0]}"
    return f"{about}: {record['seconds']:.0f} s"


def _described(error: Exception) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    message = error.message if isinstance(error, AgentmemError) else str(error)
    return f"{type(error).__name__}: {message} ({Path(at.filename).name}:{at.lineno})"
