"""`chordage migrate`: bring the database to the schema of this version."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import version
from typing import TYPE_CHECKING

import click

from chordage.workers.cli.context import check_database, command_settings
from chordage.workers.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from chordage.orchestrator.store.database import Store


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if this version cannot work with the schema.")
@click.option(
    "--contract",
    is_flag=True,
    help="Remove what only older versions of chordage need, when none of them is at work any more; they are refused "
    "from then on.",
)
@json_option
def migrate(check: bool, contract: bool, as_json: bool) -> None:
    """Bring the database to the schema of this version. Older versions work on beside it, until `--contract`.

    Safe at any time, and in several processes at once.
    """
    from chordage.orchestrator.store import schema_version
    from chordage.orchestrator.store.database import Store

    if check and contract:
        raise click.UsageError("--check changes nothing, and --contract does: give one of them")
    settings = command_settings()
    with closing(Store(settings.database, pool_size=2)) as store:
        if contract:
            before, after = schema_version.contract(store, version("chordage"))
            _print_contracted(before, after, as_json=as_json)
        elif check:
            check_database(settings, store)
            _print_checked(store, as_json=as_json)
        else:
            _print_upgraded(*schema_version.upgrade(store), as_json=as_json)


def _print_upgraded(before: str | None, after: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"before": before, "after": after})
    elif before == after:
        say(f"the database is at schema {after}, as it should be")
    else:
        say(f"the database went from schema {before or 'none'} to {after}")


def _print_checked(store: Store, *, as_json: bool) -> None:
    from chordage.orchestrator.store import schema_version

    stored = schema_version.stored_version(store)
    with store.read() as tx:
        others = schema_version.other_releases(tx, version("chordage"))
    if as_json:
        print_json({"before": stored.version, "after": stored.version, "oldest": stored.oldest, "others": others})
    elif stored.oldest == stored.version:
        say(f"the database is at schema {stored.version}, as it should be")
    else:
        say(f"the database is at schema {schema_version.described(stored, others)}")


def _print_contracted(before: str, after: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"oldest_before": before, "oldest": after})
    elif before == after:
        say(f"the database takes code of schema {after} and newer already")
    else:
        say(f"the database took code of schema {before} and newer, and takes that of {after} and newer now")
