"""Writes RESULTS.md, and the tables that README and docs quote, from what the other benchmarks wrote.

    agentmem bench report

Measures nothing. A quoted table stands between `<!-- results NAME TITLE -->` and `<!-- end -->`.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import options, results
from benchmarks.report.document import Result, document, read

HERE = Path(__file__).parents[1]
QUOTING = (HERE.parent / "README.md", HERE.parent / "docs" / "results" / "index.md")
"""The files that quote tables."""
_QUOTED = re.compile(r"(<!-- results (?P<name>\S+) (?P<title>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def quoting(page: str, found: Sequence[Result]) -> str:
    """Return a page with its quoted tables made anew. Raises KeyError."""
    tables = {(result.name, table.title): table for result in found for table in result.tables()}

    def quoted(match: re.Match[str]) -> str:
        table = tables[match["name"], match["title"]]
        return f"{match[1]}\n{table.markdown().partition(chr(10) * 2)[2]}\n\n{match[4]}"

    return _QUOTED.sub(quoted, page)


def main() -> None:
    options.parser(__doc__).parse_args()
    found = read(results.RESULTS)
    try:
        pages = {path: quoting(path.read_text(), found) for path in QUOTING}
    except KeyError as error:
        name, title = error.args[0]
        sys.exit(f"a page quotes the table {title!r} of {name}, which has none of this title: nothing is written")
    (HERE / "RESULTS.md").write_text(document(found))
    for path, page in pages.items():
        path.write_text(page)
    print(f"written: {HERE / 'RESULTS.md'}, and the tables of {len(pages)} pages")


if __name__ == "__main__":
    main()
