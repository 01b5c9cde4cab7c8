"""Versions of agents are put on record before they are used: the row says what a digest means.

Any number of processes may use a new version at once: the first to insert its row writes it, and no row is changed
later. A process remembers which digests it has noted, so a turn of a known version costs no statement.

Failure: the process dies after it started a run in the place of another, and before it asked the model; or a process
that counts as gone comes back after its version was pruned. Then a run may name a digest without a row: reports say
that its definition is not known, and the next process with that version notes it. Nothing is decided by these rows.
"""

from __future__ import annotations

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import agent_versions


def note(rt: Runtime, agent: AgentSpec) -> None:
    """In a transaction of its own: no row that others wait for is locked meanwhile."""
    version = rt.agents.version(agent)
    with Unit(rt) as unit:
        agent_versions.insert(unit.tx, version, now=unit.now, by=rt.version)
    rt.noted_versions.add(version.digest)


def note_all(rt: Runtime) -> None:
    """The versions that a turn would use now, so that they are known before one comes. Raises Unavailable."""
    for name in rt.agents.names():
        try:
            agent = rt.agents.get(name)
        except UserError:  # broken: nothing is used
            continue
        if agent.digest and agent.digest not in rt.noted_versions:
            note(rt, agent)
