"""A stepped turn in lines for people: where it stands with its consumer, and what that has said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chordage.orchestrator.views.runs import ConsumerSteerStep, PushedStep
from chordage.orchestrator.views.stepped import SteppedView
from chordage.workers.cli.showing_calls import clock, indented, moment, short


def driven_lines(shown: SteppedView) -> Iterator[str]:
    limit = "" if shown.max_iterations is None else f" of {shown.max_iterations}"
    until = f", until {moment(shown.held_until)}" if shown.held_until else ""
    asked = f"{shown.iteration}{limit} requests answered"
    yield ""
    yield f"driven by its consumer: {shown.standing.value}, drive {shown.drive.value}, {asked}, rev {shown.rev}{until}"
    for name, value in (("params", shown.params), ("options", shown.options), ("error", shown.error)):
        if value:
            yield f"  {name:<8}{short(value)}"
    if shown.replaces:
        yield "  pending the history is given anew:"
    yield from (f"  pending {line}" for line in message_lines(shown.pending))
    yield from (f"  pending behind the results, {text}" for text in map(short, shown.steers))
    yield from (f"  call    {ask_id}: {_verdict(said)}" for ask_id, said in shown.verdicts.items())
    if shown.plan is not None:
        ends = f"ends: {shown.plan.ends}" if shown.plan.ends else _named(shown.plan.commands)
        yield f"  plan    round {shown.plan.round}, {ends}"


def pushed_lines(step: PushedStep | ConsumerSteerStep) -> Iterator[str]:
    at = f", {clock(step.at)}" if step.at else ""
    if isinstance(step, ConsumerSteerStep):
        yield f"  {step.number}  steered  by its consumer{at}"
        for text in step.texts:
            yield from indented(text, "     ")
        return
    anew = ", in place of all that was said before" if step.replaces else ""
    count = f"{len(step.messages)} message{'' if len(step.messages) == 1 else 's'}"
    yield f"  {step.number}  pushed  by its consumer, {count}{anew}{at}"
    yield from (f"     {line}" for line in message_lines(step.messages))


def message_lines(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in messages:
        match one:
            case {"role": "tool", "ask_id": ask_id, "content": content}:
                failed = " (failed)" if one.get("is_error") else ""
                yield f"result of {ask_id}{failed}: {short(content)}"
            case {"role": "assistant"}:
                asks = ", ".join(ask["name"] for ask in one.get("asks") or ())
                which = "the reply that was held" if one.get("linked") else "assistant"
                yield f"{which}: {short(one['text'])}{f' [asks for {asks}]' if asks else ''}"
            case _:
                yield f"{one['role']}: {short(one['text'])}"


def _named(commands: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(one["tool_name"]) for one in commands)


def _verdict(said: Mapping[str, Any]) -> str:
    match said:
        case {"kind": "result", "content": content}:
            return f"has a result of its consumer's: {short(content)}"
        case {"kind": "deny"}:
            return f"denied{': ' + short(said['reason']) if said.get('reason') else ''}"
        case _:
            return "held back"
