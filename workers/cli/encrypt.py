"""`chordage encrypt`: encrypt with the current key what is stored with another one, or without."""

from __future__ import annotations

from collections import Counter

import click

from chordage.workers.cli.context import command_settings, open_store
from chordage.workers.cli.output import json_option, print_json, print_table, say


@click.command()
@click.option("--dry-run", is_flag=True, help="Count by key, and change nothing.")
@click.option("--retire", is_flag=True, help="When nothing is left of other keys, no process needs them any more.")
@json_option
def encrypt(dry_run: bool, retire: bool, as_json: bool) -> None:
    """Encrypt with the key that CHORDAGE_CIPHER uses now what is stored with an older key, or not encrypted at all.

    Safe while the fleet works, and at any time again: a pass that was cut short is completed by the next. Give the new
    key to every process first.
    """
    from chordage.orchestrator.store import encryption

    found, changed, missed = Counter[str](), 0, 0
    with open_store(command_settings()) as store:
        for table in encryption.rewrite(store, dry_run=dry_run):
            found, changed, missed = found + table.found, changed + table.changed, missed + table.missed
            if table.changed:
                say(f"{table.table}: {table.changed} values encrypted", err=True)
        assert store.cipher is not None
        current = store.cipher.key_id
        # A working fleet always writes some that are not encrypted: notes of triggers, sentences of our own.
        others = found.keys() - {current, encryption.PLAIN}
        retired = encryption.retire(store) if retire and not (others or dry_run) else []
    if as_json:
        print_json({"key": current, "found": dict(found), "changed": changed, "missed": missed, "retired": retired})
    else:
        for key_id in retired:
            say(f"key {key_id} is needed no more")
        print_table(("key", "values found"), sorted(found.items()))
        say(f"{changed} values were encrypted with key {current}")
    if missed:
        say(f"{missed} values were written meanwhile: run this once more", err=True)
    if retire and (others or dry_run):
        why = f"this pass found values of {', '.join(sorted(others))}" if others else "this was a dry run"
        say(f"other keys are not retired, because {why}: run this once more", err=True)
        raise click.exceptions.Exit(1)
