"""Members that die are started again, after a pause that grows with every death, and somebody is told."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.retry import Backoff
from chordage.workers.fleet.complaints import Complaints
from chordage.workers.fleet.keeper import Keeper
from chordage.workers.fleet.member import Member
from chordage.workers.fleet.valkey import ValkeyServer

LOOK = 0.2
DEAF = 70  # the exit code of deafness.py, whose imports the fleet does without
RESTART = Backoff(first=0.5, longest=30.0)
HEALTHY_AFTER = 60.0  # who lived that long begins with the shortest pause again


@dataclass(slots=True)
class Case:
    """A member's record of deaths."""

    deaths: int = 0
    due: float | None = None  # when it is to be started again


class Supervision:
    def __init__(
        self,
        members: Sequence[Member],
        valkey: ValkeyServer | None,
        keeper: Keeper,
        *,
        say: Callable[[str], None],
        look: Callable[[], None],
    ) -> None:
        self._members = members
        self._valkey = valkey
        self._keeper = keeper
        self._say = say
        self._look = look
        self._cases = {member.name: Case() for member in members}
        self._complaints = Complaints(members, say)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chordage-supervision", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when nothing is started any more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK):
            self._keeper.see_to()
            self._see_to_broker()
            for member in self._members:
                self._see_to(member, self._cases[member.name])
            self._complaints.pass_on()
            self._look()

    def _see_to_broker(self) -> None:
        if self._valkey is None or self._valkey.running:
            return
        self._say("Valkey ended; it is started again")
        if self._valkey.last_pid is not None:
            self._keeper.release(self._valkey.last_pid)
        try:
            self._valkey.start()
        except Unavailable as error:
            self._say(str(error))
            self._stop.wait(RESTART.first)

    def _see_to(self, member: Member, case: Case) -> None:
        if member.running:
            return
        if case.due is None:
            self._note_death(member, case)
        elif time.monotonic() >= case.due:
            case.due = None
            self._start_again(member)

    def _start_again(self, member: Member) -> None:
        try:
            member.start()
        except OSError as error:  # no memory, no process left: the next look finds it dead, and the pause grows
            self._say(f"{member.name} cannot be started: {error}")

    def _note_death(self, member: Member, case: Case) -> None:
        lived = time.monotonic() - member.started_at
        case.deaths = 1 if lived > HEALTHY_AFTER else case.deaths + 1
        pause = RESTART.delay(case.deaths)
        case.due = time.monotonic() + pause
        member.sweep_up()
        self._keeper.release(member.pid)
        self._say(f"{member.name} {how_it_ended(member.code)}; it is started again in {pause:g} s (log: {member.log})")


def how_it_ended(code: int | None) -> str:
    if code == DEAF:
        return "had gone deaf and ended itself"
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"
