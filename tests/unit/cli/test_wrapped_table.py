"""Tables on a narrow terminal: nothing is left out, and no id is cut."""

from __future__ import annotations

from chordage.workers.cli import wrapped_table

ID = "01a1f08c-9717-7f28-94eb-aeded84e523d"
TABLE = [
    ("turn", "status", "agent", "came", "thread", "text"),
    (ID, "answered", "guide", "12 s ago", "customer-4", "Where is order 17, " * 9),
    (ID, "queued", "guide", "now", "日本", "Hello"),
]
PROSE = {5}


def test_a_row_that_does_not_fit_takes_several_lines():
    assert not wrapped_table.fits(TABLE, 80)
    heading, first, second = wrapped_table.rows_of(TABLE, 80, PROSE)
    assert [line.split() for line in heading] == [["turn", "status", "agent", "came", "thread"], ["text"]]
    assert first[0] == f"{ID}  answered  guide  12 s ago  customer-4"
    assert second == [f"{ID}  queued    guide  now       日本", "  Hello"]


def test_only_prose_is_cut_and_takes_the_whole_line_first():
    _, (_, text), _ = wrapped_table.rows_of(TABLE, 80, PROSE)
    assert len(text) == 80
    assert text.endswith("…")


def test_an_id_is_never_cut_however_long_it_is():
    thread = f"telegram:{ID}:{ID}"
    _, lines = wrapped_table.rows_of([("turn", "thread", "text"), (ID, thread, "Hello " * 20)], 60, {2})
    assert lines[0] == ID
    assert lines[1].strip() == thread
    assert lines[2].endswith("…")


def test_no_line_is_wider_than_the_terminal():
    for width in (40, 60, 80, 100):
        lines = [line for row in wrapped_table.rows_of(TABLE, width, PROSE) for line in row]
        assert max(map(wrapped_table.cell_len, lines)) <= width
        assert lines[len(lines) // 3].startswith(ID)


def test_table_reports_what_fits():
    assert wrapped_table.fits([("a", "b"), ("1", "2")], 4)
    assert not wrapped_table.fits([("a", "b"), ("1", "2")], 3)
