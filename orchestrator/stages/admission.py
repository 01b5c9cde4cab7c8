"""1. A message becomes a queued turn.

It is stored whole or refused with an error; nothing in between. The same dedupe key finds the turn that is there
already, so a message handed in twice, by a retrying caller or a redelivered Celery message, is one turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

import structlog

from chordage.orchestrator.core import stepping
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.approvals import Suspension
from chordage.orchestrator.core.errors import Crossed, LostRace, Unavailable
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import Origin, TurnRequest, group_of
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.run import approvals, arrivals
from chordage.orchestrator.run.arrivals import (
    Admitted,
    Stored,
    can_come_again,
    check_request,
    seen_before,
    store_in,
    tell,
)
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store.database import Tx

log = structlog.get_logger()

TRIES = 50  # that may be lost to others with the same work
CROSSED_TRIES = 5  # that the database may undo: it takes a second to see that two wait for each other


def admit(rt: Runtime, request: TurnRequest) -> tuple[Admitted, list[Intent]]:
    now = rt.now()
    agent = check_request(rt, request, now)
    if (seen := _already_there(rt, agent, request, now)) is not None:
        return seen, []
    if request.control is Control.STEP:
        stepping.check_terms(request.step or StepTerms(), agent, rt.bounds.text_bytes)
    asked = approvals.check_decisions(rt, request.decisions, space=request.space) if request.decisions else []
    arrivals.defer_will(rt, request, agent.name)
    crossed = 0
    for _ in range(TRIES):
        try:
            stored = _store(rt, agent, request, asked, now)
        except Crossed:
            crossed += 1
            if crossed == CROSSED_TRIES:
                raise
        except LostRace:  # the same dedupe key came in beside us and was first, or the same work was
            if (seen := _already_there(rt, agent, request, now)) is not None:
                return seen, []
        else:
            return tell(rt, stored), stored.intents
    raise Unavailable(f"{TRIES} others were first, one after the other, with work that is the same: try again")


Result = tuple[Admitted, list[Intent]] | Exception


def admit_all(rt: Runtime, requests: Sequence[TurnRequest]) -> list[Result]:
    """Each as `admit` would have it, in as few transactions as may be: the commit is most of what a message costs.

    One transaction takes messages of one group that bring threads of their own, for which they can wait for nobody, or
    those of one thread. So it never holds one thread while it waits for another.
    """
    found: dict[int, Result] = {}
    for places in _apart(requests):
        found.update(zip(places, _together(rt, [requests[place] for place in places]), strict=True))
    return [found[place] for place in range(len(requests))]


def _apart(requests: Sequence[TurnRequest]) -> list[list[int]]:
    """Those without a thread in the order of what they come again by, so that two transactions never wait crosswise."""
    alike: dict[object, list[int]] = defaultdict(list)
    for place, request in enumerate(requests):
        key = (group_of(request), request.message.thread_id)
        alike[key if _is_plain(request) else place].append(place)
    for places in alike.values():
        if requests[places[0]].message.thread_id is None:
            places.sort(key=lambda place: _order(requests[place]))
    return list(alike.values())


def _order(request: TurnRequest) -> tuple[str, str, str]:
    return request.source, request.once.digest if request.once else "", request.dedupe_key or ""


def _is_plain(request: TurnRequest) -> bool:
    """It touches its own thread alone."""
    own = request.message.origin in {Origin.INVOKE, Origin.CHAT} and request.coalesce_key is None
    return own and request.control is Control.AUTO and not request.decisions


def _together(rt: Runtime, requests: Sequence[TurnRequest]) -> list[Result]:
    """One that is refused takes no other with it: each is then looked at alone."""
    if len(requests) > 1:
        try:
            return _as_one(rt, requests)
        except Exception as error:
            if isinstance(error, Unavailable) and not isinstance(error, Crossed):
                return [error] * len(requests)
            log.debug("messages are admitted one by one", error=repr(error))
    return [_alone(rt, request) for request in requests]


def _as_one(rt: Runtime, requests: Sequence[TurnRequest]) -> list[Result]:
    now = rt.now()
    agents = [check_request(rt, request, now) for request in requests]
    with rt.store.write() as tx:
        stored = [_store_once(tx, rt, *one, now) for one in zip(agents, requests, strict=True)]
    return [(tell(rt, one), one.intents) for one in stored]


def _alone(rt: Runtime, request: TurnRequest) -> Result:
    try:
        return admit(rt, request)
    except Exception as error:
        return error


def _already_there(rt: Runtime, agent: AgentSpec, request: TurnRequest, now: datetime) -> Admitted | None:
    if not can_come_again(request):
        return None
    with rt.store.read() as tx:
        return seen_before(tx, agent, request, now)


def _store(rt: Runtime, agent: AgentSpec, request: TurnRequest, asked: list[Suspension], now: datetime) -> Stored:
    with rt.store.write() as tx:
        return store_in(tx, rt, agent, request, asked, now)


def _store_once(tx: Tx, rt: Runtime, agent: AgentSpec, request: TurnRequest, now: datetime) -> Stored:
    seen = seen_before(tx, agent, request, now)
    return Stored(admitted=seen) if seen else store_in(tx, rt, agent, request, [], now)
