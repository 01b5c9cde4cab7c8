"""Behaviours of the study of Toolang (its section 8) that concern polled channels, by their numbers."""

from __future__ import annotations

from pathlib import Path

from chordage.orchestrator.gateways.channels.room_channels import RoomChannels
from support.channels import ListChannel, bind, incoming, keys, look, poll_row
from support.telegram_server import TOKEN, TelegramServer, telegram
from support.world import World

BINDING = """
[channels.telegram]
plugin = "telegram"
[channels.telegram.config]
token_env = "TELEGRAM_BOT_TOKEN"
owner_chat_id = "5"
peer_chat_ids = ["6"]
allowed_chat_ids = ["7"]
poll_timeout_sec = 0
api_base = "{url}"
"""


def bound(world: World, folder: Path, server: TelegramServer) -> RoomChannels:
    (folder / "channels.toml").write_text(BINDING.format(url=server.url))
    channels = RoomChannels(folder, environ={"TELEGRAM_BOT_TOKEN": TOKEN})
    object.__setattr__(world.runtime, "channels", channels)
    return channels


def test_4_a_polled_message_has_a_thread_of_its_own_origin_chat_and_is_answered_through_the_same_binding(
    world: World, tmp_path: Path
) -> None:
    with telegram() as server:
        channels = bound(world, tmp_path, server)
        server.say("hello", chat=5)
        look(world, "telegram")
        world.run_dry()
        channels.close()

    turn = world.row("turns")
    assert (turn["thread_id"], turn["origin"], turn["channel"]) == ("telegram:5", "chat", "telegram")
    assert turn["disposition"] == "answered"
    (leaving,) = world.rows("outbox")
    assert leaving["target"] == {"channel": "telegram", "chat": "5"}


def test_6_update_41_becomes_a_message_with_cursor_42_and_the_stored_cursor_is_the_offset(
    world: World, tmp_path: Path
) -> None:
    with telegram() as server:
        channels = bound(world, tmp_path, server)
        server.say("hello", chat=5)
        look(world, "telegram")
        look(world, "telegram")
        channels.close()

    assert keys(world) == ["41"]
    assert poll_row(world, "telegram")["cursor"] == "42"
    assert [asked.get("offset") for asked in server.asked] == [None, 42]


def test_7_the_owners_chat_is_owner_a_listed_peer_is_peer_and_other_allowed_chats_are_guests(
    world: World, tmp_path: Path
) -> None:
    with telegram() as server:
        channels = bound(world, tmp_path, server)
        for chat in (5, 6, 7, 8):
            server.say("hello", chat=chat)
        look(world, "telegram")
        channels.close()

    senders = {row["thread_id"]: row["sender"] for row in world.rows("turns")}
    assert senders == {"telegram:5": "owner", "telegram:6": "peer", "telegram:7": "guest"}
    assert poll_row(world, "telegram")["passed_over"] == 1


def test_16_one_failing_message_of_a_batch_does_not_drop_the_others(world: World) -> None:
    bind(world, ListChannel(messages=[incoming(1), incoming(2, "\x00"), incoming(3), incoming(4, sender="king")]))

    look(world)

    assert keys(world) == ["1", "3"]
    assert [row["key"] for row in world.rows("refusals")] == ["2", "4"]
