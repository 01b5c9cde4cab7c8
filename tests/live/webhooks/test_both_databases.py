"""What the database decides: a delivery that comes again is one turn, also when it comes many times at once."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from chordage.orchestrator import views
from chordage.workers import web
from support import signed_deliveries
from support.signed_deliveries import SIGNED, WebhookClient, refused
from support.web_server import served, with_database

pytestmark = pytest.mark.redis
AT_ONCE = 8


@pytest.fixture
def hooked(client, rt, settings) -> WebhookClient:
    return WebhookClient(client=client, rt=rt, settings=settings)


def test_of_a_delivery_that_comes_many_times_at_once_one_is_taken(hooked):
    gate = threading.Barrier(AT_ONCE)
    for name in ("standard", "github"):
        body = signed_deliveries.bodies(name)
        headers = SIGNED[name](body)

        def deliver(_number, name=name, body=body, headers=headers):
            gate.wait()
            return hooked.post(name, body, headers).status_code

        with ThreadPoolExecutor(AT_ONCE) as threads:
            codes = sorted(threads.map(deliver, range(AT_ONCE)))

        assert codes == [202] + [409] * (AT_ONCE - 1)
    assert len(hooked.stored()) == 2


def test_of_one_that_comes_at_once_through_two_servers_one_is_taken(hooked):
    body = signed_deliveries.bodies("plain")
    headers = SIGNED["plain"](body)
    gate = threading.Barrier(AT_ONCE)
    with served(web.wired(hooked.settings)) as other:
        doors = [hooked, replace(hooked, client=other)] * (AT_ONCE // 2)

        def deliver(one):
            gate.wait()
            return one.post("plain", body, headers).status_code

        with ThreadPoolExecutor(AT_ONCE) as threads:
            codes = sorted(threads.map(deliver, doors))

    assert codes == [202] + [409] * (AT_ONCE - 1)
    assert len(hooked.stored()) == 1


def test_of_copies_under_many_ids_that_come_at_once_through_two_servers_one_is_taken(hooked):
    gate = threading.Barrier(AT_ONCE)
    body = signed_deliveries.bodies("github")
    with served(web.wired(hooked.settings)) as other:
        doors = [hooked, replace(hooked, client=other)] * (AT_ONCE // 2)

        def deliver(one):
            headers = signed_deliveries.github(body)
            gate.wait()
            return one.post("github", body, headers).status_code

        with ThreadPoolExecutor(AT_ONCE) as threads:
            codes = sorted(threads.map(deliver, doors))

    assert codes == [202] + [409] * (AT_ONCE - 1)
    assert len(hooked.stored()) == 1


def test_a_burst_is_stored_whole_and_in_the_order_of_each_thread(hooked):
    def deliver(number):
        body = json.dumps({**signed_deliveries.PUSH, "ref": f"r{number}"}).encode()
        return hooked.post("github", body, signed_deliveries.github(body)).status_code

    with ThreadPoolExecutor(AT_ONCE) as threads:
        codes = list(threads.map(deliver, range(60)))

    assert codes == [202] * 60
    stored = hooked.stored()
    assert len({turn.text for turn in stored}) == 60
    assert {turn.thread_id for turn in stored} == {"hook:github:7"}


def test_unreachable_database_is_503_without_details(settings):
    body = signed_deliveries.bodies("bare")
    with served(web.wired(with_database(settings, "postgresql://nobody@127.0.0.1:9/none"))) as client:
        response = client.post("/hooks/bare", content=body, headers=signed_deliveries.bare(body))

    problem = refused(response, 503)
    assert response.headers["Retry-After"] == "5"
    assert "127.0.0.1" not in json.dumps(problem)


def test_a_message_in_a_batch_that_is_refused_takes_no_other_with_it(rt):
    from chordage.orchestrator import stages
    from chordage.orchestrator.core.errors import InvalidMessage
    from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest

    def a_request(text, key=None, thread=None):
        message = Message(
            origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text=text
        )  # fmt: skip
        return TurnRequest(message=message, source="hook:x", dedupe_key=key)

    requests = [
        a_request("a", "k2"),
        a_request(" "),
        a_request("b", "k1", "t"),
        a_request("c", "k3"),
        a_request("a", "k2"),
        a_request("d", thread="t"),
    ]
    first, blank, named, other, again, last = stages.admit_all(rt, requests)

    assert isinstance(blank, InvalidMessage)
    assert (again[0].turn_id, again[0].duplicate) == (first[0].turn_id, True)
    assert [named[0].thread_id, last[0].thread_id] == ["t", "t"]
    assert sorted(turn.text for turn in views.turns(rt.store)) == ["a", "b", "c", "d"]
    assert other[0].duplicate is False
