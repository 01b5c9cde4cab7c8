"""What a status, a header and an error body mean."""

from __future__ import annotations

import json

import pytest

from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.gateways.models.refusals import refused


def error(message, **more):
    return json.dumps({"error": {"message": message, **more}})


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (429, error("slow down"), Fault.RATE_LIMIT),
        (429, error("You exceeded your current quota, retry in 7 s"), Fault.RATE_LIMIT),
        (429, error("You exceeded your current quota", code="insufficient_quota"), Fault.QUOTA),
        (400, error("Your credit balance is too low to access the API"), Fault.QUOTA),
        (402, "", Fault.QUOTA),
        (401, error("no"), Fault.AUTH),
        (403, error("no"), Fault.AUTH),
        (400, error("This model's maximum context length is 8192 tokens"), Fault.CONTEXT),
        (400, error("x", code="context_length_exceeded"), Fault.CONTEXT),
        (400, error("prompt is too long: 300000 tokens > 200000 maximum"), Fault.CONTEXT),
        (413, "too big", Fault.CONTEXT),
        (400, error("temperature must be below 2"), Fault.REJECTED),
        (404, error("no such model"), Fault.REJECTED),
        (307, "", Fault.REJECTED),
        (408, "", Fault.TIMEOUT),
        (503, "", Fault.OVERLOADED),
        (529, "", Fault.OVERLOADED),
        (500, error("prompt is too long"), Fault.SERVER),
        (502, "<html>bad gateway</html>", Fault.SERVER),
        (524, "", Fault.SERVER),
    ],
)
def test_a_refusal_has_one_reading(status, body, fault):
    assert refused(status, {}, body).fault is fault


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (error("slow  down\nplease"), "429: slow down please"),
        ('{"error": "slow down"}', "429: slow down"),
        ('{"message": "slow down"}', "429: slow down"),
        ('{"detail": "slow down"}', '429: {"detail": "slow down"}'),
        ('[{"error": {"code": 429, "message": "slow down"}}]', "429: slow down"),
        ("slow down", "429: slow down"),
        ("", "429: no text"),
    ],
)
def test_the_sentence_is_found_whatever_is_wrapped_around_it(body, detail):
    assert refused(429, {}, body).detail == detail


def test_redirect_is_reported_with_its_target():
    assert refused(301, {"location": "https://else.where"}, "").detail == "301: https://else.where"


def test_a_long_text_is_cut():
    assert len(refused(500, {}, "x" * 10_000).detail) == 300
