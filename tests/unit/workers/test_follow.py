"""What a task does with what follows from its stage."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, CallTools, Dispatch
from chordage.orchestrator.core.records import Subject
from chordage.tasks import follow as following
from chordage.tasks import names
from chordage.tasks.courier import round_body
from chordage.tasks.follow import follow
from chordage.workers.app import make_app
from chordage.workers.bootstrap import redis_from
from chordage.workers.fleet.member import free_port


def test_what_is_due_beside_a_run_that_fails_is_sent(monkeypatch):
    def fails(_rt, _run_id, _seen, _past):
        raise Unavailable("away")

    monkeypatch.setattr(stages, "advance", fails)
    rt, sent = SimpleNamespace(in_flight=SimpleNamespace(stopping=False)), []
    advance = Advance(run_id="r", group=Group.CHAT, of=Subject("t", "ada"))

    with pytest.raises(Unavailable):
        follow(rt, [advance, Dispatch(group=Group.CHAT)], sent.extend)

    assert sent == [Dispatch(group=Group.CHAT)]


def test_runs_that_are_handed_on_are_carried_on_for_a_while_and_then_sent(monkeypatch):
    """Each ends with the start of the next: a backlog would keep one message for ever."""
    now, carried, sent = iter(range(100)), [], []
    monkeypatch.setattr(following.time, "monotonic", lambda: float(next(now)))
    next_of = {f"r{n}": Advance(run_id=f"r{n + 1}", group=Group.CHAT, seen=SimpleNamespace(step=1)) for n in range(9)}

    def ends(_rt, run_id, _seen, _past):
        carried.append(run_id)
        return [next_of[run_id]]

    monkeypatch.setattr(stages, "advance", ends)
    rt = SimpleNamespace(in_flight=SimpleNamespace(stopping=False))
    follow(rt, [Advance(run_id="r0", group=Group.CHAT)], sent.extend)

    assert carried == ["r0", "r1", "r2"]
    assert sent == [next_of["r2"]]
    assert following.HANDED_ON_FOR == 3


class Headers:
    """Two headers of a round, carried out by the task that a worker carries them out with."""

    def __init__(self, settings, monkeypatch, *, group=Group.CHAT, queues=("chat", "chat.tools")):
        self.app = make_app(settings)
        self.app.amqp.queues.select(queues)
        self.task = self.app.tasks[names.CALL_TOOLS]
        batches = (("call-0",), ("call-1",))
        self.body = round_body(CallTools(run_id="r", step=2, batches=batches, group=group))
        self.committed = []
        monkeypatch.setattr(stages, "run_batch", lambda *_, **__: [])
        monkeypatch.setattr(stages, "commit_round", lambda _rt, run, step: self.committed.append((run, step)) or [])

    def returns(self, place):
        """As Celery's tracer ends a task."""
        context = {"id": f"task-{place}", "group": "one-round", "group_index": place, "chord": self.body}
        self.task.push_request(**context, delivery_info={}, called_directly=False)
        try:
            self.task.run(run="r", calls=[f"call-{place}"])
            if self.task.request.chord:
                self.app.backend.on_chord_part_return(self.task.request, "SUCCESS", None)
        finally:
            self.task.pop_request()

    def return_in_threads(self):
        for place in (0, 1):
            thread = threading.Thread(target=self.returns, args=(place,))
            thread.start()
            thread.join()


@pytest.fixture
def settings(tmp_path, redis_url):
    return load(room=tmp_path, redis_url=redis_url, database_url=f"sqlite:///{tmp_path / 'a.db'}")


def bodies(settings, queue="chat"):
    with redis_from(settings) as redis:
        return redis.llen(f"{settings.broker_prefix}{queue}")


@pytest.mark.redis
def test_last_header_of_a_chat_carries_its_round_on_without_a_message(settings, monkeypatch):
    headers = Headers(settings, monkeypatch)
    headers.return_in_threads()
    assert (headers.committed, bodies(settings)) == ([("r", 2)], 0)

    headers.return_in_threads()  # messages that came twice
    assert headers.committed == [("r", 2)] * 3


@pytest.mark.redis
@pytest.mark.parametrize(
    ("group", "queues"),
    [(Group.TASK, ("task", "task.tools", "chat")), (Group.CHAT, ("chat.tools", "task"))],
    ids=["a-run-that-gives-way", "a-worker-for-tools"],
)
def test_body_is_sent_where_the_round_is_not_carried_on(settings, monkeypatch, group, queues):
    headers = Headers(settings, monkeypatch, group=group, queues=queues)
    headers.return_in_threads()

    assert (headers.committed, bodies(settings, group.queue)) == ([], 1)


@pytest.mark.redis
def test_body_is_sent_from_a_process_of_a_pool(settings, monkeypatch):
    """What followed there would be killed at the time limit of a call."""
    headers = Headers(settings, monkeypatch)
    for place in (0, 1):
        headers.returns(place)

    assert (headers.committed, bodies(settings)) == ([], 1)


@pytest.mark.redis
def test_body_is_sent_by_a_worker_that_shuts_down(settings, monkeypatch):
    headers = Headers(settings, monkeypatch)
    headers.task.runtime.in_flight.hand_over()
    headers.return_in_threads()

    assert (headers.committed, bodies(settings)) == ([], 1)


@pytest.mark.redis
@pytest.mark.parametrize(("error", "level"), [(Unavailable("away"), "warning"), (ValueError("?"), "error")])
def test_round_that_cannot_be_carried_on_is_no_failure_of_its_last_call(settings, monkeypatch, error, level):
    headers = Headers(settings, monkeypatch)

    def fails(*_):
        raise error

    monkeypatch.setattr(stages, "commit_round", fails)
    with capture_logs() as lines:
        headers.return_in_threads()

    assert [line["log_level"] for line in lines] == [level]
    assert bodies(settings) == 0


def test_header_that_finds_no_redis_has_returned_all_the_same(tmp_path, monkeypatch):
    away = load(
        room=tmp_path, redis_url=f"redis://127.0.0.1:{free_port()}/0", database_url=f"sqlite:///{tmp_path / 'a.db'}"
    )
    headers = Headers(away, monkeypatch)
    with capture_logs() as lines:
        headers.return_in_threads()

    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "chord not joined; rescue will commit its round"
    ] * 2
    assert headers.committed == []
