"""What members log as an error is shown where the fleet was started: nobody reads logs before something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from chordage.orchestrator.core import bounds
from chordage.workers.fleet.member import Member

SERIOUS = {"error", "critical"}
WIDTH = 300


class Complaints:
    """Reads on from where the logs ended when the fleet was complete."""

    def __init__(self, members: Iterable[Member], say: Callable[[str], None]) -> None:
        self._say = say
        self._read = {member.name: (member.log, member.log.stat().st_size) for member in members}

    def pass_on(self) -> None:
        for name, (log, read) in self._read.items():
            lines, self._read[name] = _read_on(log, read)
            for line in lines:
                if said := complaint_in(line):
                    self._say(f"{name}: {said}")


def _read_on(log: Path, read: int) -> tuple[list[str], tuple[Path, int]]:
    """The whole lines behind what was read. A log that has become shorter was put aside, and is a new one."""
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return [], (log, 0)
    start = read if size >= read else 0
    if size == start:
        return [], (log, start)
    with log.open("rb") as file:
        file.seek(start)
        whole, end, _half = file.read().rpartition(b"\n")
    return whole.decode(errors="replace").splitlines(), (log, start + len(whole) + len(end))


def complaint_in(line: str) -> str | None:
    """The event of a JSON log line that is an error, with what is at fault, or the last line of its traceback."""
    if not line.startswith("{"):
        return None
    try:
        entry = bounds.loads_json(line)
    except ValueError:  # half a line, or somebody else's format: it stands in the file
        return None
    if not isinstance(entry, dict) or entry.get("level") not in SERIOUS:
        return None
    trace = str(entry.get("exception") or "").strip().splitlines()
    fault = f": {entry['fault']}" if entry.get("fault") else ""
    said = f"{entry.get('event')}{fault}" + (f" ({trace[-1]})" if trace else "")
    return said if len(said) <= WIDTH else f"{said[:WIDTH]}…"
