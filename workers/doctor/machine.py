"""Probes of this machine: settings and files of the room, versions of packages, disks, the fleet of this folder."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from chordage.config.settings import Settings
from chordage.orchestrator.core.doctor import ProbeAnswer, Symptom, error, warning
from chordage.orchestrator.core.text import counted
from chordage.workers.doctor.context import DoctorContext
from chordage.workers.fleet import agent_run, state_lock
from chordage.workers.fleet.agent_run import HEARTBEAT, MemberState

SQLITE = "sqlite:///"
MIB = 1024 * 1024
LOW, FULL = 1024 * MIB, 100 * MIB  # free bytes
IGNORED = "there is no such setting"  # of a variable, which then has no effect


def look_at_settings(context: DoctorContext) -> ProbeAnswer:
    symptoms = [settings_symptom(fault.place, fault.text) for fault in context.room()]
    symptoms += _contradictions(context.settings)
    return ProbeAnswer(summary=f"room {context.settings.room_path}", symptoms=tuple(symptoms))


def settings_symptom(place: str, text: str) -> Symptom:
    if text.startswith("variable ") and IGNORED in text:
        return warning("unknown_setting", place, text, "chordage check")
    code = "bad_setting" if place == "settings" else "broken_file"
    return error(code, place, text, "chordage check")


def _contradictions(settings: Settings) -> Iterator[Symptom]:
    if settings.visibility_timeout <= settings.tool_time_limit:
        yield warning(
            "short_visibility_timeout", "CHORDAGE_VISIBILITY_TIMEOUT",
            f"a message is delivered again after {settings.visibility_timeout} s, and a tool may take "
            f"{settings.tool_time_limit} s (CHORDAGE_TOOL_TIME_LIMIT): its call is begun twice.",
            f"export CHORDAGE_VISIBILITY_TIMEOUT={4 * settings.tool_time_limit}",
        )  # fmt: skip


def look_at_disks(context: DoctorContext) -> ProbeAnswer:
    settings = context.settings
    places = {"state": _existing(settings.state_path)}
    if settings.database.startswith(SQLITE):
        places["database"] = _existing(Path(settings.database.removeprefix(SQLITE)).parent)
    free = {place: shutil.disk_usage(place).free for place in dict.fromkeys(places.values())}
    symptoms = tuple(
        (error if left < FULL else warning)(
            "disk_full", str(place), f"{left // MIB} MiB are free on the disk of {place}.", f"df -h {place}"
        )
        for place, left in free.items()
        if left < LOW
    )
    return ProbeAnswer(summary=", ".join(f"{left // MIB} MiB free" for left in free.values()), symptoms=symptoms)


def _existing(folder: Path) -> Path:
    return next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))


def look_at_local_fleet(context: DoctorContext) -> ProbeAnswer:
    """The processes that `chordage run` or `start` keeps here, and what carries this command out."""
    settings = context.settings
    pid = state_lock.fleet_pid(settings.state_path)
    summary = agent_run.of_fleet(settings.room_path, settings.state_path)
    here = f"Python {platform.python_version()}, Celery {version('celery')}"
    if pid is None or summary is None or summary.pid != pid:
        return ProbeAnswer(summary=f"{here}; no fleet of this folder")
    symptoms = [
        error(
            "process_down", member.name, f"the process {member.name} of the fleet of this folder is down.",
            f"less {settings.state_path / 'logs'}", member.restarted_at,
        )
        for member in summary.members
        if member.state is not MemberState.STARTING and (member.state is not MemberState.RUNNING or not member.lives)
    ]  # fmt: skip
    silent = (datetime.now(UTC) - (summary.heartbeat_at or datetime.now(UTC))).total_seconds()
    if silent > 6 * HEARTBEAT:
        text = f"the fleet of this folder has not written agent.run for {silent:.0f} s: it does not run, or is stopped."
        symptoms.append(error("fleet_silent", f"process {pid}", text, "chordage status", summary.heartbeat_at))
    return ProbeAnswer(
        summary=f"{here}; {counted(len(summary.members), 'process', 'processes')} of this folder",
        symptoms=tuple(symptoms),
    )
