"""What members log as an error is shown where the fleet was started: nobody reads log files before something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import IO

from chordage.workers.fleet.member import Member

SERIOUS = {"error", "critical"}
WIDTH = 300


class Complaints:
    """Reads on from where the logs ended when the fleet was complete."""

    def __init__(self, members: Iterable[Member], say: Callable[[str], None]) -> None:
        self._say = say
        self._logs: dict[str, IO[str]] = {}
        for member in members:
            log = member.log.open(errors="replace")
            log.seek(0, 2)
            self._logs[member.name] = log

    def pass_on(self) -> None:
        for name, log in self._logs.items():
            for line in log:
                if said := complaint_in(line):
                    self._say(f"{name}: {said}")


def complaint_in(line: str) -> str | None:
    """The event of a JSON log line that is an error, with the last line of its traceback."""
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except ValueError:  # half a line, or somebody else's format: it stands in the file
        return None
    if not isinstance(entry, dict) or entry.get("level") not in SERIOUS:
        return None
    trace = str(entry.get("exception") or "").strip().splitlines()
    said = f"{entry.get('event')}" + (f" ({trace[-1]})" if trace else "")
    return said if len(said) <= WIDTH else f"{said[:WIDTH]}…"
