"""The ports of what a process does without."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.channels import Outgoing
from chordage.orchestrator.core.errors import NotFound, TryLater
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.gateways.absent import NoChannels, NoPlugins, NoWebHooks

REPLY = Outgoing(key="k", thread_id="t", turn_id="T", text="Hello.", body={})


def test_a_process_without_web_hooks_leaves_the_reply_to_another():
    with pytest.raises(TryLater, match="https://example.org"):
        NoWebHooks().deliver({"url": "https://example.org"}, REPLY)


def test_without_a_room_no_channel_is_found():
    with pytest.raises(NotFound, match="channels.toml"):
        NoChannels().get("desk")

    assert NoChannels().names() == []


def test_no_plugins_listen_to_no_hook():
    assert not any(NoPlugins().listens(hook) for hook in Hook)
