"""What is drawn for a run of the tests, so that it takes minutes. TEST_DRAW is the number that decides, the date if it
is not given, and with TEST_DRAW=all nothing is left out.

Of what has many cases of one kind (crash points, tests at the lowest versions) each run takes a third, each day another
one. Hypothesis and Schemathesis carry out a third of the examples that a test names.
"""

from __future__ import annotations

import os
import zlib
from datetime import UTC, datetime

DRAW = "TEST_DRAW"
ALL = "all"
ONE_OF = 3


def draw() -> str:
    return os.environ.setdefault(DRAW, str(datetime.now(UTC).toordinal()))  # for the workers of xdist too


def is_drawn(name: str, one_of: int) -> bool:
    return draw() == ALL or zlib.crc32(f"{draw()} {name}".encode()) % one_of == 0


def examples(number: int) -> int:
    """How many of them a run carries out."""
    return number if draw() == ALL else -(-number // ONE_OF)
