"""Channels: what the room binds, how far each was read, and what was refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.channels import source_of
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.gateways.ports import Agents, Channels
from chordage.orchestrator.store import polls
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.conversion import view_of


class ChannelState(StrEnum):
    BROKEN = "broken"  # in channels.toml
    NEW = "new"  # never polled
    UNATTENDED = "unattended"  # no process polls it now
    FAILING = "failing"
    RESTING = "resting"  # its queue was full
    LOOKING = "looking"
    GONE = "gone"  # no longer in channels.toml


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedMessage:
    key: str
    why: str
    excerpt: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelView:
    name: str
    plugin: str | None
    agent: str | None
    state: ChannelState
    fault: str | None = None
    error: str | None = None
    failures: int = 0
    next_look: datetime | None = None
    holder: str | None = None
    looked_at: datetime | None = None
    stored_at: datetime | None = None
    cursor: str | None = None
    taken: int = 0
    doubled: int = 0
    refused: int = 0
    passed_over: int = 0
    refusals: tuple[RefusedMessage, ...] = ()


def channels(store: Store, bound: Channels, agents: Agents, now: datetime, *, refusals: int = 20) -> list[ChannelView]:
    """The channels of channels.toml, and those that were in it once."""
    with store.read() as tx:
        rows = {row["name"]: row for row in polls.load_all(tx)}
        refused = {
            name: polls.refusals_of(tx, source_of(name), refusals) for name, row in rows.items() if row["refused"]
        }
    names = sorted({*bound.names(), *rows})
    return [_view(name, bound, agents, rows.get(name), refused.get(name, []), now) for name in names]


def channel_row(store: Store, name: str) -> dict[str, Any] | None:
    with store.read() as tx:
        return polls.load(tx, name)


def _view(
    name: str, bound: Channels, agents: Agents, row: dict[str, Any] | None, refused: list[dict[str, Any]], now: datetime
) -> ChannelView:
    plugin = agent = fault = None
    state = ChannelState.GONE
    if name in bound.names():
        try:
            terms = bound.terms(name)
            plugin, agent = terms.plugin, terms.agent
            bound.get(name)
            agent = agents.get(terms.agent).name
        except UserError as error:
            fault = str(error)
        state = _state(row, now, fault=fault)
    refusals = tuple(view_of(RefusedMessage, each) for each in refused)
    return view_of(ChannelView, row, name=name, plugin=plugin, agent=agent, state=state, fault=fault, refusals=refusals)


def _state(row: dict[str, Any] | None, now: datetime, *, fault: str | None) -> ChannelState:
    if fault is not None:
        return ChannelState.BROKEN
    if row is None:
        return ChannelState.NEW
    if row["failures"]:
        return ChannelState.FAILING
    if row["lease_until"] is None or row["lease_until"] <= now:
        return ChannelState.UNATTENDED
    return ChannelState.RESTING if row["next_look"] is not None and row["next_look"] > now else ChannelState.LOOKING
