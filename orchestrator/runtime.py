"""What a stage may use: built once per process, never changed, and all there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from chordage.orchestrator.core.agent import AgentSpec
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
from chordage.orchestrator.store.database import Store

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

    def has_plugins(self, agent: AgentSpec) -> bool:
        return bool(self.plugin_sets(agent).ids)
