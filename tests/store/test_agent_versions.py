"""Versions of agents on both databases: written once by however many, and found again by agent."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from chordage.orchestrator.core.agent_versions import AgentVersion, version_of
from chordage.orchestrator.store import agent_versions
from chordage.orchestrator.store.database import Tx
from support.race import race
from support.rows import NOW


def version(text: str, agent: str = "ada") -> AgentVersion:
    return version_of(agent, {"agent": {"name": agent, "instructions": text}})


def insert(store, one: AgentVersion, seconds: int = 0) -> None:
    with store.write() as tx:
        agent_versions.insert(tx, one, now=NOW + timedelta(seconds=seconds), by="0.1")


def test_of_many_that_note_a_version_at_once_one_writes_it(store):
    same = version("Be kind.")

    def note(tx: Tx, seconds: int) -> None:
        agent_versions.insert(tx, same, now=NOW + timedelta(seconds=seconds), by="0.1")

    assert race(store, [partial(note, seconds=n) for n in range(6)]) == [None] * 6
    with store.read() as tx:
        (row,) = agent_versions.of_agent(tx, "ada")
        assert agent_versions.load(tx, "ada", same.digest) == same
    assert row.digest == same.digest


def test_a_version_that_is_seen_again_keeps_its_first_time(store):
    insert(store, version("Be kind."))
    insert(store, version("Be kind."), 60)

    with store.read() as tx:
        (row,) = agent_versions.of_agent(tx, "ada")
    assert row.first_seen_at == NOW


def test_the_newest_comes_first_and_each_agent_has_its_own(store):
    first, second, bobs = version("one"), version("two"), version("one", "bob")
    for seconds, one in enumerate((first, second, bobs)):
        insert(store, one, seconds)

    with store.read() as tx:
        assert [row.digest for row in agent_versions.of_agent(tx, "ada")] == [second.digest, first.digest]
        assert {name: row.digest for name, row in agent_versions.newest(tx).items()} == {
            "ada": second.digest, "bob": bobs.digest,
        }  # fmt: skip
        assert agent_versions.load(tx, "bob", first.digest) is None
