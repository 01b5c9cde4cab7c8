"""Webhooks of the room: the bindings of hooks.toml with their counts. No secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.signatures import Form
from chordage.orchestrator.gateways.webhooks.bindings import HooksFile
from chordage.orchestrator.gateways.webhooks.stats import DeliveryCounts


@dataclass(frozen=True, kw_only=True, slots=True)
class HookView:
    """A binding. Without counts, Redis does not answer. `fault`: it is closed until that is repaired."""

    name: str
    path: str | None
    fault: str | None = None
    method: str | None = None
    signature: Form | None = None
    agent: str | None = None
    origin: Origin | None = None
    sender: Sender | None = None
    accepted: int | None = None
    refused: dict[str, int] | None = None  # by cause
    last_at: datetime | None = None  # of the last delivery that was accepted
    last_turn: str | None = None


def hooks(file: HooksFile, counts: Mapping[str, DeliveryCounts]) -> list[HookView]:
    views = []
    for binding in file.bindings:
        counted = counts.get(binding.name)
        numbers = counted.as_json() if counted else {}
        last = numbers.get("last") or {}
        views.append(
            HookView(
                name=binding.name, path=binding.path, method=binding.method, signature=binding.seal.form,
                agent=binding.agent, origin=binding.origin, sender=binding.sender, accepted=numbers.get("accepted"),
                refused=numbers.get("refused"), last_at=datetime.fromisoformat(last["at"]) if last else None,
                last_turn=last.get("turn"),
            )
        )  # fmt: skip
    views += [HookView(name=broken.name, path=broken.path, fault=str(broken.fault)) for broken in file.broken]
    return sorted(views, key=lambda view: view.name)
