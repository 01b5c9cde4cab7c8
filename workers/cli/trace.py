"""`chordage trace`: the path of one message, from its arrival to its disposition."""

from __future__ import annotations

import click

from chordage.workers.cli.output import json_option, print_json, say_lines


@click.command()
@click.argument("given", metavar="TURN|RUN|THREAD|KEY")
@click.option("--agent", help="KEY is a dedupe key of this agent.")
@click.option("--source", help="KEY is a dedupe key of this source: cli, http, celery, ...")
@json_option
def trace(given: str, agent: str | None, source: str | None, as_json: bool) -> None:
    """Show what became of one message, and how: its line, its run with every step, its end, and what was sent for it.

    The message is named by its turn or its run (the first letters do), by its dedupe key, or by a thread, for
    the latest turn there.
    """
    from chordage.orchestrator import views
    from chordage.workers.cli import showing_trace
    from chordage.workers.cli.opened import opened, settings_of_command

    with opened(settings_of_command()) as store:
        found = views.trace(store, given, agent=agent, source=source)
    if as_json:
        print_json(found)
    else:
        say_lines(showing_trace.lines_of(found))
