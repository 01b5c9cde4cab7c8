"""A server, and the fleet behind it: one thread of this process carries out what comes in, without Celery."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from chordage.config.settings import Settings
from chordage.orchestrator import stages, views
from chordage.orchestrator.api.server import make_server
from chordage.orchestrator.api.services import Services
from chordage.orchestrator.core.callers import LOCAL, Caller
from chordage.orchestrator.core.hosts import Hosts
from chordage.orchestrator.core.intents import Dispatch, Intent
from chordage.orchestrator.loops.server import TurnWaits
from chordage.orchestrator.runtime import Runtime
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from
from chordage.workers.streams import streams_of
from chordage.workers.turn_waiter import wait_for_turn, waiter_for
from support.web_server import served

Sent = Sequence[Intent]


@dataclass
class WorkingServer:
    """`stop_working` and `work` say whether the fleet is at work; `caller`: who every request comes from."""

    url: str
    rt: Runtime
    state: _State

    def pause_work(self) -> None:
        self.state.may_work.clear()

    def work(self) -> None:
        self.state.may_work.set()

    def be(self, **more: Any) -> None:
        self.state.caller = replace(self.state.caller, **more)


@dataclass
class _State:
    caller: Caller = LOCAL
    due: queue.Queue[Sent | None] = field(default_factory=queue.Queue)
    may_work: threading.Event = field(default_factory=threading.Event)


def streaming(settings: Settings) -> Callable[[Runtime], dict[str, Any]]:
    """What a server with Redis has besides."""

    def streams(rt: Runtime) -> dict[str, Any]:
        hub = streams_of(settings, rt, cast("Any", SimpleNamespace(send=lambda _intents: None)))
        return {"streams": hub, "events": hub}

    return streams


@contextmanager
def working_server(
    settings: Settings, more: Callable[[Runtime], dict[str, Any]] = lambda _rt: {}
) -> Iterator[WorkingServer]:
    """`more`: of the services, made of the runtime."""
    rt, state = runtime_from(settings, with_redis=settings.redis is not None), _State()
    state.may_work.set()
    worker = threading.Thread(target=_work, args=(rt, state), daemon=True)
    worker.start()
    services = Services(
        rt=rt,
        accept=_sending(state, partial(stages.admit, rt)),
        turn=partial(views.turn, rt.store),
        inbox=partial(views.inbox, rt.store),
        decide=_sending(state, partial(stages.decide, rt)),
        result=partial(views.result, rt.store),
        step=lambda order: asdict(_sending(state, partial(stages.step, rt))(order)),
        send=state.due.put,
        waits=TurnWaits(partial(wait_for_turn, waiter_for(settings), rt)),
        authenticate=lambda _headers: state.caller,
        **more(rt),
    )
    app = make_server(
        services, checks={"database": lambda: None}, bounds=rt.bounds, version="0",
        hosts=Hosts(named=frozenset(), address="127.0.0.1"),
    )  # fmt: skip
    try:
        with served(app) as client:
            yield WorkingServer(str(client.base_url).rstrip("/"), rt, state)
    finally:
        state.may_work.set()
        state.due.put(None)
        worker.join(10)
        rt.store.close()


def _sending(state: _State, stage: Callable[..., tuple[Any, Sent]]) -> Callable[..., Any]:
    def accept(*args: Any, **more: Any) -> Any:
        result, intents = stage(*args, **more)
        state.due.put(intents)
        return result

    return accept


def _work(rt: Runtime, state: _State) -> None:
    while (intents := state.due.get()) is not None:
        state.may_work.wait()
        for intent in intents:
            due = stages.dispatch(rt, intent.group, intent.hint) if isinstance(intent, Dispatch) else [intent]
            local.carry_out(rt, due)
