"""Versions of agents are put on record before they are used: the row says what a digest means.

Any number of processes may use a new version at once: the first to insert its row writes it, and no row is changed
later. A process remembers which digests it has noted, so a turn of a known version costs no statement.

Failure: the process dies after it started a run in the place of another, and before it asked the model; or a process
that counts as gone comes back after its version was pruned. Then a run may name a digest without a row: reports say
that its definition is not known, and the next process with that version notes it. Until then such a run continues with
the version of today (runtime.py).
"""

from __future__ import annotations

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.run.unit import Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import agent_versions, audit


def note(rt: Runtime, agent: AgentSpec) -> None:
    """In a transaction of its own: no row that others wait for is locked meanwhile."""
    version = rt.agents.version(agent)
    with Unit(rt) as unit:
        agent_versions.insert(unit.tx, version, now=unit.now, by=rt.version)
    rt.noted_versions.add(version.digest)


def adopt(rt: Runtime, name: str, *, by: Actor) -> dict[str, int]:
    """Open runs of an agent continue from their next step with its version of today: how many of each version did. With
    the record of it in one transaction. A process that holds a run reads that when it loads it again.
    """
    agent = rt.agents.get(name)
    version = rt.agents.version(agent)
    note(rt, agent)

    def work(unit: Unit) -> dict[str, int]:
        moved = agent_versions.adopt(unit.tx, name, version.digest)
        if moved:
            detail = {"to": version.digest, "runs": sum(moved.values()), "from": sorted(moved)}
            audit.record(unit.tx, by, Audited.AGENT_ADOPTED, name, now=unit.now, detail=detail)
        return moved

    return insist(rt, work)[0]


def note_all(rt: Runtime) -> None:
    """The versions that a turn would use now, so that they are known before one comes. Raises Unavailable."""
    for name in rt.agents.names():
        try:
            agent = rt.agents.get(name)
        except UserError:  # broken: nothing is used
            continue
        if agent.digest and agent.digest not in rt.noted_versions:
            note(rt, agent)
