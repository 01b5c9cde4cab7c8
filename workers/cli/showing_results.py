"""Stored results of tool calls on the terminal, whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chordage.orchestrator.store.database import Store
    from chordage.orchestrator.views import ResultView


def of_call(store: Store, call_id: str) -> ResultView:
    """In one piece."""
    from dataclasses import replace

    from chordage.orchestrator import views

    parts = list(views.result_parts(store, call_id))
    return replace(parts[0], text="".join(part.text for part in parts), next_offset=None)


def of_run(store: Store, run_id: str) -> list[ResultView]:
    from chordage.orchestrator import views

    return [of_call(store, call_id) for call_id in views.shortened_results(store, run_id)]


def lines_of(results: Iterable[ResultView]) -> Iterator[str]:
    for one in results:
        yield ""
        yield f"result of {one.tool}, call {one.call_id} ({one.total} characters):"
        yield one.text
