"""A forked run at work: the replies that it repeats, and the calls that the record of its source answers.

Everything is decided from rows: the terms of the fork, the source, and the calls that the fork has recorded. A process
that dies has recorded a reply with its answers, or nothing; another one then reads the same rows and decides the same.
Two that decide at once write one reply, as for every model call.
"""

from __future__ import annotations

from collections.abc import Sequence

from chordage.orchestrator.core import forking, subagents
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.forking import ForkTerms
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.records import NewCall, Run
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import fork_record
from chordage.orchestrator.store.database import Tx


def tune(rt: Runtime, run: Run, agent: AgentSpec) -> AgentSpec:
    with rt.store.read() as tx:
        return _terms(tx, run).tune(agent)


def repeated_reply(rt: Runtime, run: Run) -> Reply | None:
    """The reply of the source that comes next; None: the model is asked."""
    with rt.store.read() as tx:
        terms = _terms(tx, run)
        number = fork_record.count_replies(tx, run.id)
        if number >= terms.kept:
            return None
        body = fork_record.reply(tx, terms.run_id, number)
    assert body is not None
    return forking.kept_reply(body, terms, is_last=number == terms.kept - 1)


def answer_calls(rt: Runtime, run: Run, agent: AgentSpec, calls: Sequence[NewCall]) -> dict[str, NewCall]:
    """The calls of one reply, by their ids: answered from the record, held back, or as they are."""
    asked = [call for call in calls if call.status is CallStatus.NEW]
    with rt.store.read() as tx:
        terms = _terms(tx, run)
        record = fork_record.calls_of(tx, terms.run_id, {call.tool for call in asked})
        number = fork_record.count_replies(tx, run.id) + 1
        sources = forking.sources_of(asked, record, fork_record.used(tx, run.id), terms, kept=number)
        results = fork_record.results(tx, sources.values())
    return {
        call.id: forking.answered(call, sources[call.id], results[sources[call.id]])
        if call.id in sources
        else forking.held_back(call, terms, is_agent=subagents.of_tool(agent, call.tool) is not None)
        for call in asked
    }


def _terms(tx: Tx, run: Run) -> ForkTerms:
    terms = fork_record.load(tx, run.turn_id)
    assert terms is not None, f"run {run.id} is a fork without terms"
    return terms
