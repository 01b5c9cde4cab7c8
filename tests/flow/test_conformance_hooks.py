"""Webhooks as the list of behaviours has them: numbers 9, 11, 12 and 14."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.webhooks import response_to
from chordage.orchestrator.gateways.webhooks import bindings as hooks_file
from chordage.orchestrator.gateways.webhooks.bindings import WebhookBindings
from chordage.orchestrator.loops.hook import WebhookReceiver, receive
from chordage.orchestrator.store import schema

FILE = """
[hooks.a]
path = "/hooks/a"
method = "put"
signature = "none"
idempotency_header = "X-Delivery"
[hooks.a.config]
origin = "chat"
sender = "peer"
thread_field = "thread_id"
text_field = "text"
meta_fields = ["n"]
reply_target = {channel = "desk", address = "1"}
"""


class Nobody:
    def count(self, name, outcome, last=None): ...
    def close(self): ...


@pytest.fixture
def deliver(world, tmp_path):
    """Send a delivery; its status."""
    (tmp_path / "hooks.toml").write_text(FILE)
    receiver = WebhookReceiver(
        bindings=WebhookBindings(tmp_path, {}),
        accept=lambda request: stages.admit(world.runtime, request)[0],
        stats=Nobody(),
    )

    def deliver(payload, delivery="1"):
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        binding = receiver.bindings.find("/hooks/a", "PUT")
        return response_to(receive(receiver, binding, {"x-delivery": delivery}, body)).status_code

    return deliver


@pytest.mark.parametrize(("method", "bound"), [("put", ["PUT"]), ("Post", ["POST"]), (" ", [])])
def test_9_the_method_of_a_hook_is_upper_case_and_a_blank_one_refused(tmp_path, method, bound):
    (tmp_path / "hooks.toml").write_text(FILE.replace('"put"', f'"{method}"'))

    found = hooks_file.read(tmp_path, {})

    assert [binding.method for binding in found.bindings] == bound
    assert bool(found.faults) == (not bound)


def test_11_payload_becomes_thread_text_and_meta_and_its_binding_origin_sender_and_reply_target(world, deliver):
    claims = {"origin": "task", "sender": "owner", "reply_target": {"channel": "mine"}}

    assert deliver({"thread_id": "t", "text": "hello", "n": 1, "m": 2, **claims}) == 202

    (line,) = views.turns(world.store)
    turn = views.turn(world.store, line.turn_id)
    assert (turn.origin, turn.channel, turn.sender) == ("chat", "a", "peer")
    assert (turn.thread_id, turn.text, turn.meta) == ("hook:a:t", "hello", {"n": 1})
    with world.store.read() as tx:
        assert tx.execute(select(schema.turns.c.reply_target)).scalar() == {"channel": "desk", "address": "1"}


@pytest.mark.parametrize(
    "payload", [b"no json", b"\xff", ["text"], {}, {"text": "x"}, {"thread_id": "t"}, {"thread_id": "t", "text": " "}]
)
def test_12_a_payload_that_is_no_json_object_or_not_complete_makes_no_turn(world, deliver, payload):
    assert deliver(payload) == 422

    assert views.turns(world.store) == []


def test_14_a_second_delivery_with_the_same_id_makes_no_second_turn(world, deliver):
    statuses = [deliver({"thread_id": "t", "text": text}, delivery) for text, delivery in ("a1", "b1", "a2")]

    assert statuses == [202, 409, 202]
    assert len(views.turns(world.store)) == 2
