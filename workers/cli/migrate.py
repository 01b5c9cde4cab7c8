"""`chordage migrate`: the database gets the schema of this version."""

from __future__ import annotations

import click

from chordage.workers.cli.output import json_option, print_json, say


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if there is something to do.")
@json_option
def migrate(check: bool, as_json: bool) -> None:
    """Bring the database to the schema of this version. Safe to run at any time, and by several at once."""
    from chordage.orchestrator.store import schema_version
    from chordage.orchestrator.store.database import Store
    from chordage.workers.cli.opened import check_database, settings_of_command

    settings = settings_of_command()
    store = Store(settings.database, pool_size=1)
    try:
        if check:
            check_database(settings, store)
        before, after = (schema_version.newest(),) * 2 if check else schema_version.upgrade(store)
    finally:
        store.close()
    if as_json:
        print_json({"before": before, "after": after})
    elif before == after:
        say(f"the database is at schema {after}, as it should be")
    else:
        say(f"the database went from schema {before or 'none'} to {after}")
