"""A worker with one slot, and the queues before it in their strict order: what real workers do, one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from chordage.orchestrator.core.groups import ALL_QUEUES, SYSTEM_QUEUE
from chordage.orchestrator.core.intents import CallModel, CallTool, CallTools, CancelTurn, Intent
from chordage.tasks.follow import follow
from support.world import Header, World, as_sent


class OneSlot:
    def __init__(self, world: World) -> None:
        self.world = world
        self.queues: dict[str, deque[Intent | Header]] = {name: deque() for name in ALL_QUEUES}
        self.messages = 0

    def send(self, intents: Iterable[Intent | Header]) -> None:
        for intent in intents:
            if isinstance(intent, CallTools):
                self.send(self.world._fan_out(intent))
            else:
                self.messages += 1
                self.queues[_queue_of(intent)].append(as_sent(intent))  # type: ignore[arg-type]  # a header is sent as it is

    def run_dry(self) -> None:
        while (message := self._next()) is not None:
            following = self.world._carry_out(message, doubt=False)
            if isinstance(message, Header | CallTool):
                self.send(following)
            else:
                follow(self.world.runtime, following, self.send, has_called_model=isinstance(message, CallModel))

    def _next(self) -> Intent | Header | None:
        """What came in meanwhile is in its queue; the first of the first queue that has any."""
        came, self.world.pending = self.world.pending, []
        self.send(came)
        return next((queue.popleft() for queue in self.queues.values() if queue), None)


def _queue_of(intent: Intent | Header) -> str:
    match intent:
        case Header(body=body):
            return body.intent.group.tools_queue
        case CallTool(group=group):
            return group.tools_queue
        case CancelTurn():
            return SYSTEM_QUEUE
        case _:
            return intent.group.queue  # type: ignore[union-attr]  # the rest has one
