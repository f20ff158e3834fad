"""The page of model types: what the census found, between two marks in a page that people wrote the rest of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.tables import Table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model-types.md"
BEGIN, END = "<!-- census: begin -->", "<!-- census: end -->"
AGAIN = "run `python -m tests.model_types`"

UNKNOWN = "the census has no config for it: add one to tests/model_types/configs.py"


@dataclass(frozen=True)
class Line:
    """A line about a type. `kinds` of its layers is "" where mlx-lm cannot build it here.

    `refused` is why it is refused before its weights are read, `faults` what must not be: a wrong answer, a crash.
    Bytes are those of the small model, `differences` of log-probabilities by the way they were come to.
    """

    name: str
    kinds: str = ""
    refused: str = ""
    faults: Sequence[str] = ()
    token_bytes: int = 0
    checkpoint_bytes: int = 0
    resumes: str = ""
    batched: bool = True
    differences: Mapping[str, float] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        return not self.refused and not self.faults


def tables(lines: Iterable[Line], aliases: Mapping[str, str]) -> list[Table]:
    """Types that work, those that are refused, and those that must not be as they are."""
    lines = sorted(lines, key=lambda line: line.name.lower())

    def named(line: Line) -> str:
        also = [f"`{alias}`" for alias, name in aliases.items() if name == line.name]
        return ", ".join([f"`{line.name}`", *also])

    works = [
        (
            named(line),
            line.kinds,
            f"{line.token_bytes:,}",
            f"{line.checkpoint_bytes:,}" if line.checkpoint_bytes else "–",
            line.resumes,
            "yes" if line.batched else "alone",
        )
        for line in lines
        if line.works
    ]
    refused = [(named(line), line.kinds or "–", line.refused) for line in lines if line.refused]
    wrong = [(named(line), line.kinds or "–", "; ".join(line.faults)) for line in lines if line.faults]
    columns = "type", "layers", "bytes a token", "bytes a checkpoint", "partial match goes on", "rows together"
    found = [
        Table(f"{len(works)} types work", columns, works),
        Table(f"{len(refused)} types are refused", ("type", "layers", "why"), refused),
        Table(f"{len(wrong)} types are not as they should be", ("type", "layers", "what"), wrong),
    ]
    return [table for table in found if table.rows]


def section(lines: Sequence[Line], aliases: Mapping[str, str], version: str) -> str:
    """Return the text between the marks. Most cells are words, so none is aligned to the right."""
    head = f"mlx-lm {version} has {len(lines)} model types."
    return "\n\n".join([head, *(table.markdown().replace("---:", "---") for table in tables(lines, aliases))])


def between(page: str) -> str:
    """Return the text between the marks. Raises ValueError for a page without them."""
    _, begin, rest = page.partition(BEGIN)
    found, end, _ = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return found.strip()


def replaced(page: str, section: str) -> str:
    """The page with another text between the marks. Raises ValueError for a page without them."""
    between(page)
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{rest.partition(END)[2]}"
