"""`chordage bench`, which comes with the repository and is no part of the installed package."""

from __future__ import annotations

import importlib

import click

from chordage.orchestrator.core.errors import ConfigError

COMMAND = "chordage.benchmarks.command"


def _load() -> click.Command:
    try:
        command = importlib.import_module(COMMAND).bench
    except ModuleNotFoundError as error:
        if error.name is None or not COMMAND.startswith(error.name):
            raise
        return _absent
    assert isinstance(command, click.Command)
    return command


@click.command("bench", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def _absent() -> None:
    """Measure what a turn costs. Needs a clone of Chordage's repository."""
    raise ConfigError(
        "the benchmark is not in the installed package: run it in a clone of Chordage's repository, after "
        "`pip install -e '.[test]'` there"
    )


bench = _load()
__all__ = ["bench"]
