"""`chordage compact`: the older part of a thread gives way to a summary."""

from __future__ import annotations

import click

from chordage.workers.cli.output import json_option, print_json, say


@click.command()
@click.argument("thread_id", metavar="THREAD")
@json_option
def compact(thread_id: str, as_json: bool) -> None:
    """Have the older part of a thread summed up before its next model call: that of its open run, or of its next turn.

    What was said stays on record, and `chordage show` shows all of it; models read the summary instead.
    """
    from chordage.orchestrator import stages
    from chordage.workers.bootstrap import runtime_from
    from chordage.workers.cli.opened import check_database, settings_of_command

    settings = settings_of_command()
    rt = runtime_from(settings, with_redis=False)
    try:
        check_database(settings, rt.store)
        stages.ask_to_compact(rt, thread_id)
    finally:
        rt.store.close()
    if as_json:
        print_json({"thread_id": thread_id, "asked": True})
    else:
        say(f"thread {thread_id} will be summed up before its next model call")
