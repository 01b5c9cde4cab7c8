"""Every numbered behaviour of the studies behind planning and stepping has a test that names it, or a reason why not.

Numbers stand in names, ids and docstrings of tests; reasons in the tables and lists of the two ADRs.
"""

from __future__ import annotations

import re

import pytest

from support.repository import ROOT

ADRS = {"A": "0023-plans-are-rows.md", "B": "0021-stepping-after-the-tool-runner.md"}
LAST = {"A": 62, "B": 93}
WHERE = (
    "tests/flow",
    "tests/live",
    "tests/unit/core/planning",
    "tests/unit/core/test_rounds.py",
    "tests/unit/tools/test_executing.py",
    "tests/unit/room/test_room_tools.py",
)
NAMED = re.compile(r'def test_\w+|"""[^"]*"""|ids?=[^\n]*|^ *(?:\(|pytest\.param\()"[^"]*"', re.MULTILINE)


def numbers(letter: str, text: str) -> set[int]:
    """`B8 to B20` counts as all of them."""
    number = rf"(?<![A-Za-z0-9]){letter}(\d{{1,2}})(?: to {letter}(\d{{1,2}}))?(?![A-Za-z0-9])"
    found = re.finditer(number, text.replace("_", " "))
    return {n for one in found for n in range(int(one[1]), int(one[2] or one[1]) + 1)}


def named_by_tests(letter: str) -> set[int]:
    files = [
        file for where in WHERE for file in ([ROOT / where] if where.endswith(".py") else (ROOT / where).rglob("*.py"))
    ]
    return {n for file in files for name in NAMED.findall(file.read_text()) for n in numbers(letter, name)}


def explained(letter: str) -> set[int]:
    """Without the sentence that says how many there are."""
    told = (ROOT / "docs" / "adr" / ADRS[letter]).read_text()
    return numbers(letter, told.replace(f"{letter}1 to {letter}{LAST[letter]}", ""))


@pytest.mark.parametrize("letter", sorted(LAST))
def test_each_has_a_test_that_names_it_or_a_line_in_the_record_of_differences(letter):
    assert set(range(1, LAST[letter] + 1)) - named_by_tests(letter) - explained(letter) == set()


# Of messages, rooms, scheduling, delivery, turns and controls.
ROOM = {
    1, 2, 4, 6, 7, 9, 11, 12, 14, 16, 17, 19, 21, 22, 24, 26, 27, 29, 31, 32, 34, 36, 37, 39, 41, 42, 44, 46, 47, 49,
    51, 52, 54, 56, 57, 59, 61, 62, 64, 66, 67, 69, 71, 72, 74, 76, 77, 79, 81, 82, 84, 86, 87, 89, 91, 92, 94, 96, 97,
    99, 101, 102, 104, 106, 107, 109, 111, 112,
}  # fmt: skip
OF_LIFE = ("lifecycle", "phases", "rounds")  # their numbers are of another list


def test_each_of_the_room_has_a_test_that_names_it_or_a_line_in_the_record_of_differences():
    files = [*(ROOT / "tests").rglob("test_*.py")]
    tests = "\n".join(file.read_text() for file in files if not file.stem.endswith(OF_LIFE))
    record = (ROOT / "docs" / "adr" / "0031-where-the-room-goes-its-own-way.md").read_text()
    named = {int(n) for name in re.findall(r"def test_(\d+(?:_\d+)*)_", tests) for n in name.split("_")}
    explained = {int(n) for row in re.findall(r"^\| ([\d, ]+) \|", record, re.MULTILINE) for n in row.split(",")}

    assert ROOM - named - explained == set()
    assert explained <= ROOM


def test_a_number_is_read_from_names_and_ranges_and_from_nothing_longer():
    assert numbers("B", "def test_B41_B43_x, B8 to B10, AB7, B123") == {8, 9, 10, 41, 43}
