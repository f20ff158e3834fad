"""The figures in README's table are those of the committed results."""

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import Table
from tests.benchmarks.test_committed import FOUND, cells

README = (Path(__file__).parents[2] / "README.md").read_text()


def tables(name: str) -> Sequence[Table]:
    [result] = (each for each in FOUND if each.name == name)
    return result.tables()


def median(cell: str) -> str:
    """A figure without the smallest and the largest sample."""
    return cell.partition(" (")[0]


def first_token(name: str, tokens: str) -> str:
    cold, warm, _, hot, *_, ratio = cells(name)[tokens]
    return f"cold {median(cold)}, warm {median(warm)}, hot {median(hot)}: {ratio}"


def decode(name: str) -> str:
    (table,) = (table for table in tables(name) if table.title.endswith("context of 8192 tokens"))
    return median(next(row[2] for row in table.rows if row[0] == "8 warm"))


def perplexity(bits: str) -> str:
    return median(cells("quality-beside-llama-cpp-cpu")[bits][2])


def right_answers(bits: str) -> str:
    by_title = {table.title: table for table in tables("quality-gpu")}
    recall = next(row for row in by_title["Recall in long chats"].rows if row[0] == bits)
    return recall[1].partition(" of ")[0]


def test_the_measured_table() -> None:
    section = README.partition("## Measured")[2].partition("\n## ")[0]
    found = dict(re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE))
    assert found.pop("what") == "measured"
    capacity, restart = cells("capacity-demo-cpu"), cells("restart-demo-cpu")["all 5 agents have answered"]
    llama = cells("memory-cpu")["llama-3.1-8b, bfloat16 scales"]
    assert list(found.values()) == [
        first_token("ttft-demo-cpu", "4,000"),
        first_token("ttft-demo-cpu", "32,000"),
        first_token("ttft-llama-3.1-8b-gpu", "32,000"),
        f"{capacity['agentmem'][7]}; with nothing kept {capacity['nothing kept, extrapolated'][7]} (extrapolated)",
        f"{median(restart[0])}; computed again {median(restart[1])}",
        f"CPU {decode('throughput-demo-cpu')}, GPU {decode('throughput-llama-3.1-8b-gpu')}",
        "; plain 4 bits ".join(map(right_answers, ("4", "plain 4"))),
        f"{llama[5]}; in fp16 {llama[1]}",
        f"{perplexity('4')}, {perplexity('5/4')}, {perplexity('6')}; llama.cpp's q4_0 {perplexity('llama.cpp, q4_0')}, "
        f"mlx-lm's 4 bits {perplexity('mlx-lm, 4 bits')}",
    ]
