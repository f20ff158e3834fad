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


def row(without: str, with_memory: str) -> str:
    low, high = sorted(float(each.split()[0]) for each in (without, with_memory))
    return f"{without} | {with_memory} | {high / low:.0f}x"


def first_token(name: str, tokens: str) -> str:
    cold, warm, *_ = cells(name)[tokens]
    return row(median(cold), median(warm))


def perplexity(bits: str) -> str:
    return median(cells("quality-beside-llama-cpp-cpu")[bits][2])


def test_the_measured_table() -> None:
    section = README.partition("## Measured")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)
    capacity, restart = cells("capacity-demo-cpu"), cells("restart-demo-cpu")["all 5 agents have answered"]
    llama = cells("memory-cpu")["llama-3.1-8b, bfloat16 scales"]
    assert [figures for _, figures in rows[1:]] == [
        first_token("ttft-demo-cpu", "4,000"),
        first_token("ttft-llama-3.1-8b-gpu", "32,000"),
        row(median(restart[1]), median(restart[0])),
        row(capacity["nothing kept, extrapolated"][7], capacity["agentmem"][7]),
        row(llama[1], llama[5]),
    ]
    assert (
        f"{perplexity('4')} of perplexity, where llama.cpp's q4_0 costs {perplexity('llama.cpp, q4_0')} and mlx-lm's 4 "
        f"bits {perplexity('mlx-lm, 4 bits')}" in section.replace("\n", " ")
    )


def test_others_are_faster_where_it_says_so() -> None:
    by_title = {table.title: {row[0]: row[1:4] for row in table.rows} for table in tables("peers-cpu")}
    ours, _, llama_cpp = (float(median(cell)) for cell in by_title["A chat that grows"]["answer of turn 4, tokens/s"])
    assert f"llama.cpp generates {llama_cpp / ours:.0f} times as fast" in README
    started = by_title["SIGKILL and start in the middle of a chat"]["ready again"]
    ours, *others = (float(median(cell).split()[0]) for cell in started)
    assert ours > max(others)
