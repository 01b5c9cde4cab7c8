"""`chordage doctor`: what is wrong with the fleet, since when, and the command that cures it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from chordage.config.settings import Settings, SettingsFault
from chordage.orchestrator.core.doctor import DoctorReport, FleetState, Severity, Symptom, report_of
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.text import counted
from chordage.workers.cli.context import cipher_of, command_settings
from chordage.workers.cli.output import ago, busy, json_option, print_json, print_table, say, say_lines

if TYPE_CHECKING:
    from chordage.workers.doctor.context import RoomFault

EXIT_CODES = {FleetState.FINE: 0, FleetState.WARNINGS: 1, FleetState.ERRORS: 2}
COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
COLUMNS = ("severity", "code", "where", "since", "text", "remedy")
EPILOG = "Exit codes: 0 nothing is wrong; 1 warnings alone; 2 errors."


@click.command(epilog=EPILOG)
@json_option
def doctor(*, as_json: bool) -> None:
    """Examine settings, files, services, clocks, processes and rows, and say what is wrong and what cures it.

    Changes nothing. Each probe has its own time limit; one that cannot be made is a finding.
    """
    report = _report()
    print_json(report) if as_json else _print(report)
    raise click.exceptions.Exit(EXIT_CODES[report.state])


def _report() -> DoctorReport:
    try:
        settings = command_settings()
    except SettingsFault:  # nothing else can be looked at; all that is wrong with them is named at once
        from chordage.workers.doctor.machine import settings_symptom

        faults = [settings_symptom(fault.place, fault.text) for fault in _room()]
        return report_of(datetime.now(UTC), (), faults)
    return _examined(settings)


def _examined(settings: Settings) -> DoctorReport:
    from chordage.orchestrator.store.database import Store
    from chordage.workers.doctor.examining import doctor_of

    cipher = None
    with suppress(ConfigError):  # which the probe of settings finds
        cipher = cipher_of(settings)
    with closing(Store(settings.database, pool_size=2, cipher=cipher)) as store, busy("examining the fleet"):
        return doctor_of(settings, store, room=_room, now=lambda: datetime.now(UTC)).examine()


def _room() -> list[RoomFault]:
    from chordage.workers import room_check
    from chordage.workers.doctor.context import RoomFault

    return [RoomFault(place=fault.kind, text=fault.text) for fault in room_check.check().faults]


def _print(report: DoctorReport) -> None:
    if not sys.stdout.isatty():
        print_table(COLUMNS, [[getattr(found, column) for column in COLUMNS] for found in report.findings])
    else:
        for number, found in enumerate(report.findings):
            colour = COLOURS[found.severity]
            say_lines([*([""] if number else []), *_lines(found)], mark={1 if number else 0: colour})
    errors = sum(found.severity is Severity.ERROR for found in report.findings)
    warnings = len(report.findings) - errors
    if report.findings:
        say(f"\n{counted(errors, 'error')}, {counted(warnings, 'warning')}", err=True)
        return
    say("nothing is wrong. Looked at:")
    for probe in report.probes:
        say(f"  {probe.probe:<24}{probe.summary}")


def _lines(found: Symptom) -> Iterator[str]:
    since = f", since {ago(found.since)}" if found.since else ""
    yield f"{found.severity.value}  {found.code.replace('_', ' ')}: {found.where}{since}"
    yield f"  {found.text}"
    yield f"  `{found.remedy}`"
