"""The same chord with its checkpoints in SQL, as a team writes it with SQLAlchemy's ORM: short sessions, a commit
per step.

A turn of one round of four calls makes 13 commits: turn and message, turn running, reply with its calls, each call
running and done, results as messages, the end.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from celery import Celery, Task, chord
from sqlalchemy import JSON, ForeignKey, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, sessionmaker

from chordage.benchmarks import chord_by_hand
from chordage.benchmarks.workload import TurnShape


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSON}  # noqa: RUF012 - SQLAlchemy's way


def _now() -> datetime:
    return datetime.now(UTC)


class ChordRun(Base):
    __tablename__ = "by_hand_runs"
    id: Mapped[str] = mapped_column(primary_key=True)
    thread: Mapped[str] = mapped_column(index=True)
    status: Mapped[str]
    rounds: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(default=_now)
    updated_at: Mapped[datetime] = mapped_column(default=_now, onupdate=_now)
    calls: Mapped[list[ChordToolCall]] = relationship(back_populates="run", order_by="ChordToolCall.id")


class ChordMessage(Base):
    __tablename__ = "by_hand_messages"
    id: Mapped[int] = mapped_column(primary_key=True)
    thread: Mapped[str] = mapped_column(index=True)
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(default=_now)


class ChordToolCall(Base):
    __tablename__ = "by_hand_calls"
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("by_hand_runs.id"), index=True)
    round: Mapped[int]
    body: Mapped[dict[str, Any]]
    status: Mapped[str]
    result: Mapped[dict[str, Any] | None]
    updated_at: Mapped[datetime] = mapped_column(default=_now, onupdate=_now)
    run: Mapped[ChordRun] = relationship(back_populates="calls")


class Rows:
    """Sessions on one database. An engine opens nothing before it is used, so a fork inherits no connection."""

    def __init__(self, url: str) -> None:
        pool = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_size": 32}
        self.engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), **pool)
        self.session: sessionmaker[Session] = sessionmaker(self.engine)

    def create(self) -> None:
        Base.metadata.create_all(self.engine)

    def submit(self, thread: str, text: str) -> str:
        with self.session() as db:
            run = ChordRun(id=str(uuid.uuid4()), thread=thread, status="queued")
            db.add_all([run, ChordMessage(thread=thread, body={"role": "user", "text": text})])
            db.commit()
            return run.id

    def remember(self, thread: str, texts: list[str]) -> None:
        with self.session() as db:
            db.add_all([ChordMessage(thread=thread, body={"role": "user", "text": text}) for text in texts])
            db.commit()


def make_app(redis_url: str, shape: TurnShape, database_url: str) -> Celery:
    app = chord_by_hand.make_app(redis_url, shape)
    _register(app, shape, Rows(database_url))
    return app


def _register(app: Celery, shape: TurnShape, rows: Rows) -> None:
    @app.task(name="by_hand.rows.start", bind=True)
    def start(self: Task[Any, Any], run_id: str) -> str:
        with rows.session() as db:
            run = db.get_one(ChordRun, run_id)
            run.status = "running"
            db.commit()
            return _step(self, db, run)

    @app.task(name="by_hand.rows.tool")
    def tool(call_id: int) -> int:
        with rows.session() as db:
            call = db.get_one(ChordToolCall, call_id)
            call.status = "running"
            db.commit()
            time.sleep(shape.tool_delay) if shape.tool_delay else None
            call.result = chord_by_hand.RESULT
            call.status = "done"
            db.commit()
            return call.id

    @app.task(name="by_hand.rows.collect", bind=True)
    def collect(self: Task[Any, Any], call_ids: list[int], run_id: str) -> str:
        with rows.session() as db:
            run = db.get_one(ChordRun, run_id)
            done = db.scalars(
                select(ChordToolCall).where(ChordToolCall.id.in_(call_ids)).order_by(ChordToolCall.id)
            ).all()
            db.add_all(
                [ChordMessage(thread=run.thread, body={"role": "tool", "content": call.result}) for call in done]
            )
            run.rounds += 1
            db.commit()
            return _step(self, db, run)

    def _step(task: Task[Any, Any], db: Session, run: ChordRun) -> str:
        db.scalars(
            select(ChordMessage).where(ChordMessage.thread == run.thread).order_by(ChordMessage.id)
        ).all()  # the prompt
        db.commit()  # no connection is held during the model call
        reply = chord_by_hand.model(shape, run.rounds)
        db.add(ChordMessage(thread=run.thread, body=reply))
        calls = [ChordToolCall(run=run, round=run.rounds, body=call, status="new") for call in reply["calls"]]
        db.add_all(calls)
        if not calls:
            run.status = "done"
        db.commit()
        if not calls:
            return str(reply["text"])
        raise task.replace(chord([tool.s(call.id) for call in calls], collect.s(run.id)))


if __name__ == "__main__":
    chord_by_hand.run_worker(lambda redis_url, shape: make_app(redis_url, shape, os.environ[chord_by_hand.DATABASE]))
