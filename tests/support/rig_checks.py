"""What the rows say is compared with what the ledger of tools and models says. After everything has come to rest."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection
from datetime import datetime
from typing import Any

from support.invariants import check_all
from support.rig import Rig

REPEATABLE = {"pure", "idempotent"}
AT_ONCE = 0.5  # seconds: of two processes that took such a call from two messages, one may begin as the other ends


def check_rig(rig: Rig, *, doubled: Collection[str] = ()) -> None:
    """`doubled`: runs whose messages were delivered twice at once: what may run twice may have been begun twice."""
    check_all(rig.runtime.store)
    calls = {f"{row['run_id']}:{row['ask_id']}:{row['generation']}": row for row in rig.rows("calls")}
    # A pure call may have run for a reply that died with its process, and left nothing.
    begun = [fact for fact in rig.facts(what="tool", phase="begin") if fact["key"] in calls or fact["name"] != "pure"]
    _unsafe_tools_ran_once_at_most(begun)
    _what_may_run_again_was_completed(calls, rig.facts(what="tool", phase="end"))
    sent_once = [fact for fact in begun if fact["name"] == "unsafe" or calls[fact["key"]]["run_id"] not in doubled]
    _no_call_began_after_it_was_settled(calls, sent_once)
    _no_reply_was_asked_for_again(rig)


def _unsafe_tools_ran_once_at_most(begun: list[dict[str, Any]]) -> None:
    runs = Counter(fact["key"] for fact in begun if fact["name"] == "unsafe")
    assert [key for key, count in runs.items() if count > 1] == []


def _what_may_run_again_was_completed(calls: dict[str, dict[str, Any]], ended: list[dict[str, Any]]) -> None:
    completed = {fact["key"] for fact in ended}
    for key, row in calls.items():
        if row["effect"] in REPEATABLE:
            assert row["status"] == "succeeded", row
        assert row["status"] == "succeeded" or row["code"] == "outcome_unknown", row
        assert row["status"] != "succeeded" or key in completed, f"succeeded and never ran: {row}"


def _no_call_began_after_it_was_settled(calls: dict[str, dict[str, Any]], begun: list[dict[str, Any]]) -> None:
    late = [
        fact for fact in begun if (row := calls[fact["key"]])
        and fact["at"] > row["ended_at"].timestamp() + (AT_ONCE if row["effect"] in REPEATABLE else 0)
    ]  # fmt: skip
    assert late == [], f"finished calls ran again: {[calls[fact['key']] for fact in late]}"


def _no_reply_was_asked_for_again(rig: Rig) -> None:
    plan_of = {row["run_id"]: json.loads(row["text"])["id"] for row in rig.rows("turns")}
    replies: dict[str, list[datetime]] = defaultdict(list)
    for entry in rig.rows("journal", kind="AssistantTurnCommitted"):
        replies[plan_of[entry["run_id"]]].append(entry["at"])
    for fact in rig.facts(what="model"):
        recorded = replies[fact["plan"]][fact["index"] :]
        assert recorded, f"a reply was given and never recorded: {fact}"
        assert fact["at"] <= recorded[0].timestamp(), f"a finished model call was made again: {fact}"
