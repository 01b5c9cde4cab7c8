"""The texts of `--help` that people act on: exit codes in lines of their own, defaults, and short ids."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from chordage.workers.cli import main

EXIT_CODES = {
    "submit": ["0", "1", "2", "3", "4", "130"],
    "approve": ["0", "130", "1", "2"],
    "deny": ["0", "130", "1", "2"],
    "decide": ["0", "130", "1", "2"],
}
TEXTS = [
    ("submit", "Priority group; not above that of the origin (chat, task, chore, will)."),
    ("submit", "Where the message comes from. [default: invoke]"),
    ("submit", "How the run proceeds: direct, "),
    ("submit", "A repeat with this key returns the first turn."),
    ("approve", "The answer. [default: true]"),
    ("approve", "Without CHORDAGE_REDIS_URL and without a running fleet, the run resumes in this process"),
    ("approve", "Any other code: nothing was stored."),
    ("show", "Ids may be shortened if they stay unique, except that of a CALL."),
    ("start", "`chordage status` shows its state"),
    ("run", "Run only these loops; repeatable."),
]


def help_of(*command: str) -> str:
    return CliRunner().invoke(main, [*command, "--help"]).stdout


@pytest.mark.parametrize(("command", "codes"), EXIT_CODES.items(), ids=EXIT_CODES)
def test_each_exit_code_has_a_line_of_at_most_80_characters(command, codes):
    lines = help_of(command).partition("  Exit codes:\n")[2].splitlines()

    assert [line.split()[0] for line in lines if line.split()[0].isdigit()] == codes
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(("command", "text"), TEXTS)
def test_help_says(command, text):
    assert text in " ".join(help_of(command).split())


@pytest.mark.parametrize(
    ("command", "summary"),
    [
        ("start", "Start what `run` runs, in the background."),
        ("run", "Run HTTP, polling, schedules and workers in the foreground."),
        ("status", "Show this folder's fleet and its health."),
    ],
)
def test_list_of_commands_says(command, summary):
    lines = [" ".join(line.split()) for line in help_of().splitlines()]

    assert f"{command} {summary}" in lines
