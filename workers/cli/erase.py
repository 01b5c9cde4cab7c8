"""`chordage erase`: delete all that is stored of a thread or a sender, in every store, and say what was deleted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.text import mention_of, written_forms
from chordage.workers.cli.context import command_settings, open_runtime, send
from chordage.workers.cli.output import json_option, print_json, print_table, say

if TYPE_CHECKING:
    from chordage.config.settings import Settings
    from chordage.orchestrator.runtime import Runtime
    from chordage.orchestrator.stages import Erased, ErasureSubject

BUS_SECONDS = 10.0  # for the bus to pass the rows that were deleted: what it had read before, it still writes
OUTSIDE = (
    "Not reached: backups and the log of the database, what was sent to models, tools, receivers, channels and "
    "collectors of traces, logs of processes that another program keeps, and messages that no worker has stored yet."
)


@click.group()
def erase() -> None:
    """Delete all that is stored of a thread or a sender, whatever still needs it.

    Open turns are cancelled first. Sub-agents and forks of a thread go with it. The record of who did what keeps that
    something was decided, and not what. A new message begins the thread anew.
    """


@erase.command()
@click.argument("thread_id", metavar="THREAD")
@click.option("--dry-run", is_flag=True, help="Count, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def thread(thread_id: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Erase one thread."""
    from chordage.orchestrator import stages

    settings = command_settings()
    with open_runtime(settings) as rt:
        _erase(settings, rt, stages.thread_to_erase(rt, thread_id), dry_run=dry_run, yes=yes, as_json=as_json)


@erase.command()
@click.argument("name", metavar="SENDER")
@click.option("--shared", is_flag=True, help="Also threads on which others have written.")
@click.option("--dry-run", is_flag=True, help="Count, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def sender(name: str, shared: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Erase the threads of one sender: a key, the user of a key that speaks for users, or an address of a channel."""
    from chordage.orchestrator import stages

    settings = command_settings()
    with open_runtime(settings) as rt:
        subject = stages.sender_to_erase(rt, name, shared=shared)
        _erase(settings, rt, subject, dry_run=dry_run, yes=yes, as_json=as_json)


def _erase(
    settings: Settings, rt: Runtime, subject: ErasureSubject, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    from chordage.orchestrator import stages

    rows = stages.count_erasure(rt, subject)
    if dry_run:
        _report(subject, {"database": rows}, as_json=as_json, deleted=False)
        return
    if not yes:
        what = f"{len(subject.threads)} threads with {rows['turns']} turns"
        click.confirm(f"Delete {what} for ever?", abort=True, err=True)
    while stages.count_journal(rt):  # what is not counted yet would be missing from the metrics
        pass
    erased, intents = stages.erase(rt, subject, by=CLI)
    send(settings, intents)
    stores = {"database": erased.rows, "redis": erase_in_redis(settings, rt, erased, subject.name)}
    names = {*erased.names.threads, *erased.names.runs, *erased.names.turns, subject.name}
    stores["logs"] = Counter({path.name: lines for path, lines in _blank_logs(settings.state_path / "logs", names)})
    _report(subject, stores, as_json=as_json, deleted=True)
    if not erased.is_overwritten:
        say(
            "the log of the database is read at this moment: stop the fleet and erase once more to overwrite it",
            err=True,
        )


def erase_in_redis(settings: Settings, rt: Runtime, erased: Erased, name: str) -> Counter[str]:
    """Without a Redis there is nothing, and without a fleet nothing moves the bus. `name`: as it was given; nothing
    else is known of a call that was killed behind its last thread.
    """
    if settings.redis is None:
        return Counter()
    from chordage.orchestrator import views
    from chordage.orchestrator.gateways.redis_erasure import RedisErasure
    from chordage.workers.bootstrap import redis_from

    give_up = time.monotonic() + BUS_SECONDS
    while views.bus(rt.store, rt.now()).position < erased.names.upto and time.monotonic() < give_up:
        time.sleep(0.1)
    with closing(redis_from(settings)) as client:
        return RedisErasure(client, prefix=settings.prefix).erase(
            {name, *erased.names.threads}, erased.names.runs, erased.names.turns
        )


def _blank_logs(folder: Path, names: Collection[str]) -> Iterator[tuple[Path, int]]:
    """Lines with one of these names are overwritten where they are: the process that writes the file has it open."""
    wanted = [(form.encode(), name) for name in names for form in written_forms(name)]
    for path in sorted(folder.glob("*.log*")):
        blanked = 0
        with path.open("r+b") as file:
            place = 0
            for line in iter(file.readline, b""):
                if _mentions(line, wanted):
                    text = line.rstrip(b"\n")
                    file.seek(place)
                    file.write(b"#" * len(text) + line[len(text) :])
                    blanked += 1
                place += len(line)
                file.seek(place)
        if blanked:
            yield path, blanked


def _mentions(line: bytes, wanted: Collection[tuple[bytes, str]]) -> bool:
    """A pattern of all names would be tried at each letter: a thread may have thousands of turns."""
    found = (name for form, name in wanted if form in line)
    return any(mention_of([name]).search(line.decode(errors="replace")) for name in found)


def _report(subject: ErasureSubject, stores: dict[str, Counter[str]], *, as_json: bool, deleted: bool) -> None:
    if as_json:
        counts = {store: dict(rows) for store, rows in stores.items()}
        print_json({"threads": list(subject.threads), "deleted": deleted, **counts, "not_reached": OUTSIDE})
        return
    verb = "were erased" if deleted else "would be erased"
    say(f"{len(subject.threads)} threads with {stores['database']['turns']} turns {verb}")
    print_table(("store", "what", "number"), [(store, *row) for store, rows in stores.items() for row in rows.items()])
    say(OUTSIDE, err=True)
