"""`chordage migrate`: bring the database to the schema of this version."""

from __future__ import annotations

from contextlib import closing

import click

from chordage.workers.cli.context import check_database, command_settings
from chordage.workers.cli.output import json_option, print_json, say


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if the schema is not that of this version.")
@json_option
def migrate(check: bool, as_json: bool) -> None:
    """Bring the database to the schema of this version. Safe at any time, and in several processes at once."""
    from chordage.orchestrator.store import schema_version
    from chordage.orchestrator.store.database import Store

    settings = command_settings()
    with closing(Store(settings.database, pool_size=1)) as store:
        if check:
            check_database(settings, store)
        before, after = (schema_version.newest(),) * 2 if check else schema_version.upgrade(store)
    if as_json:
        print_json({"before": before, "after": after})
    elif before == after:
        say(f"the database is at schema {after}, as it should be")
    else:
        say(f"the database went from schema {before or 'none'} to {after}")
