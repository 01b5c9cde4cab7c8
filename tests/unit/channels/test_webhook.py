"""Webhooks: what is sent, how it is signed, and what each answer means."""

from __future__ import annotations

import base64
import json
import time

import pytest

from chordage.orchestrator.core import signatures
from chordage.orchestrator.core.channels import Outgoing
from chordage.orchestrator.core.deliveries import receiver_of_url, secret_for
from chordage.orchestrator.core.errors import RoomError, TryLater, Undeliverable
from chordage.orchestrator.gateways.address_guard import AddressGuard
from chordage.orchestrator.gateways.channels.room_channels import RoomChannels
from chordage.orchestrator.gateways.channels.webhook import Webhook, secret_of
from support.bus import WebReceiver

REPLY = Outgoing(key="turn-1", thread_id="t", turn_id="turn-1", text="ok", body={"reason": "natural_end", "text": "ok"})
HERE = AddressGuard(("127.0.0.0/8",))


@pytest.fixture
def receiver():
    made = WebReceiver()
    yield made
    made.close()


def test_a_reply_is_one_signed_post_with_its_key(receiver):
    Webhook(secrets=(b"s",), guard=HERE).deliver({"url": f"{receiver.url}/in?x=1"}, REPLY)

    ((path, headers, body),) = receiver.requests
    told = json.loads(body)
    assert (path, told["type"], told["turn_id"], told["thread_id"]) == ("/in?x=1", "turn.ended", "turn-1", "t")
    assert (told["text"], told["reason"]) == ("ok", "natural_end")
    assert headers["Idempotency-Key"] == headers["webhook-id"] == "turn-1"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 300
    own = secret_for(b"s", receiver.url.removeprefix("http://"))
    expected = signatures.standard(own, "turn-1", int(headers["webhook-timestamp"]), body)
    assert signatures.are_same(headers["webhook-signature"], expected)


def test_without_a_secret_there_is_no_signature(receiver):
    Webhook(guard=HERE).deliver({"url": receiver.url}, REPLY)
    assert "webhook-signature" not in receiver.requests[0][1]


def signed_with(receiver, place=-1):
    """The secrets among these whose signature goes with a request."""
    _, headers, body = receiver.requests[place]
    stamp = int(headers["webhook-timestamp"])
    made = headers["webhook-signature"].split()
    return lambda *secrets: [one for one in secrets if signatures.standard(one, "turn-1", stamp, body) in made]


def test_no_receiver_learns_what_signs_for_another(receiver):
    other = WebReceiver()
    for one in (receiver, other):
        Webhook(secrets=(b"s",), guard=HERE).deliver({"url": one.url}, REPLY)
    mine, theirs = (secret_for(b"s", receiver_of_url(one.url)) for one in (receiver, other))
    other.close()

    assert mine != theirs
    assert signed_with(receiver)(b"s", mine, theirs) == [mine]
    assert signed_with(other)(b"s", mine, theirs) == [theirs]


def test_while_a_secret_is_replaced_both_sign_and_then_the_new_one_alone(receiver):
    old, new = (secret_for(one, receiver_of_url(receiver.url)) for one in (b"old", b"new"))
    for secrets in ((b"old",), (b"new", b"old"), (b"new",)):
        Webhook(secrets=secrets, guard=HERE).deliver({"url": receiver.url}, REPLY)

    assert [signed_with(receiver, place)(old, new) for place in range(3)] == [[old], [old, new], [new]]


def test_a_channel_signs_with_its_own_secret_also_while_it_is_replaced(receiver, tmp_path):
    bound(tmp_path, f'url = "{receiver.url}"\nsecret_env = "S"', S="new, old").deliver({}, REPLY)

    assert signed_with(receiver)(b"old", b"new") == [b"old", b"new"]


def test_a_receiver_is_a_host_and_a_port():
    told = [
        "https://A.example/x",
        "https://a.example:443/y?z",
        "http://a.example:443",
        "https://b.example",
        "http://a.example",
    ]
    assert [receiver_of_url(url) for url in told] == [*["a.example:443"] * 3, "b.example:443", "a.example:80"]


def test_a_private_address_is_refused_for_good_unless_it_is_allowed(receiver):
    with pytest.raises(Undeliverable, match="not a public address; CHORDAGE_WEBHOOK_ALLOW may"):
        Webhook().deliver({"url": receiver.url}, REPLY)
    assert receiver.requests == []


@pytest.mark.parametrize("status", [301, 400, 401, 404, 429, 500, 503])
def test_other_answers_than_2xx_are_tried_again(receiver, status):
    receiver.status = status
    with pytest.raises(TryLater, match=f"answered {status}") as told:
        Webhook(guard=HERE).deliver({"url": f"{receiver.url}/in?secret=1"}, REPLY)
    assert told.value.seconds == (7 if status == 429 else None)
    assert "secret" not in str(told.value)


def test_gone_is_gone(receiver):
    receiver.status = 410
    with pytest.raises(Undeliverable, match="answered 410"):
        Webhook(guard=HERE).deliver({"url": receiver.url}, REPLY)


def test_receiver_that_does_not_answer_is_retried(receiver):
    receiver.pause = lambda path: time.sleep(0.6)  # the fault itself
    with pytest.raises(TryLater, match="does not answer"):
        Webhook(guard=HERE, timeout=0.2).deliver({"url": receiver.url}, REPLY)
    with pytest.raises(TryLater, match="does not answer"):
        Webhook(guard=HERE).deliver({"url": "http://127.0.0.1:9/"}, REPLY)


def bound(tmp_path, config, **environ):
    (tmp_path / "channels.toml").write_text(f'[channels.it]\nplugin = "webhook"\n[channels.it.config]\n{config}\n')
    return RoomChannels(tmp_path, environ=environ).get("it")


def test_channel_shows_its_url_and_headers_and_polls_nothing(receiver, tmp_path):
    config = f'url = "{receiver.url}/room"\nheaders = {{ X-Room = "1" }}\nsecret_env = "S"'
    channel = bound(tmp_path, config, S="whsec_" + base64.b64encode(b"s").decode())
    channel.deliver({"chat": 42}, REPLY)
    channel.close()

    ((path, headers, body),) = receiver.requests
    assert (path, headers["X-Room"], json.loads(body)["address"]) == ("/room", "1", {"chat": 42})
    assert headers["webhook-signature"].startswith("v1,")
    assert (channel.poll("c").cursor, channel.poll("c").messages) == ("c", ())
    assert "whsec" not in repr(channel)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('url = "https://a.example"\nretry = 1', "channels.toml:5: .*retry"),
        ("", "url.*is missing|url.*required|needs.*url"),
        ('url = "ftp://a"', "channels.toml:4: .*http:// or https://"),
        ('url = "https://a.example"\nheaders = { a = 1 }', "table of texts"),
        ('url = "https://a.example"\nsecret_env = "NOT_SET"', "NOT_SET"),
        ('url = "https://a.example"\nsecret_env = "BAD"', "no base64"),
    ],
)
def test_broken_options_are_named_with_their_place(config, words, tmp_path):
    with pytest.raises(RoomError, match=words) as told:
        bound(tmp_path, config, BAD="whsec_***")
    assert "whsec_***" not in str(told.value)


def test_a_secret_without_the_prefix_is_taken_as_it_is():
    assert secret_of("plain", "X") == b"plain"
