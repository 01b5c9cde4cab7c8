"""The inbox over HTTP: what waits for a decision can be read, and decided about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import FastAPI, Query
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from chordage.orchestrator.core.approvals import Action, DecisionRequest, Why
from chordage.orchestrator.loops.fields import JsonObject, JsonValue, Name, Words
from chordage.orchestrator.loops.problems import documented
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.views import OpenQuestion

AT_ONCE = 1000  # decisions in one batch


class DecisionBody(BaseModel):
    """An answer to a question about a call."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"target": "the id of a suspension", "action": "resume", "payload": True}]},
    )

    target: Annotated[
        Name,
        Field(
            validation_alias=AliasChoices("target", "id"),
            description="The id of the suspension, or of its call. `id` is read as well.",
        ),
    ]
    action: Annotated[
        Action,
        Field(description="`resume`: the call goes on. `cancel`: it is denied. `approve` and `deny` are read as well."),
    ]
    payload: Annotated[JsonValue, Field(description="The answer; it has to fit the `schema` of the question.")] = None
    edited_args: Annotated[JsonObject | None, Field(description="Arguments to go on with instead.")] = None
    reason: Annotated[Words | None, Field(description="Of a denial the model is told it.")] = None
    decision_key: Annotated[
        Name | None, Field(min_length=1, description="The same key and answer again change nothing.")
    ] = None

    def request(self) -> DecisionRequest:
        return DecisionRequest(
            target=self.target, action=self.action, payload=self.payload, edited_args=self.edited_args,
            reason=self.reason, key=self.decision_key,
        )  # fmt: skip


class DecisionBatch(BaseModel):
    """Decisions that are stored together, or not at all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decisions: Annotated[tuple[DecisionBody, ...], Field(min_length=1, max_length=AT_ONCE)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inbox:
    questions: list[OpenQuestion]
    next: str | None  # give it as `after` for the next page; none: this is the last


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    decisions: list[Decided]


class ReadInbox(Protocol):
    def __call__(
        self,
        *,
        limit: int,
        agent: str | None,
        thread_id: str | None,
        run_id: str | None,
        root_thread: str | None,
        root_run: str | None,
        why: Why | None,
        after: str | None,
    ) -> list[OpenQuestion]: ...


Decide = Callable[[Sequence[DecisionRequest]], list[Decided]]


def add_decisions(app: FastAPI, read: ReadInbox, decide: Decide) -> None:
    @app.get("/inbox", summary="Read what waits for a decision", responses=documented(403, 404, 421, 422, 500, 503))
    def inbox(
        *,
        agent: Name | None = None,
        thread_id: Name | None = None,
        run_id: Name | None = None,
        root_thread: Annotated[
            Name | None, Query(description="Of this thread, and of all sub-agents below it.")
        ] = None,
        root_run: Annotated[Name | None, Query(description="Of this run, and of all sub-agents below it.")] = None,
        why: Why | None = None,
        after: Annotated[Name | None, Query(description="The `next` of the page before.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> Inbox:
        """Oldest first, over all threads."""
        found = read(
            limit=limit, agent=agent, thread_id=thread_id, run_id=run_id, root_thread=root_thread, root_run=root_run,
            why=why, after=after,
        )  # fmt: skip
        return Inbox(questions=found, next=found[-1].id if len(found) == limit else None)

    @app.post(
        "/decisions",
        status_code=202,
        summary="Decide about calls that wait",
        response_description="Stored. `duplicate`: it had been given before, in the same words.",
        responses=documented(400, 403, 404, 408, 409, 413, 415, 421, 422, 500, 503),
    )
    def store(batch: DecisionBatch) -> Stored:
        """All of them are stored, or none. What waited goes on."""
        return Stored(decisions=decide([body.request() for body in batch.decisions]))
