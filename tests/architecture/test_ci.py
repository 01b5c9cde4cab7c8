"""CI runs the command of README.md, word for word."""

from __future__ import annotations

import os

from support.repository import ROOT

COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && "
    ".venv/bin/pytest -n 2 --ignore tests/live && .venv/bin/pytest -n 3 --dist loadfile tests/live"
)


def test_ci_ends_with_the_command_of_the_readme():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()

    assert lines[-1] == COMMAND
    assert COMMAND in (ROOT / "README.md").read_text().splitlines()


def test_ci_script_can_be_run():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
