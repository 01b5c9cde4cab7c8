"""A table on a terminal that is too narrow for it: each row takes several lines, and no column is left out.

An id that is cut cannot be copied, and a column that is dropped is not missed. Only prose is cut.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from rich.cells import cell_len, set_cell_size

MIN_PROSE = 36  # characters that are left of a cell of prose
GAP = 2  # blanks between two columns, and the indent of each line of a row but its first


def fits(table: Sequence[Sequence[str]], width: int) -> bool:
    widths = _widths(table)
    return sum(widths) + GAP * (len(widths) - 1) <= width


def rows_of(table: Sequence[Sequence[str]], width: int, prose: Container[int]) -> Iterator[list[str]]:
    """The lines of each row, the heading first. `prose`: the columns that may be cut."""
    layout = list(_layout(_widths(table), width, prose))
    for row in table:
        yield [_line(row, columns, number) for number, columns in enumerate(layout)]


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*table, strict=True)]


def _layout(widths: Sequence[int], width: int, prose: Container[int]) -> Iterator[dict[int, int]]:
    """For each line of a row, its columns with their widths."""
    line: dict[int, int] = {}
    left = width
    for column, wanted in enumerate(widths):
        least = min(wanted, MIN_PROSE) if column in prose else wanted
        if line and least + GAP > left:
            yield _widened(line, widths, left)
            line, left = {}, width - GAP  # the indent
        left -= least + (GAP if line else 0)
        line[column] = least
    yield _widened(line, widths, left)


def _widened(line: dict[int, int], widths: Sequence[int], left: int) -> dict[int, int]:
    """The rest of a line goes to the columns that would be cut, the last one first."""
    for column in sorted(line, reverse=True):
        more = max(0, min(widths[column] - line[column], left))
        line[column] += more
        left -= more
    return line


def _line(row: Sequence[str], columns: dict[int, int], number: int) -> str:
    cells = [_cell(row[column], size) for column, size in columns.items()]
    return (" " * GAP * bool(number) + (" " * GAP).join(cells)).rstrip()


def _cell(text: str, size: int) -> str:
    return set_cell_size(text, size) if cell_len(text) <= size else f"{set_cell_size(text, size - 1)}…"
