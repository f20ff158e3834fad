"""Questions whose answers repeat their context, and prose."""

from collections.abc import Sequence
from typing import Final, NamedTuple

REPEATED, PROSE, BOTH = "quotations and edits", "prose", "half of each"
_SAMPLED = 0.8

_CODE = """\
def read_scores(path):
    scores = {}
    with open(path) as file:
        for line in file:
            name, value = line.strip().split(",")
            scores[name] = float(value)
    return scores


def average(scores):
    if not scores:
        return 0.0
    return sum(scores.values()) / len(scores)


def best(scores, count=3):
    ordered = sorted(scores.items(), key=lambda item: item[1], reverse=True)
    return ordered[:count]
"""
_JSON = """\
{
  "server": {
    "host": "127.0.0.1",
    "port": 8080,
    "workers": 4,
    "timeout_seconds": 30
  },
  "database": {
    "path": "/var/lib/app/data.db",
    "pool_size": 8,
    "read_only": false
  },
  "logging": {
    "level": "info",
    "file": "/var/log/app.log",
    "rotate_daily": true
  },
  "features": ["search", "export", "history"]
}
"""
_TEXT = (
    "The harbour was quiet in the early morning. Two fishing boats lay at the pier, and a man in a blue coat was "
    "mending a net. He had come to the village as a boy, when the old lighthouse still burned oil, and he had never "
    "left. Every day he counted the ships that passed the point and wrote their names in a small book. On Sundays he "
    "read the names aloud to his daughter, who knew most of them by heart. She said that the book would be worth "
    "something one day, and he laughed and said that it was worth something already."
)


class Request(NamedTuple):
    name: str
    kind: str
    text: str = ""
    temperature: float = 0.0


_STORY = "Write a long story about a lighthouse keeper and a storm."
_EXPLANATION = "Explain in detail how rain forms and why some clouds give none."
_LETTER = "Write a letter to a friend about a journey through the mountains."
REQUESTS: Final = (
    Request("code, quoted", REPEATED, f"Repeat this code exactly:\n\n```python\n{_CODE}```"),
    Request(
        "code, a name changed",
        REPEATED,
        f"Rename the function `average` to `mean` and print the whole file again.\n\n```python\n{_CODE}```",
    ),
    Request(
        "JSON, a number changed",
        REPEATED,
        f"Change the port to 9090 and print the whole JSON again.\n\n```json\n{_JSON}```",
    ),
    Request(
        "text, a word changed",
        REPEATED,
        f"Repeat the following text word for word, but with a red coat instead of a blue coat:\n\n{_TEXT}",
    ),
    Request("a story", PROSE, _STORY),
    Request("an explanation", PROSE, _EXPLANATION),
    Request("a story, sampled", PROSE, _STORY, _SAMPLED),
    Request("a letter, sampled", PROSE, _LETTER, _SAMPLED),
)


def together(requests: Sequence[Request], agents: int) -> dict[str, tuple[str, list[Request]]]:
    if agents == 1:
        return {request.name: (request.kind, [request]) for request in requests}
    of = {kind: [request for request in requests if request.kind == kind] for kind in (REPEATED, PROSE)}
    found = {kind: [each[at % len(each)] for at in range(agents)] for kind, each in of.items()}
    found[BOTH] = [found[(REPEATED, PROSE)[at % 2]][at] for at in range(agents)]
    return {f"{agents} agents, {kind}": (kind, each) for kind, each in found.items()}
