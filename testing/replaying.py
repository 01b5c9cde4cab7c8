"""Replaying: a recorded run becomes a test. Its model and tools answer from the record; the agent is as it is now.

The record is the document of `GET /runs/{id}/export`. What the agent does now is compared with it step by step: which
calls ran with which arguments and what came of them, which questions were asked, and how the run ended. It does not
hold what the model was told, so a change of the instructions alone is no difference.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chordage.orchestrator import views
from chordage.orchestrator.core.approvals import OnExpiry, Question, ResumeMode, Why
from chordage.orchestrator.core.model import Prompt, Reply, StopReason, ToolAsk, Usage
from chordage.orchestrator.gateways.models.script import PromptPosition
from chordage.orchestrator.gateways.models.wire import AttemptContext
from chordage.orchestrator.gateways.ports import CallOrder, ToolOutcome
from chordage.orchestrator.views.exports import FORMAT
from chordage.testing.world import Answers, World

CANNOT = {
    "steered": "messages joined the run while it worked",
    "pushed": "a consumer drove it",
    "steered_by_consumer": "a consumer drove it",
    "compaction": "its conversation was summarised",
    "interrupted": "it was ended from outside",
}


class ReplayRefused(ValueError):
    """The document cannot be replayed."""


class ReplayDiffers(AssertionError):
    """The agent does something else than was recorded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """The agent does as was recorded."""

    steps: int
    calls: int


@dataclass(frozen=True, slots=True)
class _Fact:
    """One thing that happened in a run: `what` names it, `value` is compared."""

    what: str
    value: Any


def exported(world: World, turn_id: str) -> dict[str, Any]:
    """The document of the turn's run."""
    run_id = world.turn(turn_id).run_id
    if run_id is None:
        raise ReplayRefused(f"turn {turn_id} has no run yet: call world.run()")
    document: dict[str, Any] = json.loads(json.dumps(asdict(views.export(world.engine.store, run_id)), default=str))
    return document


def replay(
    record: Mapping[str, Any] | Path | str,
    define: Callable[[World], object] | None = None,
    *,
    room: Path | str | None = None,
    run_tools: bool = False,
) -> Replay:
    """`record`: the document, or the path of a file with it. `define`: defines the agents with `world.agent`; or give
    the folder of a `room`. `run_tools`: carry the tools out, instead of answering from the record. Raises ReplayDiffers
    with the first difference.
    """
    document = _read(record)
    runs = [document["root"], *document["children"]]
    tapes = [_RunTape(run) for run in runs]
    with closing(World(room=room)) as world:
        if define is not None:
            define(world)
        speaker = _RecordedModel(tapes)
        world.speaks = speaker
        if not run_tools:
            world.answers = _answers(tapes)
        turn = document["root"]["turn"]
        turn_id = world.submit(
            turn["text"], thread=None, agent=turn["agent"], strategy=turn["strategy"], meta=turn["meta"]
        )
        world.run()
        while questions := world.inbox():
            for question in questions:
                _decide(world, question, tapes)
            world.run()
        now = exported(world, turn_id)
    return _compare(document, now, speaker.surplus)


def _read(record: Mapping[str, Any] | Path | str) -> Mapping[str, Any]:
    try:
        document = record if isinstance(record, Mapping) else json.loads(Path(record).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReplayRefused(f"{record}: cannot be read as the export of a run: {error}") from error
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise ReplayRefused(f"this is no export of a run: its format is not {FORMAT!r}. GET /runs/ID/export has one")
    for run in (document["root"], *document["children"]):
        _check(run["turn"], run["run"])
    if document["left_out"]:
        raise ReplayRefused(
            f"the export is not complete, so it cannot be replayed: it leaves out {document['left_out']}"
        )
    return document


def _check(turn: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    name = run["run_id"]
    if turn["text"] is None or turn.get("payloads") is False:
        raise ReplayRefused(f"run {name} was exported without its texts: use a key with the scope payloads")
    if run["status"] != "done":
        raise ReplayRefused(f"run {name} is {run['status']}: export it when it is done")
    if run["fork_of"] is not None:
        raise ReplayRefused(f"run {name} is a fork: replay the run that it is a fork of, {run['fork_of']}")
    for step in run["steps"]:
        why = CANNOT.get(step["kind"]) or ("it planned" if step.get("plan") else None)
        asked = [call["question"] for call in step.get("calls", ()) if call["question"] is not None]
        if any(question["why"] == Why.UNKNOWN for question in asked):
            why = "a worker died in an unsafe call of it"
        if why is not None:
            raise ReplayRefused(f"run {name} cannot be replayed: {why} (step {step['number']})")


class _RunTape:
    """What was recorded of one run, in the order in which it is needed."""

    def __init__(self, recorded: Mapping[str, Any]) -> None:
        steps = recorded["run"]["steps"]
        self.text: str = recorded["turn"]["text"]
        self.inferences = deque(step for step in steps if step["kind"] == "inference")
        self._rounds = {step["number"]: step["calls"] for step in steps if step["kind"] == "tool_round"}
        self.calls = [call for calls in self._rounds.values() for call in calls]

    def asked_at(self, step: int) -> Sequence[Mapping[str, Any]]:
        """The calls that the reply of this step asked for."""
        calls: Sequence[Mapping[str, Any]] = self._rounds.get(step + 1, ())
        return calls


def _recorded_call(tapes: Sequence[_RunTape], row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The same call of the record. Two runs may use the same ids: then that with the same arguments."""
    wanted = tuple(row[name] for name in ("tool", "ask_id", "generation"))
    calls = [
        call for tape in tapes for call in tape.calls if (call["tool"], call["ask_id"], call["generation"]) == wanted
    ]
    return next((call for call in calls if call["arguments"] == row["arguments"]), calls[0] if calls else None)


class _RecordedModel:
    """Says in every run what was said in it, one reply after the other."""

    def __init__(self, tapes: Sequence[_RunTape]) -> None:
        self._tapes = tapes
        self.surplus: str | None = None  # a question for which nothing is recorded

    def attempt(self, prompt: Prompt, context: AttemptContext) -> Reply:
        context.abort.check()
        user = PromptPosition.of(prompt).user
        tape = next((tape for tape in self._tapes if tape.text == user and tape.inferences), None)
        if tape is None:
            self.surplus = self.surplus or f"the model is asked once more, to {user[:80]!r}"
            return Reply(text="", asks=(), stop=StopReason.END, model="recorded")
        step = tape.inferences.popleft()
        asks = tuple(
            ToolAsk(id=call["ask_id"], name=call["tool"], arguments=call["arguments"])
            for call in tape.asked_at(step["number"])
        )
        text = step["text"] or ""
        context.delta(text)
        stop = StopReason(step["stop"] or StopReason.END)
        return Reply(text=text, asks=asks, stop=stop, model=step["model"] or "recorded", usage=Usage())


def _answers(tapes: Sequence[_RunTape]) -> Answers:
    """What each call was answered. A call of which nothing is recorded is not carried out."""

    def answer(order: CallOrder, row: Mapping[str, Any]) -> ToolOutcome | None:
        call = _recorded_call(tapes, row)
        if call is None:
            return None
        question = call["question"]
        if question is not None and question["why"] == Why.TOOL and order.decision is None:
            asked = Question(
                why=Why.TOOL, prompt=question["prompt"], schema=question["schema"],
                resume_mode=ResumeMode(question["resume_mode"]), on_expiry=OnExpiry(question["on_expiry"]),
            )  # fmt: skip
            return ToolOutcome(content=asked.prompt, question=asked)
        return ToolOutcome(content=call["content"] or "", code=call["code"])

    return answer


def _decide(world: World, question: views.OpenQuestion, tapes: Sequence[_RunTape]) -> None:
    """As it was decided then."""
    call = _recorded_call(tapes, world.engine.row("calls", id=question.call_id))
    recorded = None if call is None else call["question"]
    if recorded is None or recorded["answer"] is None:
        now = f"{question.tool}({json.dumps(question.arguments)}) asks for a decision: {question.prompt}"
        raise ReplayDiffers(f"the run does not replay.\n  recorded  no decision was asked for\n  now       {now}")
    answer = recorded["answer"]
    if answer["action"] == "cancel":
        world.deny(question, answer["reason"])
    else:
        world.decide(question, answer["payload"], edited=answer["edited_args"], reason=answer["reason"])


# Comparing


def _compare(recorded: Mapping[str, Any], now: Mapping[str, Any], surplus: str | None) -> Replay:
    facts = [list(_facts(document)) for document in (recorded, now)]
    for then, fact in zip(*facts, strict=False):
        if then != fact:
            raise _differs(then, fact)
    longer, shorter = sorted(facts, key=len, reverse=True)
    if len(longer) != len(shorter) or surplus is not None:
        extra = longer[len(shorter)] if len(longer) != len(shorter) else _Fact(surplus or "", None)
        nothing = _Fact("nothing more", None)
        raise _differs(*((extra, nothing) if longer is facts[0] else (nothing, extra)))
    steps = [step for run in (now["root"], *now["children"]) for step in run["run"]["steps"]]
    return Replay(steps=len(steps), calls=sum(len(step["calls"]) for step in steps if step["kind"] == "tool_round"))


def _differs(then: _Fact, now: _Fact) -> ReplayDiffers:
    where = then.what if then.what == now.what else f"{then.what}, or {now.what}"
    return ReplayDiffers(
        f"the run does not replay: {where}\n  recorded  {_shown(then, now)}\n  now       {_shown(now, then)}"
    )


def _shown(fact: _Fact, other: _Fact) -> str:
    return json.dumps(fact.value, ensure_ascii=False) if fact.what == other.what else fact.what


def _facts(document: Mapping[str, Any]) -> Iterator[_Fact]:
    for recorded in (document["root"], *document["children"]):
        run, turn = recorded["run"], recorded["turn"]
        of = f" of {run['agent']}" if document["children"] else ""
        for step in run["steps"]:
            place = f"step {step['number']}{of}"
            if step["kind"] == "inference":
                yield _Fact(f"{place}, the text of the reply", step["text"])
                yield _Fact(f"{place}, why it was refused as output", step["refused"])
            elif step["kind"] == "tool_round":
                for call in step["calls"]:
                    yield from _facts_of_call(f"{place}, call of {call['tool']}", call)
        for name in ("disposition", "reason", "code", "answer", "output"):
            yield _Fact(f"the {name} at the end{of}", turn[name])


def _facts_of_call(place: str, call: Mapping[str, Any]) -> Iterator[_Fact]:
    question = call["question"]
    yield _Fact(f"{place}, its arguments", call["arguments"])
    yield _Fact(f"{place}, its question", None if question is None else [question["why"], question["prompt"]])
    yield _Fact(f"{place}, its status", [call["status"], call["code"]])
    yield _Fact(f"{place}, its result", call["content"])
