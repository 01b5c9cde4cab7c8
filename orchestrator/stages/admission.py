"""1. A message becomes a queued turn.

It is stored whole or refused with an error; nothing in between. The same dedupe key finds the turn that is there
already, so a message handed in twice, by a retrying caller or a redelivered Celery message, is one turn.
"""

from __future__ import annotations

from chordage.orchestrator import answering, ending, stepping
from chordage.orchestrator.admitting import Admitted, store_in
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import InvalidMessage, LostRace
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import TurnRequest, check
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import turns
from chordage.orchestrator.strategies import STRATEGIES
from chordage.orchestrator.strategies.loading import names


def admit(rt: Runtime, request: TurnRequest) -> tuple[Admitted, list[Intent]]:
    now = rt.now()
    check(request, rt.bounds, now)
    agent = rt.agents.get(request.agent)
    _check_strategy(agent, request)
    if (seen := _already_there(rt, agent, request)) is not None:
        return seen, []
    if request.control is Control.STEP:
        _check_stepped(agent, request)
    asked = answering.checked(rt, request.decisions) if request.decisions else []
    try:
        with rt.store.write() as tx:
            stored = store_in(tx, rt, agent, request, asked, now)
    except LostRace:  # the same dedupe key came in beside us and was first
        seen = _already_there(rt, agent, request)
        assert seen is not None
        return seen, []
    answering.tell(rt, stored.decided)
    if stored.ended is not None:
        ending.tell_the_end(rt, stored.ended)
    return stored.admitted, stored.intents


def _check_strategy(agent: AgentSpec, request: TurnRequest) -> None:
    """Whoever sends a message names no code of ours: an import path is for the agent's own file."""
    wanted = request.strategy
    if wanted not in {None, agent.strategy, *STRATEGIES} and wanted not in (known := names()):
        raise InvalidMessage(f"strategy {wanted!r} is not known; use one of: {', '.join(known)}", field="strategy")


def _check_stepped(agent: AgentSpec, request: TurnRequest) -> None:
    if (wanted := request.strategy or agent.strategy) not in STRATEGIES:
        told = f"strategy {wanted!r} is not driven step by step: use control 'auto', or one of: {', '.join(STRATEGIES)}"
        raise InvalidMessage(told, field="control")
    stepping.check_terms(request.step or StepTerms())


def _already_there(rt: Runtime, agent: AgentSpec, request: TurnRequest) -> Admitted | None:
    if request.dedupe_key is None:
        return None
    with rt.store.read() as tx:
        turn_id = turns.by_dedupe_key(tx, agent.name, request.source, request.dedupe_key)
        turn = turns.load(tx, turn_id) if turn_id else None
    return Admitted(turn_id=turn.id, thread_id=turn.thread_id, duplicate=True) if turn else None
