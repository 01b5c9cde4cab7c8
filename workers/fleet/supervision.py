"""Starts members again that have died, after a pause that grows with every death, and reports that and their errors."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.retry import Backoff
from chordage.workers.fleet.member import Member
from chordage.workers.fleet.reaper import Reaper
from chordage.workers.fleet.valkey import ValkeyServer

INTERVAL = 0.2
STALLED = 70  # the exit code of workers/stalled_consumer.py, whose imports the fleet does without
RESTART = Backoff(first=0.5, longest=30.0)
HEALTHY_AFTER = 60.0  # seconds; after a life that long the shortest pause is used again
SERIOUS = {"error", "critical"}
WIDTH = 300


@dataclass(slots=True)
class DeathRecord:
    deaths: int = 0
    due: float | None = None  # when the member is to be started again


class Supervision:
    """A thread. `say` gets what happens to members; `look` is called in every round."""

    def __init__(
        self,
        members: Sequence[Member],
        valkey: ValkeyServer | None,
        reaper: Reaper,
        *,
        say: Callable[[str], None],
        look: Callable[[], None],
    ) -> None:
        self._members = members
        self._valkey = valkey
        self._reaper = reaper
        self._say = say
        self._look = look
        self._records = {member.name: DeathRecord() for member in members}
        self._errors = LoggedErrors(members, say)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chordage-supervision", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when no process is started any more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._reaper.restart_if_dead()
            self._restart_broker()
            for member in self._members:
                self._supervise(member, self._records[member.name])
            self._errors.report()
            self._look()

    def _restart_broker(self) -> None:
        if self._valkey is None or self._valkey.running:
            return
        self._say("Valkey ended; it is started again")
        if self._valkey.last_pid is not None:
            self._reaper.release(self._valkey.last_pid)
        try:
            self._valkey.start()
        except Unavailable as error:
            self._say(str(error))
            self._stop.wait(RESTART.first)

    def _supervise(self, member: Member, record: DeathRecord) -> None:
        if member.running:
            return
        if record.due is None:
            self._note_death(member, record)
        elif time.monotonic() >= record.due:
            record.due = None
            try:
                member.start()
            except OSError as error:  # no memory, no process left: the next round sees it dead, and the pause grows
                self._say(f"{member.name} cannot be started: {error}")

    def _note_death(self, member: Member, record: DeathRecord) -> None:
        lived = time.monotonic() - member.started_at
        record.deaths = 1 if lived > HEALTHY_AFTER else record.deaths + 1
        pause = RESTART.delay(record.deaths)
        record.due = time.monotonic() + pause
        member.kill_group()
        self._reaper.release(member.pid)
        self._say(f"{member.name} {describe_end(member.code)}; it is started again in {pause:g} s (log: {member.log})")


def describe_end(code: int | None) -> str:
    if code == STALLED:
        return "received no messages, or had lost a slot, and ended itself"
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"


class LoggedErrors:
    """Reports what members log as an error from now on, so that it is seen before the logs are read."""

    def __init__(self, members: Iterable[Member], say: Callable[[str], None]) -> None:
        self._say = say
        self._positions = {member.name: (member.log, member.log.stat().st_size) for member in members}

    def report(self) -> None:
        for name, (log, position) in self._positions.items():
            lines, self._positions[name] = _read_on(log, position)
            for line in lines:
                if error := error_in(line):
                    self._say(f"{name}: {error}")


def _read_on(log: Path, position: int) -> tuple[list[str], tuple[Path, int]]:
    """The whole lines behind `position`. A log that has become shorter was replaced by a new one."""
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return [], (log, 0)
    start = position if size >= position else 0
    if size == start:
        return [], (log, start)
    with log.open("rb") as file:
        file.seek(start)
        whole, end, _half = file.read().rpartition(b"\n")
    return whole.decode(errors="replace").splitlines(), (log, start + len(whole) + len(end))


def error_in(line: str) -> str | None:
    """The event of a JSON log line that is an error, with what is at fault, or the last line of its traceback."""
    if not line.startswith("{"):
        return None
    try:
        entry = bounds.loads_json(line)
    except ValueError:  # half a line, or another format: it can be read in the file
        return None
    if not isinstance(entry, dict) or entry.get("level") not in SERIOUS:
        return None
    trace = str(entry.get("exception") or "").strip().splitlines()
    fault = f": {entry['fault']}" if entry.get("fault") else ""
    text = f"{entry.get('event')}{fault}" + (f" ({trace[-1]})" if trace else "")
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}…"
