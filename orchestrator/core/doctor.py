"""What `chordage doctor` finds: each fault with its severity, its place, its age, and the command that cures it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"  # work does not move, or may be lost
    WARNING = "warning"  # it moves, and will not if nothing is done


class FleetState(StrEnum):
    """The worst of the findings. As exit codes of the command: 0, 1 and 2."""

    FINE = "fine"
    WARNINGS = "warnings"
    ERRORS = "errors"


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """A finding."""

    code: str  # of its kind: docs/how-to/operations.md lists them
    severity: Severity
    where: str  # the setting, process, queue, table or file that it is about
    text: str  # one sentence
    remedy: str  # a command
    since: datetime | None = None  # null: not known


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeAnswer:
    """`summary`: what was looked at, in a few words, for when all is well."""

    summary: str
    symptoms: tuple[Symptom, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeRecord:
    probe: str
    summary: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorReport:
    made_at: datetime
    state: FleetState
    findings: tuple[Symptom, ...]  # errors first
    probes: tuple[ProbeRecord, ...]  # what was looked at


def report_of(made_at: datetime, probes: Iterable[ProbeRecord], symptoms: Iterable[Symptom]) -> DoctorReport:
    severities = list(Severity)
    findings = tuple(sorted(symptoms, key=lambda symptom: severities.index(symptom.severity)))
    return DoctorReport(made_at=made_at, state=_state(findings), findings=findings, probes=tuple(probes))


def _state(findings: tuple[Symptom, ...]) -> FleetState:
    if not findings:
        return FleetState.FINE
    return FleetState.ERRORS if findings[0].severity is Severity.ERROR else FleetState.WARNINGS


def error(code: str, where: str, text: str, remedy: str, since: datetime | None = None) -> Symptom:
    return Symptom(code=code, severity=Severity.ERROR, where=where, text=text, remedy=remedy, since=since)


def warning(code: str, where: str, text: str, remedy: str, since: datetime | None = None) -> Symptom:
    return Symptom(code=code, severity=Severity.WARNING, where=where, text=text, remedy=remedy, since=since)
