"""1. A message becomes a queued turn.

It is stored whole or refused with an error; nothing in between. The same dedupe key finds the turn that exists already,
so a message submitted twice, by a retrying caller or a redelivered Celery message, is one turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

import structlog

from chordage.orchestrator.core import stepping
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import Crossed, LostRace, Unavailable, UserError
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import Origin, TurnRequest, group_of
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.run import approvals, arrivals
from chordage.orchestrator.run.arrivals import Admitted
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime

log = structlog.get_logger()

TRIES = 50  # that may be lost to others with the same work
CROSSED_TRIES = 5  # that the database may undo: it takes a second to see that two wait for each other
AdmissionResult = tuple[Admitted, list[Intent]] | Exception


def admit(rt: Runtime, request: TurnRequest, *, here: bool = False) -> tuple[Admitted, list[Intent]]:
    """`here`: the turn starts in the same transaction if it can, and this process carries it on."""
    now = rt.now()
    agent = arrivals.check_request(rt, request, now)
    try:
        return _admit_new(rt, agent, request, here=here)
    except (UserError, LostRace):  # a message that came before is no new one, whatever would be wrong with it now
        if (duplicate := _find_duplicate(rt, agent, request, now)) is None:
            raise
        return duplicate, []


def _admit_new(rt: Runtime, agent: AgentSpec, request: TurnRequest, *, here: bool) -> tuple[Admitted, list[Intent]]:
    """Raises LostRace where the message is there already."""
    if request.control is Control.STEP:
        stepping.check_terms(request.step or StepTerms(), agent, rt.bounds.text_bytes)
    asked = []
    if request.decisions:
        asked = approvals.check_decisions(rt, request.decisions, space=request.space)
    arrivals.defer_will(rt, request, agent.name)
    crossed = 0
    for _ in range(TRIES):
        try:
            with Unit(rt) as unit:
                admitted = arrivals.admit(unit, agent, request, asked, here=here)
        except Crossed:
            crossed += 1
            if crossed == CROSSED_TRIES:
                raise
        except LostRace:  # a message with the same dedupe key, or with the same work, was first
            if _find_duplicate(rt, agent, request, rt.now()) is not None:
                raise
        else:
            return admitted, unit.intents
    raise Unavailable(f"{TRIES} others were first, one after the other, with work that is the same: try again")


def _find_duplicate(rt: Runtime, agent: AgentSpec, request: TurnRequest, now: datetime) -> Admitted | None:
    if not arrivals.can_come_again(request):
        return None
    with rt.store.read() as tx:
        return arrivals.find_duplicate(tx, agent, request, now)


# Many at once: the commit is most of what a message costs.


def admit_all(rt: Runtime, requests: Sequence[TurnRequest]) -> list[AdmissionResult]:
    """Each as `admit` would have it, in as few transactions as possible.

    One transaction takes messages of one group that bring threads of their own, for which nothing can make them wait,
    or those of one thread. So it never holds one thread while it waits for another.
    """
    results: dict[int, AdmissionResult] = {}
    for places in _batches(requests):
        admitted = _admit_together(rt, [requests[place] for place in places])
        results.update(zip(places, admitted, strict=True))
    return [results[place] for place in range(len(requests))]


def _batches(requests: Sequence[TurnRequest]) -> list[list[int]]:
    """Messages without a thread in the order of the keys they can come again by, so that waits never cross."""
    alike: dict[object, list[int]] = defaultdict(list)
    for place, request in enumerate(requests):
        key = (group_of(request), request.message.thread_id)
        alike[key if _touches_own_thread_alone(request) else place].append(place)
    for places in alike.values():
        if requests[places[0]].message.thread_id is None:
            places.sort(key=lambda place: _order(requests[place]))
    return list(alike.values())


def _order(request: TurnRequest) -> tuple[str, str, str]:
    return request.source, request.once.digest if request.once else "", request.dedupe_key or ""


def _touches_own_thread_alone(request: TurnRequest) -> bool:
    is_own = request.message.origin in {Origin.INVOKE, Origin.CHAT} and request.coalesce_key is None
    return is_own and request.control is Control.AUTO and not request.decisions


def _admit_together(rt: Runtime, requests: Sequence[TurnRequest]) -> list[AdmissionResult]:
    """A message that is refused takes no other with it: then each is admitted alone."""
    if len(requests) > 1:
        try:
            return _admit_in_one_transaction(rt, requests)
        except Exception as error:
            if isinstance(error, Unavailable) and not isinstance(error, Crossed):
                return [error] * len(requests)
            log.debug("messages are admitted one by one", error=repr(error))
    return [_admit_alone(rt, request) for request in requests]


def _admit_in_one_transaction(rt: Runtime, requests: Sequence[TurnRequest]) -> list[AdmissionResult]:
    agents = [arrivals.check_request(rt, request, rt.now()) for request in requests]
    results: list[AdmissionResult] = []
    with Unit(rt) as unit:
        for agent, request in zip(agents, requests, strict=True):
            before = len(unit.intents)
            admitted = arrivals.find_duplicate(unit.tx, agent, request, unit.now)
            admitted = admitted or arrivals.admit(unit, agent, request, [])
            results.append((admitted, unit.intents[before:]))
    return results


def _admit_alone(rt: Runtime, request: TurnRequest) -> AdmissionResult:
    try:
        return admit(rt, request)
    except Exception as error:
        return error
