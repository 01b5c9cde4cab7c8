"""What a person is told when a command cannot do its work: one line, and an exit code that says whose fault it is."""

from __future__ import annotations

import click

from chordage.config.settings import SettingsFault
from chordage.orchestrator.core.errors import InvalidDecision, InvalidMessage, UserError
from chordage.workers.cli.output import say

BAD_INPUT = 2  # what click itself uses for wrong options
FAILED = 1


def tell(error: Exception) -> None:
    """Ends the command with a message if the error is one for people. A bug of ours keeps its traceback."""
    if isinstance(error, UserError | SettingsFault):
        say(f"chordage: {error}", err=True)
        raise click.exceptions.Exit(exit_code(error)) from error


def exit_code(error: Exception) -> int:
    return BAD_INPUT if isinstance(error, InvalidMessage | InvalidDecision | SettingsFault) else FAILED
