"""The spans of a tree, compared with the rows that they are made of."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from chordage.orchestrator.core import otlp
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views import spans
from support.world import World

Rows = Callable[..., list[dict[str, Any]]]

REPLIES = {"AssistantTurnCommitted", "PlanCommitted", "ReplyHeld", "HistoryCompacted", "CompactionFailed"}


class SpanDict(dict[str, Any]):
    """A span as OTLP writes it, with its attributes by name."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__(raw)
        self.of = {each["key"]: _plain(each["value"]) for each in raw["attributes"]}
        self.start, self.end = int(raw["startTimeUnixNano"]), int(raw["endTimeUnixNano"])
        self.parent = raw.get("parentSpanId")

    @property
    def operation(self) -> str | None:
        return self.of.get("gen_ai.operation.name")


def _plain(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    match kind:
        case "intValue":
            return int(content)
        case "arrayValue":
            return [_plain(each) for each in content["values"]]
        case _:
            return content


def trace_of(store: Store, run_id: str, *, contents: bool = False) -> str:
    return "".join(otlp.document(spans.trace_spans(store, run_id, contents=contents)))


def spans_in(document: str) -> list[SpanDict]:
    (of_resource,) = json.loads(document)["resourceSpans"]
    (of_scope,) = of_resource["scopeSpans"]
    return [SpanDict(raw) for raw in of_scope["spans"]]


def check_traces(world: World) -> None:
    """Of every tree there is."""
    for run in world.rows("runs"):
        if run["root_run"] is None:
            check_trace(world.store, world.rows, str(run["id"]), twice=False)


def check_trace(store: Store, rows: Rows, root: str, *, twice: bool = True) -> list[SpanDict]:
    """One tree without an orphan, that has each run, reply, call, question and lost worker once, and nothing else."""
    document = trace_of(store, root)
    assert not twice or document == trace_of(store, root), "the same rows, other bytes"
    found = spans_in(document)
    _is_one_tree(found)
    runs = [run for run in rows("runs") if root in {run["id"], run["root_run"]}]
    ids = {run["id"] for run in runs}
    of_run: dict[str, list[SpanDict]] = defaultdict(list)
    for span in found:
        of_run[span.of["chordage.run.id"]].append(span)
    assert of_run.keys() == ids
    calls = [call for call in rows("calls") if call["run_id"] in ids]
    entries = [entry for entry in rows("journal") if entry["run_id"] in ids]
    _has_each_once(found, "invoke_agent", "chordage.run.id", [run["id"] for run in runs])
    _has_each_once(found, "execute_tool", "chordage.call.id", [call["id"] for call in calls])
    _replies_are_those_of_the_journal(of_run, entries)
    asked = [row for row in rows("suspensions") if row["run_id"] in ids and row["why"] != "child"]
    waits = [span.of["chordage.question.id"] for span in found if "chordage.question.id" in span.of]
    assert Counter(waits) == Counter(row["id"] for row in asked)
    lost = Counter((row["run_id"], row["step"], row["call_id"]) for row in rows("takeovers") if row["run_id"] in ids)
    assert lost == Counter(
        (span.of["chordage.run.id"], span.of["chordage.step"], span.of.get("chordage.call.id"))
        for span in found if span["name"] == "worker_lost"
    )  # fmt: skip
    _is_within_its_parent(found, {run["id"]: run for run in runs})
    _says_what_the_rows_say(found, runs, calls)
    return found


def _is_one_tree(found: list[SpanDict]) -> None:
    by_id = {span["spanId"]: span for span in found}
    assert len(by_id) == len(found), "two spans with one id"
    assert len({span["traceId"] for span in found}) == 1
    assert [span["name"] for span in found if span.parent is None] == [found[0]["name"]], "one root, and it is first"
    seen: set[str] = set()
    for span in found:
        assert span.parent is None or span.parent in seen, f"an orphan, or a child before its parent: {span}"
        seen.add(span["spanId"])


def _has_each_once(found: list[SpanDict], operation: str, key: str, expected: Iterable[str]) -> None:
    assert Counter(span.of[key] for span in found if span.operation == operation) == Counter(expected)


def _replies_are_those_of_the_journal(of_run: dict[str, list[SpanDict]], entries: list[dict[str, Any]]) -> None:
    for run_id, found in of_run.items():
        of_this = [entry for entry in entries if entry["run_id"] == run_id]
        recorded = {entry["step"] for entry in of_this if entry["kind"] in REPLIES}
        answered = [
            span.of["chordage.step"] for span in found if span.operation == "chat" and "chordage.journal.id" in span.of
        ]
        assert Counter(answered) == Counter(recorded), f"replies of {run_id}"
        (root,) = [span for span in found if span.operation == "invoke_agent"]
        rows = [_value_of(event, "chordage.journal.id") for event in root.get("events", ())]
        rows += [span.of["chordage.journal.id"] for span in found if "chordage.journal.id" in span.of]
        assert Counter(rows) == Counter(entry["id"] for entry in of_this), "each journal row is one event or one span"


def _value_of(event: dict[str, Any], key: str) -> Any:
    return next(_plain(each["value"]) for each in event["attributes"] if each["key"] == key)


def _is_within_its_parent(found: list[SpanDict], runs: dict[str, dict[str, Any]]) -> None:
    """A sub-agent alone may end after the call that asked for it: when that was given up."""
    by_id = {span["spanId"]: span for span in found}
    for span in found:
        assert span.start <= span.end, span
        if span.parent is None:
            continue
        parent = by_id[span.parent]
        assert parent.start <= span.start, (parent, span)
        is_given_up = span.operation == "invoke_agent" and runs[span.of["chordage.run.id"]]["reason"] != "natural_end"
        assert span.end <= parent.end or is_given_up, (parent, span)


def _says_what_the_rows_say(found: list[SpanDict], runs: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    of_runs = {span.of["chordage.run.id"]: span for span in found if span.operation == "invoke_agent"}
    for run in runs:
        span = of_runs[run["id"]]
        assert span["name"] == f"invoke_agent {run['agent']}"
        assert span.of["gen_ai.usage.input_tokens"] == run["input_tokens"] - run["children_input_tokens"]
        assert ("chordage.open" in span.of) == (run["ended_at"] is None)
        assert ("error.type" in span.of) == (run["reason"] == "error") == (span["status"] == {"code": 2})
    of_calls = {span.of["chordage.call.id"]: span for span in found if span.operation == "execute_tool"}
    for call in calls:
        span = of_calls[call["id"]]
        assert span["name"] == f"execute_tool {call['tool']}"
        assert (span.of["chordage.call.status"], span.of.get("chordage.worker")) == (call["status"], call["worker"])
        assert (span["status"] == {"code": 2}) == (call["status"] == "failed")
