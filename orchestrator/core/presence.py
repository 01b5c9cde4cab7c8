"""Which processes carry out work, and when each was last seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """`id` names it in the rows it holds. `machine`: where processes can look each other up by `pid`; `born` tells it
    from a later process with its number. `queues`: from which it takes messages; None: not known.
    """

    id: str
    machine: str
    pid: int
    born: str
    queues: tuple[str, ...] | None = None
    version: str | None = None  # of Chordage
    agents: Mapping[str, str] | None = None  # the digest of each agent whose turns it can carry out; None: not known
    drill: bool = False  # whether a drill may kill it


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldWork:
    """A process as it is on record, and what it holds. Work is put on record when it has lasted for some seconds."""

    id: str
    machine: str
    pid: int
    seen_at: datetime  # by its own clock
    gone_at: datetime | None
    born: str
    runs: int  # whose models it calls
    calls: int
    queues: tuple[str, ...] | None = None
    version: str | None = None
    agents: Mapping[str, str] | None = None
    drill: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    process: Process
    seen_at: datetime  # by its own clock: only whether it has changed is looked at
