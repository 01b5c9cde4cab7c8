"""Where a caller may have its answer sent: closed, unless the operator lists it."""

from __future__ import annotations

import pytest

from chordage.config.settings import SettingsFault, load
from chordage.orchestrator.core.deliveries import ReplyBounds
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.workers.bootstrap import replies_from

OPEN = {
    "reply_hosts": ("crm.example.org", "10.1.2.3:8080"),
    "reply_channels": ("desk", "phone?chat_id=42", "phone?a=1&b=x%20y"),
}

ALLOWED = [
    {"url": "https://crm.example.org/in"},
    {"url": "https://CRM.example.org:443/in"},
    {"url": "http://crm.example.org/in"},
    {"url": "http://10.1.2.3:8080/in"},
    {"channel": "desk"},
    {"channel": "desk", "to": "anybody@example.org"},
    {"channel": "phone", "chat_id": 42},
    {"channel": "phone", "chat_id": "42"},
    {"channel": "phone", "b": "x y", "a": 1},
]
REFUSED = [
    {"url": "https://crm.example.org:8443/in"},
    {"url": "https://crm.example.org./in"},
    {"url": "https://www.crm.example.org/in"},
    {"url": "https://crm.example.org.evil.example/in"},
    {"url": "https://evil.example/crm.example.org"},
    {"url": "https://evil.example#crm.example.org"},
    {"url": "http://10.1.2.3/in"},
    {"url": "http://[::1]/in"},
    {"channel": "tg", "chat_id": 42},
    {"channel": "phone"},
    {"channel": "phone", "chat_id": 43},
    {"channel": "phone", "chat_id": 42, "topic": 1},
    {"channel": "desk "},
]


@pytest.mark.parametrize("target", ALLOWED, ids=str)
def test_what_is_listed_may_be_named(target):
    replies_from(load(**OPEN)).check(target)


@pytest.mark.parametrize("target", REFUSED, ids=str)
def test_what_is_not_listed_is_refused_with_the_setting_that_lists_it(target):
    with pytest.raises(InvalidMessage, match="CHORDAGE_REPLY_") as refused:
        replies_from(load(**OPEN)).check(target)
    assert refused.value.field == f"reply_target.{'url' if 'url' in target else 'channel'}"


@pytest.mark.parametrize("target", ALLOWED, ids=str)
def test_list_is_empty_unless_configured(target):
    with pytest.raises(InvalidMessage):
        ReplyBounds().check(target)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reply_hosts", "https://a"),
        ("reply_hosts", "a/b"),
        ("reply_hosts", "*"),
        ("reply_channels", "a b"),
        ("reply_channels", "a?b"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(f"CHORDAGE_{name.upper()}", value)
    with pytest.raises(SettingsFault, match=name):
        load()
