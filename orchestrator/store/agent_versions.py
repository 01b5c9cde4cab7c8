"""Versions of agents: what each was, which processes use which, and how many open runs began with each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, delete, func, select, update

from chordage.orchestrator.core.agent_versions import AgentVersion
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import OPEN_RUNS
from chordage.orchestrator.store.schema import agent_versions, processes, runs
from chordage.orchestrator.store.statements import insert_or

LISTED = 50  # versions of an agent
AT_ONCE = 1_000  # ids of one statement


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionRow:
    digest: str
    agent: str
    first_seen_at: datetime
    first_seen_by: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRuns:
    """Of one agent that began with one version; `digest` None: not known."""

    agent: str
    digest: str | None
    number: int
    oldest: str
    oldest_at: datetime


def insert(tx: Tx, version: AgentVersion, *, now: datetime, by: str | None) -> None:
    """Unless it is there. Two that insert it at once wait for each other, and one row is written."""
    row = {
        "digest": version.digest, "agent": version.agent, "definition": dict(version.definition), "first_seen_at": now,
        "first_seen_by": by,
    }  # fmt: skip
    added = insert_or(tx.dialect.name, agent_versions).values(owned(tx, agent_versions, row))
    tx.execute(added.on_conflict_do_nothing(index_elements=["digest"]))


def of_agent(tx: Tx, agent: str, limit: int = LISTED) -> list[VersionRow]:
    """The newest first."""
    newest = agent_versions.c.first_seen_at.desc(), agent_versions.c.digest
    rows = select(*_LISTED).where(agent_versions.c.agent == agent).order_by(*newest).limit(limit)
    return [VersionRow(**row) for row in tx.execute(rows).mappings()]


def newest(tx: Tx) -> dict[str, VersionRow]:
    """Of each agent, the version that was seen last for the first time."""
    last = (
        select(agent_versions.c.agent, func.max(agent_versions.c.first_seen_at).label("at"))
        .group_by(agent_versions.c.agent)
        .subquery()
    )
    is_last = and_(agent_versions.c.agent == last.c.agent, agent_versions.c.first_seen_at == last.c.at)
    rows = tx.execute(select(*_LISTED).join(last, is_last).order_by(agent_versions.c.digest)).mappings()
    return {row["agent"]: VersionRow(**row) for row in rows}


_LISTED = [agent_versions.c[name] for name in ("digest", "agent", "first_seen_at", "first_seen_by")]


def load(tx: Tx, agent: str, digest: str) -> AgentVersion | None:
    row = tx.execute(
        select(agent_versions.c.definition).where(agent_versions.c.digest == digest, agent_versions.c.agent == agent)
    ).first()
    return None if row is None else AgentVersion(digest=digest, agent=agent, definition=row.definition)


def adopt(tx: Tx, agent: str, digest: str) -> dict[str, int]:
    """Open runs of the agent that belong to another version, or to one that is not known, belong to this one from now
    on: how many of each did. They are locked first, in the order of all.
    """
    older = and_(OPEN_RUNS, runs.c.agent == agent, func.coalesce(runs.c.agent_digest, "") != digest)
    before = tx.execute(
        select(runs.c.id, runs.c.agent_digest).where(older).order_by(runs.c.id.desc()).with_for_update()
    )
    moved = {row.id: row.agent_digest or "" for row in before}
    ids = list(moved)
    for start in range(0, len(ids), AT_ONCE):
        some = runs.c.id.in_(ids[start : start + AT_ONCE])
        tx.execute(update(runs).where(some, older).values(agent_digest=digest))
    return Counter(moved.values())


def in_use(tx: Tx) -> dict[str, Mapping[str, str]]:
    """The digests of the agents of each process that lives, by process and name of the agent."""
    rows = select(processes.c.id, processes.c.agents).where(processes.c.gone_at.is_(None))
    return {row.id: row.agents for row in tx.execute(rows) if row.agents}


def open_runs(tx: Tx, agent: str | None = None) -> list[OpenRuns]:
    """By agent and version. The rows of open runs are few: an index has them."""
    runs_of = OPEN_RUNS if agent is None else and_(OPEN_RUNS, runs.c.agent == agent)
    groups = (
        select(
            runs.c.agent, runs.c.agent_digest, func.count().label("number"), func.min(runs.c.started_at).label("first")
        )
        .where(runs_of)
        .group_by(runs.c.agent, runs.c.agent_digest)
        .subquery()
    )
    same = and_(
        runs.c.agent == groups.c.agent, runs.c.started_at == groups.c.first,
        func.coalesce(runs.c.agent_digest, "") == func.coalesce(groups.c.agent_digest, ""),
    )  # fmt: skip
    oldest = (
        select(*groups.c, func.min(runs.c.id).label("oldest")).join(runs, same).where(OPEN_RUNS).group_by(*groups.c)
    )
    return [
        OpenRuns(
            agent=row.agent, digest=row.agent_digest, number=row.number, oldest=row.oldest, oldest_at=row.first
        )
        for row in tx.execute(oldest.order_by(groups.c.agent, groups.c.first))
    ]  # fmt: skip


# Pruning.


def old(tx: Tx, before: datetime) -> list[str]:
    """Versions first seen before then that no living process uses."""
    used = {digest for digests in in_use(tx).values() for digest in digests.values()}
    rows = select(agent_versions.c.digest).where(agent_versions.c.first_seen_at < before)
    return [digest for digest in tx.execute(rows.order_by(agent_versions.c.digest)).scalars() if digest not in used]


def remove(tx: Tx, digests: Sequence[str]) -> int:
    """Those of these with which no run began. All runs are read once: an index would be written by each of their
    steps.
    """
    begun = select(runs.c.agent_digest).where(runs.c.agent_digest.is_not(None))
    gone = delete(agent_versions).where(agent_versions.c.digest.in_(digests), agent_versions.c.digest.not_in(begun))
    return tx.execute(gone).rowcount
