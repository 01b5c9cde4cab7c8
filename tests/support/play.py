"""A schedule of wake-ups, carried out: delivered, doubled, lost, cut by deaths."""

from __future__ import annotations

from contextlib import suppress

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import BrokenAgent
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.limits import TurnLimits
from support.world import Died, World

BUDGETS = {Group.CHAT: 2, Group.TASK: 1, Group.CHORE: 1, Group.WILL: 1}
NAMED = {group.value: budget for group, budget in BUDGETS.items()}


class Play:
    """One schedule, carried out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.turns: list[str] = []
        self.dies_in_tool = False
        self.lingers = 0  # seconds that the next call takes, while rescue sweeps
        self.lingered: set[str] = set()  # calls that were taken for dead, and came back
        self.may_be_repeated = 0  # model calls cut by a death or a cancel, whose replies are lost
        world.tools.before = self._not_again

    def _not_again(self, order) -> None:
        rows = self.world.rows("calls", id=order.call_id)
        allowed = {"new", "running", "resuming"} | self.world.tools.outrun
        assert all(row["status"] in allowed for row in rows), "a settled call runs again"
        self.may_be_repeated += not rows  # its reply is recorded with its outcome, unless another worker is first
        if self.lingers:
            seconds, self.lingers = self.lingers, 0
            self.lingered.add(order.call_id)
            self.world.sweep(seconds)
        if self.dies_in_tool:
            self.dies_in_tool = False
            self.world.tools.finished[order.idempotency_key] += 1  # it took effect, and will not be reported
            raise self.world.kill()

    def submit(self, thread: str, group: Group) -> None:
        with suppress(BrokenAgent):  # then its sender keeps it
            self.turns.append(self.world.submit(f"m{len(self.turns)}", thread=thread, group=group))

    def edit(self, broken: bool) -> None:
        """An editor saves half of the agent's file, or the whole of it, and no process has a version that is good."""
        self.world.agents.broken = {"ada"} if broken else set()

    def limited(self, thread: str, seconds: int) -> None:
        """A turn with a time limit of its own."""
        limits = TurnLimits(timeout=float(seconds))
        self.turns.append(self.world.submit(f"m{len(self.turns)}", thread=thread, limits=limits))

    def _pick(self, at: int, *, keep: bool = False):
        pending = self.world.pending
        return pending[at % len(pending)] if keep else pending.pop(at % len(pending))

    def deliver(self, at: int) -> None:
        if self.world.pending:
            with suppress(BrokenAgent):  # a worker logs it and continues with something else
                self.world.deliver(self._pick(at), doubt=bool(at % 2))

    def double(self, at: int) -> None:
        if self.world.pending:
            with suppress(BrokenAgent):
                self.world.deliver(self._pick(at, keep=True))

    def drop(self, at: int) -> None:
        if self.world.pending:
            self._pick(at)

    def die(self, at: int, commit: int, before: bool) -> None:
        world = self.world
        world.die_at, world.die_before = world.commits + commit, before
        self._deliver_and_die(at)
        world.die_at = None

    def _deliver_and_die(self, at: int) -> None:
        try:
            self.deliver(at)
        except Died:
            self.may_be_repeated += 1
            self.world.revive()

    def die_in_tool(self, at: int) -> None:
        self.dies_in_tool = True
        self._deliver_and_die(at)
        self.dies_in_tool = False

    def linger(self, at: int, seconds: int) -> None:
        """A call whose lease runs out in the hand of a process that lives."""
        self.lingers = seconds
        self._deliver_and_die(at)
        self.lingers = 0

    def sweep(self, seconds: int, after_the_dead: bool) -> None:
        if after_the_dead:  # the marks of work in hand have expired with their holders
            self.world.locks.work.clear()
        self.world.sweep(seconds)

    def wipe(self) -> None:
        self.world.locks.wipe()

    def cancel(self, at: int) -> None:
        if self.turns and at % 4 == 0:
            self.world.pending += stages.cancel_turn(self.world.runtime, self.turns[at % len(self.turns)])[1]
