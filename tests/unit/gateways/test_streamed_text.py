"""The text of a reply on the live stream of its run: whoever comes late gets all of it, and nobody gets a gap."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from chordage.orchestrator.gateways import redis_events, run_stream
from chordage.orchestrator.gateways.redis_direct import RedisHints
from chordage.orchestrator.gateways.redis_events import RedisEvents, watch
from chordage.orchestrator.gateways.run_stream import RedisRunStreams, StreamNote
from support.waiting import until

pytestmark = pytest.mark.redis


class Speaker:
    """As a model call that streams (stages/inference.py)."""

    def __init__(self, events: RedisEvents, step: int = 1, attempt: int = 0) -> None:
        self._events = events
        self._about = {"step": step, "attempt": attempt}
        self.pieces: list[str] = []
        self.thoughts: list[str] = []

    def say(self, text: str) -> None:
        thoughts = self.thoughts
        self._emit("model.delta", self.pieces, text, **({"thought": lambda: "".join(thoughts)} if thoughts else {}))

    def think(self, text: str) -> None:
        self._emit("model.reasoning", self.thoughts, text)

    def _emit(self, kind: str, pieces: list[str], text: str, **more: object) -> None:
        offset = len("".join(pieces))
        pieces.append(text)
        self._events.emit(
            "r", kind, **self._about, offset=offset, text=text, so_far=lambda end: "".join(pieces)[:end], **more
        )


@pytest.fixture
def redis(redis_url):
    with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def events(redis, monkeypatch):
    monkeypatch.setattr(redis_events, "READ_WATCHERS_EVERY", 0.0)
    monkeypatch.setattr(RedisEvents, "_start", lambda self: None)  # the test sends
    events = RedisEvents(redis, RedisHints(redis), prefix="p:")
    monkeypatch.setattr(events, "_pid", __import__("os").getpid())
    return events


def sent(redis):
    return [(each["offset"], each["text"]) for _, e in redis.xrange("p:live:r") for each in [json.loads(e["data"])]]


def test_pieces_are_sent_one_by_one(redis, events):
    watch(redis, "r", 60, prefix="p:")
    speaker = Speaker(events)
    for text in ("a", "bc", "d"):
        speaker.say(text)
    events.flush()
    assert sent(redis) == [(0, "a"), (1, "bc"), (3, "d")]


def test_first_piece_of_a_text_brings_the_reasoning_before_it(redis, events):
    """A reader that has the text has all of its reasoning then, also where notes of it were lost."""
    speaker = Speaker(events)
    speaker.think("one ")
    events.flush()
    watch(redis, "r", 60, prefix="p:")
    for text in ("two ", "three"):
        speaker.think(text)
    for text in ("a", "b"):
        speaker.say(text)
    events.flush()
    notes = [(entry["kind"], entry["fact"], json.loads(entry["data"])) for _, entry in redis.xrange("p:live:r")]

    about = {"step": 1, "attempt": 0}
    assert notes == [
        ("model.reasoning", "0", {**about, "offset": 0, "text": "one two "}),
        ("model.reasoning", "0", {**about, "offset": 8, "text": "three"}),
        ("model.delta", "0", {**about, "offset": 0, "text": "a", "reasoning": "one two three"}),
        ("model.delta", "0", {**about, "offset": 1, "text": "b"}),
    ]


def test_a_text_does_not_continue_the_reasoning_that_is_as_long(redis, events):
    """Where the first pieces of it were dropped."""
    watch(redis, "r", 60, prefix="p:")
    speaker = Speaker(events)
    speaker.think("12345")
    events.flush()
    speaker.pieces.append("hello")
    speaker.say("!")
    events.flush()
    assert sent(redis) == [(0, "12345"), (0, "hello!")]


def test_first_piece_for_a_watcher_brings_all_that_was_said_before(redis, events):
    speaker = Speaker(events)
    for text in ("said ", "before "):
        speaker.say(text)
    events.flush()
    watch(redis, "r", 60, prefix="p:")
    for text in ("he ", "came"):
        speaker.say(text)
    events.flush()
    assert sent(redis) == [(0, "said before he "), (15, "came")]


def test_watcher_that_comes_back_gets_all_of_it_again(redis, events):
    watch(redis, "r", 60, prefix="p:")
    speaker = Speaker(events)
    speaker.say("one ")
    events.flush()
    watch(redis, "r", -1, prefix="p:")
    speaker.say("two ")
    events.flush()
    watch(redis, "r", 60, prefix="p:")
    speaker.say("three")
    events.flush()
    assert sent(redis) == [(0, "one "), (0, "one two three")]


def test_what_redis_did_not_take_comes_with_the_next(redis, events, monkeypatch):
    watch(redis, "r", 60, prefix="p:")
    speaker = Speaker(events)
    speaker.say("one ")
    events.flush()
    script = events._script

    def away(**_more):
        raise redis_events.RedisError("away")

    monkeypatch.setattr(events, "_script", away)
    speaker.say("two ")
    events.flush()
    monkeypatch.setattr(events, "_script", script)
    speaker.say("three")
    events.flush()
    assert sent(redis) == [(0, "one "), (0, "one two three")]


def test_a_long_text_is_sent_whole_now_and_then(redis, events, monkeypatch):
    """A stream keeps its last entries only."""
    monkeypatch.setattr(redis_events, "WHOLE_EVERY", 3)
    watch(redis, "r", 60, prefix="p:")
    speaker = Speaker(events)
    for text in "abcdefgh":
        speaker.say(text)
    events.flush()
    assert [offset for offset, _ in sent(redis)] == [0, 1, 2, 3, 0, 5, 6, 7]


def test_another_attempt_begins_at_its_beginning(redis, events):
    watch(redis, "r", 60, prefix="p:")
    Speaker(events, attempt=1).say("old")
    Speaker(events, attempt=2).say("new")
    events.flush()
    assert sent(redis) == [(0, "old"), (0, "new")]


def test_nothing_is_kept_of_a_run_whose_reply_is_on_record(redis, events):
    watch(redis, "r", 60, prefix="p:")
    Speaker(events).say("all")
    events.emit("r", "model.replied", step=1, text="all")
    events.flush()
    assert events._sent == {}


@pytest.fixture
def reader(redis_url, monkeypatch):
    """One whose read waits so long that nothing comes by its end."""
    monkeypatch.setattr(run_stream, "BLOCK", 3600.0)
    notes: list[StreamNote] = []
    links: list[bool] = []
    with Redis.from_url(redis_url, decode_responses=True, socket_timeout=7200) as client:
        reader = RedisRunStreams(client, prefix="p:", on_notes=notes.extend, on_link=links.append)
        yield reader, notes, links
        reader.stop()


def test_a_reader_hears_at_once_of_a_run_it_begins_to_watch(reader, redis):
    streams, notes, _ = reader
    streams.watch("first", 0)
    streams.wake()
    until(lambda: redis.zscore("p:watched", "first"), "it is said that it is watched")
    redis.xadd("p:live:second", {"kind": "tool.started", "run": "second", "data": "{}"})
    streams.watch("second", 0)
    streams.wake()
    until(lambda: notes, "what was there already comes")
    redis.xadd("p:bus:run:first", {"kind": "run.finished", "run": "first", "at": "now"}, id="7-0")
    until(lambda: len(notes) > 1, "what comes now")
    assert [(note.run_id, note.kind, note.is_of_bus, note.row) for note in notes] == [
        ("second", "tool.started", False, 0), ("first", "run.finished", True, 7),
    ]  # fmt: skip


def test_entries_of_the_bus_up_to_the_position_are_known(reader, redis):
    streams, notes, _ = reader
    for row in (6, 7, 8):
        redis.xadd("p:bus", {"kind": "turn.queued", "thread": "t", "turn": str(row), "at": "now"}, id=f"{row}-0")
    streams.watch_fleet(7)
    streams.wake()
    until(lambda: notes, "the new one comes")
    assert [(note.turn_id, note.thread_id) for note in notes] == [("8", "t")]


def test_entries_that_cannot_be_read_are_passed_over(reader, redis):
    streams, notes, _ = reader
    redis.xadd("p:live:r", {"kind": "model.delta", "run": "r", "data": "{"})
    redis.xadd("p:live:r", {"what": "is this"})
    redis.xadd("p:live:r", {"kind": "model.reset", "run": "r", "data": "{}"})
    streams.watch("r", 0)
    streams.wake()
    until(lambda: notes, "the last comes")
    assert [note.kind for note in notes] == ["model.reset"]


def test_piece_that_was_dropped_comes_with_the_next(redis, events, monkeypatch):
    """Too many events waited to be sent."""
    watch(redis, "r", 60, prefix="p:")
    speaker = Speaker(events)
    speaker.say("one ")
    events.flush()
    with monkeypatch.context() as full:
        full.setattr(redis_events, "MOST_WAITING", 0)
        speaker.say("two ")
    speaker.say("three")
    events.flush()
    assert sent(redis) == [(0, "one "), (0, "one two three")]
