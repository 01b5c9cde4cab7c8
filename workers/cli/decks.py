"""A table on a terminal that is too narrow for it: each row takes several lines, and no column is left out.

An id that is cut cannot be copied, and a column that is dropped cannot be missed. Only prose is cut.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from rich.cells import cell_len, set_cell_size

LEAST = 36  # characters that are left of a cell of prose
GAP = 2  # blanks between two columns, and in front of every line of a row but the first

Lines = list[str]


def fits(table: Sequence[Sequence[str]], width: int) -> bool:
    widths = _widths(table)
    return sum(widths) + GAP * (len(widths) - 1) <= width


def rows_of(table: Sequence[Sequence[str]], width: int, prose: Container[int]) -> Iterator[Lines]:
    """For each row, its heading among them, the lines it takes. `prose`: the columns that may be cut."""
    decks = list(_decks(_widths(table), width, prose))
    for row in table:
        yield [_line(row, deck, number) for number, deck in enumerate(decks)]


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*table, strict=True)]


def _decks(widths: Sequence[int], width: int, prose: Container[int]) -> Iterator[dict[int, int]]:
    """Which columns stand on one line, each with its width there."""
    deck: dict[int, int] = {}
    left = width
    for column, wanted in enumerate(widths):
        least = min(wanted, LEAST) if column in prose else wanted
        if deck and least + GAP > left:
            yield _widened(deck, widths, left)
            deck, left = {}, width - GAP  # the indent
        left -= least + (GAP if deck else 0)
        deck[column] = least
    yield _widened(deck, widths, left)


def _widened(deck: dict[int, int], widths: Sequence[int], left: int) -> dict[int, int]:
    """What is left of a line goes to the columns that would be cut, the last one first."""
    for column in sorted(deck, reverse=True):
        more = max(0, min(widths[column] - deck[column], left))
        deck[column] += more
        left -= more
    return deck


def _line(row: Sequence[str], deck: dict[int, int], number: int) -> str:
    cells = [_cell(row[column], size) for column, size in deck.items()]
    return (" " * GAP * bool(number) + (" " * GAP).join(cells)).rstrip()


def _cell(text: str, size: int) -> str:
    return set_cell_size(text, size) if cell_len(text) <= size else f"{set_cell_size(text, size - 1)}…"
