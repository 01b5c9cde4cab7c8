"""`chordage check`: everything that is wrong with this room, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chordage.orchestrator.core.text import counted
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

    report = room_check.check(live=live)
    print_json(_as_json(report)) if as_json else _print(report)
    raise click.exceptions.Exit(1 if report.faults else 0)


def _print(report: CheckReport) -> None:
    for fault in report.faults:
        say(f"{fault.kind}: {fault.text}")
    for remark in report.remarks:
        say(f"{remark.kind}: {remark.text} (not required: the agent does without it)")
    if report.faults:
        say(f"\n{report.room}: {counted(len(report.faults), 'fault')}", err=True)
        return
    say(f"{report.room}: nothing is wrong. Looked at:")
    for section in report.sections:
        say(f"  {section.kind:<10}{section.summary}".rstrip())


def _as_json(report: CheckReport) -> dict[str, Any]:
    return {
        "room": report.room,
        "faults": [_plain(fault) for fault in report.faults],
        "remarks": [_plain(remark) for remark in report.remarks],
        "looked_at": [{"kind": section.kind, "what": section.summary} for section in report.sections],
    }


def _plain(fault: CheckFault) -> dict[str, Any]:
    return {"kind": fault.kind, "file": fault.file, "line": fault.line, "told": fault.text}
