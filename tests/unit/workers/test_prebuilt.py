"""What is pushed for a wake-up is what Celery's `send_task` pushes, and others who take part in sending still do."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import get_args

import pytest
from celery import Celery, signals
from celery._state import _task_stack
from kombu import Producer

from chordage.config.settings import load
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import (
    Advance,
    CallHere,
    CallModel,
    CallTool,
    CallTools,
    CancelTurn,
    CommitRound,
    ContinueBulk,
    Deliver,
    Dispatch,
    Hint,
    Intent,
    Project,
    StepOn,
)
from chordage.orchestrator.core.records import Subject
from chordage.tasks import prebuilt
from chordage.tasks.courier import Courier
from chordage.tasks.prebuilt import WakeUp, WakeUpSender
from chordage.workers.app import make_app

pytestmark = pytest.mark.redis

OF = Subject(thread_id="api:t-1", agent="ada")
CHAT = Group.CHAT
INTENTS: list[Intent] = [
    Dispatch(group=CHAT), Dispatch(group=CHAT, hint=Hint("t1", "api:t-1"), of=OF),
    Advance(run_id="r1", group=CHAT, of=OF), CallModel(run_id="r1", step=1, group=CHAT, of=OF),
    CommitRound(run_id="r1", step=2, group=CHAT, of=OF),
    CallTool(call_ids=("c1",), run_id="r1", group=CHAT, of=OF, tools={"c1": "look"}),
    CallHere(call_ids=("c1",), run_id="r1", step=2, group=CHAT, of=OF, tools={"c1": "look"}),
    CallTools(run_id="r1", step=2, batches=(("c1",), ("c2", "c3")), group=CHAT, of=OF, tools={"c1": "lööK"}),
    CallTools(run_id="r1", step=2, batches=(("c1",), ("c2",)), group=CHAT, of=OF, claims={"c1": "ada"}),
    CancelTurn(turn_id="t1", reason='no "more"', of=OF), StepOn(run_id="r1", group=CHAT, of=OF), Project(), Deliver(),
    ContinueBulk(job_id="b1"),
]  # fmt: skip
ADVANCE = WakeUp(task="runs.advance", queue="chat", kwargs={"run": "r1"}, shown={"argsrepr": "", "kwargsrepr": "{}"})


@pytest.fixture
def app(tmp_path, redis_url):
    return make_app(load(room=tmp_path, redis_url=redis_url))


@pytest.fixture
def pushed(redis):
    """Takes what has been pushed, without what is drawn for each message."""

    def take():
        contents = []
        for key in sorted(key for key in redis.scan_iter("chordage:celery:*") if redis.type(key) == "list"):
            contents += [(key, json.loads(text)) for text in redis.lrange(key, 0, -1)]
            redis.delete(key)
        for _, message in contents:
            assert message["properties"].pop("delivery_tag")
        return contents

    return take


@pytest.fixture
def as_celery_does(monkeypatch):
    def switch():
        monkeypatch.setattr(prebuilt, "_others_take_part", lambda: True)

    return switch


def test_every_intent_is_here():
    assert {type(intent) for intent in INTENTS} == set(get_args(Intent))


@pytest.mark.parametrize("within_task", [False, True], ids=["alone", "within_a_task"])
@pytest.mark.parametrize("intent", INTENTS, ids=lambda intent: type(intent).__name__)
def test_message_is_the_one_that_celery_sends(app, intent, within_task, pushed, as_celery_does):
    if within_task:
        parent = SimpleNamespace(id="parent", root_id="root", called_directly=False)
        _task_stack.push(SimpleNamespace(request=parent))
    messages = Courier(app)._messages(intent)
    sender = WakeUpSender(app)
    try:
        sender.send(messages)
        sender.send(messages)  # by the template alone
        ours = pushed()
        as_celery_does()
        sender.send(messages)
        celerys = pushed()
    finally:
        if within_task:
            _task_stack.pop()

    assert None not in sender._templates.values()
    assert ours == celerys * 2


def test_round_is_sent_in_one_command(app, redis):
    courier = Courier(app)
    intent = CallTools(run_id="r1", step=2, batches=tuple((f"c{n}",) for n in range(4)), group=CHAT)
    courier.send([intent])
    redis.config_resetstat()
    courier.send([intent])

    assert redis.info("commandstats")["cmdstat_lpush"]["calls"] == 1
    assert redis.llen("chordage:celery:chat.tools") == 8


def test_calls_that_are_claimed_first_are_sent_with_their_agent(app, redis):
    batches = (("c1", "c2"), ("c3",))
    Courier(app).send([CallTools(run_id="r1", step=2, batches=batches, group=CHAT, of=OF, claims={"c1": "ada"})])

    texts = [json.loads(redis.rpop("chordage:celery:chat.tools")) for _ in batches]
    assert [text["headers"].get("claimed_for") for text in texts] == ["ada", None]


def test_messages_for_several_queues_keep_their_order_in_each(app, redis):
    intents = [Advance(run_id=f"r{n}", group=group) for n in range(3) for group in (Group.CHAT, Group.TASK)]
    Courier(app).send_in_one_trip(intents)

    for queue in ("chat", "task"):
        texts = [json.loads(redis.rpop(f"chordage:celery:{queue}")) for _ in range(3)]
        assert [text["headers"]["kwargsrepr"] for text in texts] == [f"{{'run': 'r{n}'}}" for n in range(3)]


@pytest.mark.parametrize("signal", ["before_task_publish", "after_task_publish"])
def test_receivers_of_signals_take_part(app, pushed, signal):
    sender = WakeUpSender(app)
    sender.send([ADVANCE])

    def receive(headers=None, **_):
        headers["traceparent"] = "00-1"
        heard.append(headers["id"])

    heard = []
    with_receiver = getattr(signals, signal)
    with_receiver.connect(receive, weak=False)
    try:
        sender.send([ADVANCE])
    finally:
        with_receiver.disconnect(receive)
    sender.send([ADVANCE])

    traced = [message["headers"].get("traceparent") for _, message in pushed()]
    assert heard == [ADVANCE.id]
    assert traced == [None, "00-1" if signal == "before_task_publish" else None, None]


def test_code_around_send_task_or_publish_takes_part(app, monkeypatch):
    sender, seen = WakeUpSender(app), []
    sender.send([ADVANCE])
    for owner, name in ((Celery, "send_task"), (Producer, "publish")):
        stock = getattr(owner, name)

        def around(self, *args, stock=stock, name=name, **options):
            seen.append(name)
            return stock(self, *args, **options)

        monkeypatch.setattr(owner, name, around)
        sender.send([ADVANCE])
        monkeypatch.setattr(owner, name, stock)
    sender.send([ADVANCE])

    assert seen == ["send_task", "publish"]


@pytest.mark.parametrize("setting", ["task_send_sent_event", "task_inherit_parent_priority"])
def test_settings_of_celery_count(app, setting):
    app.conf[setting] = True
    sender = WakeUpSender(app)
    sender.send([ADVANCE])

    assert list(sender._templates.values()) == [None]


def test_celery_that_builds_other_messages_builds_each(app, pushed, monkeypatch):
    filled = WakeUpSender._filled
    monkeypatch.setattr(WakeUpSender, "_filled", lambda *args: filled(*args) | {"new": 1})
    sender = WakeUpSender(app)
    sender.send([ADVANCE])
    sender.send([ADVANCE])

    assert list(sender._templates.values()) == [None]
    assert [(message["headers"]["id"], "new" in message) for _, message in pushed()] == 2 * [(ADVANCE.id, False)]


def test_other_transports_are_left_to_celery():
    with Celery("theirs", broker="memory://", set_as_current=False) as app:
        app.conf.task_create_missing_queues = True
        WakeUpSender(app).send([ADVANCE])

        with app.connection_for_read() as connection:
            assert connection.default_channel._get("chat")["headers"]["id"] == ADVANCE.id


def test_messages_are_sent_when_the_connection_was_cut_meanwhile(app, redis):
    sender = WakeUpSender(app)
    sender.send([ADVANCE])
    redis.client_kill_filter(_type="normal", skipme=True)
    sender.send([ADVANCE])

    assert redis.llen("chordage:celery:chat") == 2
