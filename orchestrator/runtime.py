"""What a stage may use: built once per process, never changed, and all there is.

A run continues with the definition of its agent with which it began, which it names by its digest (`agent_of`). Where
that is the version of today, nothing is read. Otherwise it is read from `agent_versions` once in each process, and what
it hides, such as secrets, is taken from today's file. So are what no definition has: the code of tools, plugins and
strategies, MCP servers, how models are reached, and prices. An agent whose file is broken or gone stops all its runs.

Failure: the row of a version was never written, or another release wrote it in a way that this one cannot read. Then
its runs continue with the version of today. Each reply names the version it was made with, so that this shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from chordage.orchestrator.core.agent import AgentSpec, WhenChanged
from chordage.orchestrator.core.agent_versions import OfAgent, restored
from chordage.orchestrator.core.arrivals import QueueBound
from chordage.orchestrator.core.bus import BusRules
from chordage.orchestrator.core.deliveries import DeliveryRules, ReplyBounds
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.leases import LeaseRules
from chordage.orchestrator.core.message import Bounds
from chordage.orchestrator.core.prices import PriceList
from chordage.orchestrator.gateways.absent import NoChannels, NoPlugins, NoQueues, NoWebHooks
from chordage.orchestrator.gateways.durations import ToolDurations
from chordage.orchestrator.gateways.in_flight import InFlight
from chordage.orchestrator.gateways.ports import (
    AgentPlugins,
    Agents,
    Bus,
    Channel,
    Channels,
    Clock,
    Events,
    Locks,
    Models,
    OutputForm,
    Queues,
    Tools,
    TraceCollector,
)
from chordage.orchestrator.gateways.schedules.room_work import RoomWork
from chordage.orchestrator.gateways.steadiness import Steadiness
from chordage.orchestrator.store import agent_versions
from chordage.orchestrator.store.database import Store, Tx

log = structlog.get_logger()

NO_PLUGINS = NoPlugins()


FIRST_BATCH = 50


@dataclass(slots=True)
class Patrol:
    """Where the last sweep of this process stopped. In memory only: another process begins with the first line."""

    thread_id: str = ""
    pruned_to: str = ""  # the turn that was looked at last
    prune_at: datetime | None = None  # after a look at all old turns, the time of the next
    prune_batch: int = FIRST_BATCH  # turns of one transaction


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    store: Store
    agents: Agents
    models: Models
    tools: Tools
    locks: Locks
    events: Events
    clock: Clock
    new_id: Callable[[], str]
    worker: str
    budgets: dict[Group, int]
    hands_on: bool = False  # a run that ends here starts the next turn of its group in the same transaction
    leases: LeaseRules = field(default_factory=LeaseRules)
    bounds: Bounds = field(default_factory=Bounds)
    queue_bounds: Mapping[Group, QueueBound] = field(default_factory=dict)  # of the groups that have one
    queues: Queues = field(default_factory=NoQueues)
    in_flight: InFlight = field(default_factory=InFlight)
    patrol: Patrol = field(default_factory=Patrol)
    version: str | None = None  # of Chordage
    noted_versions: set[str] = field(default_factory=set)  # digests of agents that this process has put on record
    pinned_agents: dict[str, tuple[AgentSpec, AgentSpec]] = field(default_factory=dict)  # by digest: today's, and it
    durations: ToolDurations = field(default_factory=ToolDurations)
    heart: Store | None = None  # for the heartbeat alone, so that it waits for no connection; None: `store`
    steadiness: Steadiness | None = None  # None: leases of others are judged at any time
    plugin_sets: Callable[[AgentSpec], AgentPlugins] = lambda _agent: NO_PLUGINS  # the plugins of an agent
    work: RoomWork | None = None  # tasks, chores and the will
    prices: Callable[[], PriceList] = dict  # of models, as the room says now
    outputs: Callable[[AgentSpec], OutputForm | None] = lambda _agent: None  # what its final answer has to be
    channels: Channels = field(default_factory=NoChannels)
    replies: ReplyBounds = field(default_factory=ReplyBounds)  # of callers
    web_hooks: Channel = field(default_factory=NoWebHooks)  # of reply targets that name a URL
    bus: Bus | None = None  # None: there is no Redis
    collector: TraceCollector | None = None  # of the spans of ended runs; None: they are not sent
    bus_rules: BusRules = field(default_factory=BusRules)
    delivery: DeliveryRules = field(default_factory=DeliveryRules)
    audit_keep: timedelta | None = None  # how long it is kept who did what; None: for ever
    turn_keep: timedelta | None = None  # how long turns are kept after their end; None: for ever
    dedupe_keep: timedelta = timedelta(days=30)  # how long at least those with a dedupe key

    def now(self) -> datetime:
        return self.clock()

    def agent_of(self, of: OfAgent, tx: Tx | None = None) -> AgentSpec:
        """The agent of a run. `tx`: where the caller has a connection already. Raises what `Agents.get` raises."""
        today, digest = self.agents.get(of.agent), of.agent_digest
        if digest is None or digest == today.digest or today.when_changed is WhenChanged.FOLLOW:
            return today
        known = self.pinned_agents.get(digest)
        if known is None or known[0] is not today:
            known = self.pinned_agents[digest] = (today, self._stored(of.agent, digest, today, tx))
        return known[1]

    def _stored(self, name: str, digest: str, today: AgentSpec, tx: Tx | None) -> AgentSpec:
        if tx is None:
            with self.store.read() as reading:
                version = agent_versions.load(reading, name, digest)
        else:
            version = agent_versions.load(tx, name, digest)
        spec = None if version is None else restored(version, today)
        if spec is None:
            why = "not on record" if version is None else "of another release, or it hides what today's file lacks"
            log.warning("runs continue with the version of today", agent=name, version=digest, theirs=why)
            return today
        return spec

    def has_plugins(self, agent: AgentSpec) -> bool:
        return bool(self.plugin_sets(agent).ids)
