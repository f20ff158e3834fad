from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from gateway.cli.top.columns import Column, Grid

COLUMNS = (Column("name", right=False), Column("number"), Column("note", 1, right=False), Column("size", 2))
ROWS = [
    [Text("a"), Text("1"), Text("short"), Text("9.4 MB")],
    [Text("a-long-name-that-goes-on"), Text("1,234"), Text("longer note"), Text("–")],
]
GRID = Grid(COLUMNS, ROWS)


def told(width: int) -> list[str]:
    return [line.plain for line in GRID.lines(width)]


def test_columns_are_aligned() -> None:
    assert told(80) == [
        "name                      number  note           size",
        "a                              1  short        9.4 MB",
        "a-long-name-that-goes-on   1,234  longer note       –",
    ]


def test_names_are_cut_before_a_column_goes_and_then_the_one_of_the_highest_rank() -> None:
    assert told(47)[2] == "a-long-name-that-…   1,234  longer note       –"
    assert told(45)[2] == "a-long-name-tha…   1,234  longer note       –"
    assert told(44)[2] == "a-long-name-that-goes-…   1,234  longer note"
    assert told(35)[2] == "a-long-name-that-goes-on   1,234"
    assert told(20)[2] == "a-long-name…   1,234"
    assert told(10)[2] == "a-l…   1,…"


cells = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30).map(Text)


@given(
    st.lists(st.tuples(st.text("abc", max_size=12), st.integers(0, 3), st.booleans()), min_size=1, max_size=6),
    st.data(),
    st.integers(1, 100),
)
def test_every_row_is_one_line_no_wider_than_there_is_room(
    titles: list[tuple[str, int, bool]], data: st.DataObject, width: int
) -> None:
    columns = [Column(*column) for column in titles]
    row = st.lists(cells, min_size=len(columns), max_size=len(columns))
    rows = data.draw(st.lists(row, max_size=4))
    lines = Grid(columns, rows).lines(width)
    assert len(lines) == 1 + len(rows)
    assert all(line.cell_len <= width and "\n" not in line.plain for line in lines)
