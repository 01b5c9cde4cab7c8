"""The engine of `chordage.testing` with models, tools and agents that are fakes, and one more check."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

from chordage.orchestrator.core.records import History, Run
from chordage.orchestrator.store import journal
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.strategies import shipped
from chordage.testing.engine import Died, Header, MemoryEngine, a_persons_answer, as_sent
from support.fakes import FakeAgents, FakeModels, FakeTools

__all__ = ["Died", "Header", "World", "a_persons_answer", "as_sent"]


def assert_as_read(url: str, run: Run, past: History) -> None:
    """A process that carries a run on without reading its history must know what it would read."""
    plans_of = run.id if shipped.plans(run.strategy) else None
    with closing(Store(url, pool_size=1)) as store, store.read() as tx:
        read = journal.history(tx, run.thread_id, plans_of=plans_of)
    if past.is_read:
        assert past == read
        return
    assert [replace(entry, id=0) for entry in past.entries] == [replace(entry, id=0) for entry in read.entries]
    assert (past.calls, past.asked) == (read.calls, read.asked)


@dataclass
class World(MemoryEngine):
    models: FakeModels = field(default_factory=FakeModels)
    tools: FakeTools = field(default_factory=FakeTools)
    agents: FakeAgents = field(default_factory=FakeAgents)
    before_carrying: Callable[[str, Run, History], None] = assert_as_read
