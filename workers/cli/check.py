"""`chordage check`: everything that is wrong with this room, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chordage.workers.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from chordage.workers.room_check import CheckFault, CheckReport

EPILOG = "Exit codes: 0 nothing is wrong; 1 something is."


@click.command(epilog=EPILOG)
@click.option("--live", is_flag=True, help="Connect to the room's MCP servers as well: a required one has to answer.")
@json_option
def check(*, live: bool, as_json: bool) -> None:
    """Name every fault of this room and its settings, each with its file, its line, and what to do.

    Imports the room's Python, as a worker does. Without --live it connects to nothing.
    """
    from chordage.workers import room_check

    found = room_check.check(live=live)
    print_json(_as_json(found)) if as_json else _tell(found)
    raise click.exceptions.Exit(1 if found.faults else 0)


def _tell(found: CheckReport) -> None:
    for fault in found.faults:
        say(f"{fault.kind}: {fault.text}")
    for remark in found.remarks:
        say(f"{remark.kind}: {remark.text} (not required: the agent does without it)")
    if found.faults:
        number = len(found.faults)
        say(f"\n{found.room}: {number} {'fault' if number == 1 else 'faults'}", err=True)
        return
    say(f"{found.room}: nothing is wrong. Looked at:")
    for look in found.sections:
        say(f"  {look.kind:<10}{look.summary}".rstrip())


def _as_json(found: CheckReport) -> dict[str, Any]:
    return {
        "room": str(found.room),
        "faults": [_plain(fault) for fault in found.faults],
        "remarks": [_plain(remark) for remark in found.remarks],
        "looked_at": [{"kind": look.kind, "what": look.summary} for look in found.sections],
    }


def _plain(fault: CheckFault) -> dict[str, Any]:
    return {"kind": fault.kind, "file": fault.file, "line": fault.line, "told": fault.text}
