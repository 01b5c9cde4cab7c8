"""The door for every service that has Celery and nothing of ours: a turn is enqueued by name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from celery import Celery

from support.rig import Plan

pytestmark = [pytest.mark.redis, pytest.mark.slow]

STRANGER = """
import json, sys
from celery import Celery
app = Celery(broker=sys.argv[1], backend=sys.argv[1])
app.conf.broker_transport_options = app.conf.result_backend_transport_options = {"global_keyprefix": "chordage:celery:"}
fields = json.loads(sys.argv[2])
result = app.send_task("turns.submit", kwargs=fields, queue="chat")
try:
    print("id", result.get(timeout=90))
except Exception as error:
    print("refused", error)
assert not [name for name in sys.modules if name.startswith("chordage") and "errors" not in name
            and name not in {"chordage", "chordage.orchestrator", "chordage.orchestrator.core"}]
"""


@pytest.fixture
def rig(make_rig, database_url):
    rig = make_rig(database_url)
    rig.worker("all", "--role", "all", "--concurrency", "4")
    rig.ready()
    return rig


def printed_by_caller(rig, **fields):
    """What a stranger's process prints."""
    command = [sys.executable, "-W", "ignore", "-c", STRANGER, rig.settings.redis, json.dumps(fields)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_turn_is_enqueued_by_name_and_its_id_is_the_result(rig):
    said = printed_by_caller(rig, text=Plan(id="hello").text, thread_id="t1", agent="agent")
    rig.wait_until_done()

    turn = rig.row("turns")
    assert said == f"id {turn['id']}"
    assert (turn["disposition"], turn["thread_id"], turn["source"]) == ("answered", "api:t1", "celery")


def test_a_message_that_is_delivered_again_makes_no_second_turn(rig):
    client = Celery(broker=rig.settings.redis, backend=rig.settings.redis, set_as_current=False)
    prefix = {"global_keyprefix": rig.settings.broker_prefix}
    client.conf.update(broker_transport_options=prefix, result_backend_transport_options=prefix)
    fields = {"text": Plan(id="hello").text}
    ids = [
        client.send_task("turns.submit", kwargs=fields, queue="chat", task_id="the-same").get(timeout=90)
        for _ in range(2)
    ]
    client.close()
    rig.wait_until_done()

    assert ids == [rig.row("turns")["id"]] * 2


REFUSED = [
    ({}, "text: is missing"),
    ({"text": " "}, "text is blank"),
    ({"text": "hi", "agent": "nobody"}, "there is no agent 'nobody'"),
    ({"text": "hi", "colour": "red"}, "colour: there is no such field"),
    ({"text": "hi", "origin": "chat"}, "origin 'chat' needs a channel"),
]


def test_turn_that_breaks_a_rule_fails_with_a_message_and_leaves_nothing(make_rig, migrated_database_url):
    rig = make_rig(migrated_database_url("sqlite"))
    rig.worker("all", "--role", "all", "--concurrency", "1")
    rig.ready()

    for fields, said in REFUSED:
        answer = printed_by_caller(rig, **fields)
        assert answer.startswith("refused"), fields
        assert said in answer

    assert rig.rows("turns") == rig.rows("threads") == []
