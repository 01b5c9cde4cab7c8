"""What follows from a stage: intents that this process carries out itself, and those that it sends.

An intent is carried out here, without a message, when it belongs to the same run and fans nothing out. So a round of K
calls costs K + 1 messages, and a run returns to its group's queue once a round: there a chore gives way to a chat. The
round of a chat may cost K: the header that returns last carries it on (`carry_round_on` in tasks.py).
A run can need its model again without a round in between, because the reply paused, planned, was refused or asked for
nothing that could run. Then a chat continues at once, and any other run returns to its queue first.

The end of a run may start the next turn of its group in the place that it leaves (run/starting.py). That run too is
carried on here, for a few seconds; after them it is sent, so that a backlog occupies no message for ever.

`chordage invoke` uses the same function: what a worker would send, it does itself (workers/local.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from chordage.orchestrator import stages
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, CallHere, CallModel, CommitRound, Intent, StepOn
from chordage.orchestrator.runtime import Runtime

HANDED_ON_FOR = 3.0  # seconds for which one message carries on with runs that were handed on to it


def follow(
    rt: Runtime, intents: Iterable[Intent], send: Callable[[Iterable[Intent]], None], *, has_called_model: bool = False
) -> None:
    """Carry out what belongs to the same run, and to one that its end has started, and `send` the rest."""
    due, until = deque(intents), time.monotonic() + HANDED_ON_FOR
    while due:
        intent = due.popleft()
        is_late = _was_handed_on(intent) and time.monotonic() >= until
        gives_way = is_late or (has_called_model and _gives_way(intent))
        stays_here = not (rt.in_flight.stopping or gives_way) or _has_begun(intent)
        try:
            next_intents = carry_out(rt, intent) if stays_here else None
        except Exception:  # of this run; what else is due is not lost with it
            send(due)
            raise
        if next_intents is None:
            send([intent])
        else:
            has_called_model = has_called_model or isinstance(intent, CallModel)
            due.extend(next_intents)


def _gives_way(intent: Intent) -> bool:
    """One model call a message, except in a chat: in the queue, groups are served in their order."""
    return isinstance(intent, CallModel) and intent.group is not Group.CHAT


def _has_begun(intent: Intent) -> bool:
    """A call that this process is carrying out cannot be sent."""
    return isinstance(intent, CallHere) and intent.under_way is not None


def _was_handed_on(intent: Intent) -> bool:
    """The end of a run has started it, so in a backlog one message could carry out run after run."""
    return isinstance(intent, Advance) and intent.seen is not None and intent.seen.step == 1


def carry_out(rt: Runtime, intent: Intent) -> list[Intent] | None:
    """What follows. None: it belongs to another process."""
    match intent:
        case Advance(run_id=run_id, seen=seen, past=past):
            return stages.advance(rt, run_id, seen, past)
        case CallHere():
            return stages.call_here(rt, intent)
        case CallModel(run_id=run_id, step=step, seen=seen, past=past):
            return stages.call_model(rt, run_id, step, seen, past)
        case CommitRound(run_id=run_id, step=step):
            return stages.commit_round(rt, run_id, step)
        case StepOn(run_id=run_id):
            return stages.step_on(rt, run_id)
        case _:
            return None
