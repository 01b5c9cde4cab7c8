"""Where replies may go, and when they are tried again."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.deliveries import DeliveryRules, check_target, receiver_of, shown
from chordage.orchestrator.core.errors import InvalidMessage

BAD = [
    ({}, "must name either"),
    ({"to": "me"}, "must name either"),
    ({"url": "https://a.example", "channel": "b"}, "must name either"),
    ({"url": "ftp://a.example/x"}, "http:// or https://"),
    ({"url": "https://"}, "http:// or https://"),
    ({"url": "https://[a"}, "no address"),
    ({"url": "https://a.example:99999/"}, "no address"),
    ({"url": 3}, "give an address"),
    ({"url": "https://a.example/x y"}, "give an address"),
    ({"url": "https://me:pw@a.example/"}, "password"),
    ({"url": "https://a.example/", "retries": 3}, "remove retries"),
    ({"channel": ""}, "name of a channel"),
    ({"channel": 7}, "name of a channel"),
    ({"channel": "x" * 151}, "name of a channel"),
]


@pytest.mark.parametrize(("target", "words"), BAD)
def test_a_target_that_nothing_could_be_delivered_to_is_refused(target, words):
    with pytest.raises(InvalidMessage, match=words) as refused:
        check_target(target)
    assert refused.value.field.startswith("reply_target")


@pytest.mark.parametrize("target", [{"url": "http://a.example/in?x=1"}, {"channel": "me", "chat": 42}])
def test_a_web_hook_and_a_channel_with_whatever_address_are_taken(target):
    check_target(target)


def test_a_receiver_is_a_host_or_a_channel():
    assert receiver_of({"url": "https://A.example:8443/x"}) == "host:a.example:8443"
    assert receiver_of({"url": "https://[a"}) == "host:"
    assert receiver_of({"channel": "me", "chat": 1}) == "channel:me"


def test_what_may_be_secret_in_an_address_is_not_shown():
    assert shown({"url": "https://a.example/in?token=x"}) == "https://a.example/in"
    assert shown({"url": "https://me:secret@a.example:8443/hooks/T1/B2/secret#x"}) == "https://a.example:8443/hooks/…"
    assert shown({"url": "https://a.example"}) == shown({"url": "https://a.example/"}) == "https://a.example"
    assert shown({"channel": "me", "chat": 1}) == "channel me (chat=1)"


def test_pauses_grow_up_to_the_longest_with_jitter_and_honour_retry_after():
    rules = DeliveryRules(first=4, longest=100)
    assert [rules.pause(n, 1.0) for n in (1, 2, 3, 9)] == [4, 8, 16, 100]
    assert rules.pause(1, 0.0) == 2
    assert rules.pause(1, 0.0, asked=50) == 50
    assert rules.pause(1, 0.0, asked=5000) == 100
    assert rules.pause(10_000, 1.0) == 100
