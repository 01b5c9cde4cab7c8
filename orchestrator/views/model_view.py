"""What the model read at a step of a run: the messages of its prompt, in order, without the instructions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from chordage.orchestrator.core import transcript
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.model import AssistantSays, Said, ToolSays, UserSays
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.store import calls, journal, runs
from chordage.orchestrator.store.database import Store

MOST_ENTRIES = 2_000
_REPLIES = (Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN, Checkpoint.REPLY_HELD)


class SpeakerRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    NOTE = "note"  # written by the engine, in the place of a user's words


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptMessage:
    role: SpeakerRole
    text: str
    tool: str | None = None  # of a result
    failed: bool = False
    arguments: tuple[dict[str, Any], ...] = ()  # of the calls that a reply asked for, each with its tool


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptView:
    """Results are as they are now: of a call that waited then, the model read that it waits."""

    run_id: str
    thread_id: str
    agent: str
    step: int
    messages: tuple[PromptMessage, ...]


def prompt_at(store: Store, run_id: str, step: int) -> PromptView:
    """Before the reply with that number. Raises NotFound where no reply is recorded."""
    with store.read() as tx:
        run = runs.load(tx, run_id)
        replies = [entry for entry in journal.of_run(tx, run_id) if entry.step == step and entry.kind in _REPLIES]
        if run is None or not replies:
            raise NotFound(f"run {run_id!r} has no reply at step {step}")
        entries = journal.history_before(tx, run.thread_id, replies[0].id, MOST_ENTRIES)
        asked = [(entry.run_id, entry.step + 1) for entry in entries if entry.kind in _REPLIES]
        answers = calls.of_rounds(tx, asked)
    said = transcript.build(entries, answers)
    return PromptView(
        run_id=run_id, thread_id=run.thread_id, agent=run.agent, step=step,
        messages=tuple(_message(one) for one in said),
    )  # fmt: skip


def _message(said: Said) -> PromptMessage:
    match said:
        case UserSays():
            role = SpeakerRole.NOTE if transcript.is_note(said) else SpeakerRole.USER
            return PromptMessage(role=role, text=said.text)
        case AssistantSays():
            asks = tuple({"tool": ask.name, "arguments": ask.arguments} for ask in said.asks)
            return PromptMessage(role=SpeakerRole.ASSISTANT, text=said.text, arguments=asks)
        case ToolSays():
            return PromptMessage(role=SpeakerRole.TOOL, text=said.content, tool=said.name, failed=said.is_error)
        case _:
            assert_never(said)
