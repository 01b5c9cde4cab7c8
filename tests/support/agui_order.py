"""The order of AG-UI events that the clients enforce, and the messages that they make of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

ENDS = {"RUN_FINISHED", "RUN_ERROR"}
OPENS = {
    "TEXT_MESSAGE_START": "messageId", "TOOL_CALL_START": "toolCallId", "STEP_STARTED": "stepName",
    "SUBAGENT_STARTED": "subagentRunId", "REASONING_MESSAGE_START": "messageId",
}  # fmt: skip
USES = {
    "TEXT_MESSAGE_CONTENT": "messageId", "TOOL_CALL_ARGS": "toolCallId", "REASONING_MESSAGE_CONTENT": "messageId",
}  # fmt: skip
SPANS = {"REASONING_START": True, "REASONING_END": False}  # around a message of reasoning
CLOSES = {
    "TEXT_MESSAGE_END": "messageId", "TOOL_CALL_END": "toolCallId", "STEP_FINISHED": "stepName",
    "SUBAGENT_FINISHED": "subagentRunId", "SUBAGENT_ERROR": "subagentRunId",
    "REASONING_MESSAGE_END": "messageId",
}  # fmt: skip


def check(events: Iterable[Mapping[str, Any]]) -> None:
    events = list(events)
    opened: set[tuple[str, str]] = set()
    sub_agents: set[str] = set()  # of this run, at work or not
    span: str | None = None
    assert events[0]["type"] == "RUN_STARTED"
    assert [event["type"] for event in events if event["type"] in ENDS] == [events[-1]["type"]], "one end, at the end"
    for event in events:
        kind = event["type"]
        assert None not in event.values(), event
        for names, is_open in ((OPENS, False), (USES, True), (CLOSES, True)):
            if kind in names:
                assert ((names[kind], event[names[kind]]) in opened) is is_open, event
        if kind in OPENS:
            opened.add((OPENS[kind], event[OPENS[kind]]))
        if kind in CLOSES:
            opened.remove((CLOSES[kind], event[CLOSES[kind]]))
        if kind in {"TEXT_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT"}:
            assert event["delta"]
        if kind in SPANS:
            assert span == (None if SPANS[kind] else event["messageId"])
            span = event["messageId"] if SPANS[kind] else None
        if kind.startswith("TEXT_MESSAGE"):
            assert span is None, "reasoning ends before the text begins"
        if kind.startswith("REASONING_MESSAGE"):
            assert span == event["messageId"]
        if kind == "SUBAGENT_STARTED":
            assert event["name"]
            assert event["subagentRunId"] not in sub_agents, "an id is used once in a run"
            assert event.get("parentSubagentRunId") in {None, *sub_agents}
            sub_agents.add(event["subagentRunId"])
        if kind == "RUN_FINISHED":
            askers = {interrupt.get("subagentRunId") for interrupt in event["outcome"].get("interrupts", ())}
            assert askers <= {None, *sub_agents}, "the sub-agent of a question is named before"
            assert not opened
            assert span is None
            assert event["outcome"]["type"] != "interrupt" or event["outcome"]["interrupts"]


def messages_of(events: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """As the reducer of the client makes them, without activities."""
    messages: list[dict[str, Any]] = [dict(message) for message in before]
    for event in events:
        by_id = {message["id"]: message for message in messages}
        match event["type"]:
            case "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START":
                if event["messageId"] not in by_id:
                    messages.append({"id": event["messageId"], "role": event["role"], "content": ""})
            case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                message = by_id[event["messageId"]]
                message["content"] = message.get("content", "") + event["delta"]
            case "TOOL_CALL_START":
                parent = by_id.get(event["parentMessageId"])
                if parent is None:
                    parent = {"id": event["parentMessageId"], "role": "assistant"}
                    messages.append(parent)
                call = {"id": event["toolCallId"], "function": {"name": event["toolCallName"], "arguments": ""}}
                assert call["id"] not in {one["id"] for one in parent.get("toolCalls", [])}
                parent.setdefault("toolCalls", []).append(call)
            case "TOOL_CALL_ARGS":
                calls = [call for message in messages for call in message.get("toolCalls", [])]
                call = next(call for call in calls if call["id"] == event["toolCallId"])
                call["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                place = next(
                    place + 1
                    for place, message in enumerate(messages)
                    if any(call["id"] == event["toolCallId"] for call in message.get("toolCalls", []))
                )
                while place < len(messages) and messages[place]["role"] == "tool":
                    place += 1
                result = {"id": event["messageId"], "role": "tool", "toolCallId": event["toolCallId"]}
                messages.insert(place, {**result, "content": event["content"]})
            case "MESSAGES_SNAPSHOT":
                # The clients keep reasoning that a snapshot leaves out, unless it has other reasoning.
                news = [json.loads(json.dumps(message)) for message in event["messages"]]
                has_reasoning = any(message["role"] == "reasoning" for message in news)
                kept = [] if has_reasoning else [one for one in messages if one["role"] == "reasoning"]
                messages = [*news, *kept]
    return messages


def said(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """In the form of `support.moments.transcript`."""
    spoken: list[dict[str, Any]] = []
    for message in messages:
        match message["role"]:
            case "assistant":
                calls = [
                    {
                        "id": call["id"], "tool": call["function"]["name"],
                        "arguments": json.loads(call["function"]["arguments"]),
                    }
                    for call in message.get("toolCalls") or []
                ]  # fmt: skip
                spoken.append({"role": "assistant", "text": message.get("content") or "", "calls": calls})
            case "tool":
                spoken.append({"role": "tool", "call": message["toolCallId"], "text": message["content"]})
            case "user":
                spoken.append({"role": "user", "text": message["content"]})
    return spoken


def reasoned(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """In the form of `support.moments.reasoned`."""
    return [message["content"] for message in messages if message["role"] == "reasoning" and message["content"]]
