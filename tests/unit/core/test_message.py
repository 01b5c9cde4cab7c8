"""The rules that each origin lays on a message, and what a turn request may ask for."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Bounds, Origin, Sender, check, group_of
from chordage.orchestrator.core.stepping import Control, StepTerms
from support.builders import NOON, a_request

CHAT = {"origin": Origin.CHAT, "channel": "api"}
OWN = [Origin.TASK, Origin.CHORE, Origin.WILL]
THREAD = {Origin.TASK: "task:7", Origin.CHORE: "chore:backup", Origin.WILL: "will:ada"}
USUAL = Bounds()
HALF = "\ud800"  # of a surrogate pair


def refused(bounds=USUAL, **given_fields):
    """The error a request is refused with."""
    with pytest.raises(InvalidMessage) as caught:
        check(a_request(**given_fields), bounds, NOON)
    return caught.value


def accepted(bounds=USUAL, **given_fields):
    check(a_request(**given_fields), bounds, NOON)
    return True


# origin, channel and sender


@pytest.mark.parametrize("channel", [None, "", " ", "\t\n"])
def test_chat_needs_a_channel(channel):
    error = refused(origin=Origin.CHAT, channel=channel)

    assert (error.field, str(error)) == ("channel", "origin 'chat' needs a channel, such as 'api' or 'telegram'")


@pytest.mark.parametrize("origin", [Origin.INVOKE, *OWN])
@pytest.mark.parametrize("channel", ["api", "", " "])
def test_every_other_origin_takes_none(origin, channel):
    error = refused(origin=origin, channel=channel, sender=Sender.SELF)

    assert error.field == "channel"
    assert f"origin {origin.value!r} takes no channel" in str(error)


@pytest.mark.parametrize("sender", list(Sender))
@pytest.mark.parametrize("origin", OWN)
def test_only_the_agent_itself_sends_tasks_chores_and_wills(origin, sender):
    if sender is Sender.SELF:
        assert accepted(origin=origin, sender=sender, thread_id=THREAD[origin])
    else:
        assert refused(origin=origin, sender=sender, thread_id=THREAD[origin]).field == "sender"


@pytest.mark.parametrize("sender", list(Sender))
def test_every_sender_may_chat_and_invoke(sender):
    assert accepted(**CHAT, sender=sender)
    assert accepted(origin=Origin.INVOKE, sender=sender)


# thread_id


@pytest.mark.parametrize("thread_id", [None, "t", "t" * 200, "telegram:42:topic", "a b", "тред", "🧵", "task:1"])
def test_thread_ids_that_can_be_used(thread_id):
    assert accepted(thread_id=thread_id)


@pytest.mark.parametrize(("thread_id", "length"), [("", 0), ("t" * 201, 201)])
def test_a_thread_id_has_one_to_two_hundred_characters(thread_id, length):
    error = refused(thread_id=thread_id)

    assert (error.field, str(error)) == ("thread_id", f"thread_id must have 1 to 200 characters, not {length}")


@pytest.mark.parametrize(
    "thread_id", ["a\nb", "a\tb", "\x00", "a\x7f", "a\x1b[31m", "a\u200b", "a\u202eb", HALF, " ", "   ", "\u2028"]
)
def test_a_thread_id_is_visible(thread_id):
    error = refused(thread_id=thread_id)

    assert error.field == "thread_id"
    assert "visible characters" in str(error)


# text and meta


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u2003"])
def test_a_blank_text_is_refused(text):
    assert refused(text=text).field == "text"


def test_content_parts_may_replace_the_text():
    assert accepted(text="", meta={"parts": [{"type": "image"}]})
    assert refused(text="", meta={"parts": []}).field == "text"


@pytest.mark.parametrize(("letter", "count"), [("x", 12), ("é", 6), ("€", 4), ("🧵", 3)])
def test_the_text_is_measured_in_bytes_and_the_limit_belongs_to_it(letter, count):
    bounds = Bounds(text_bytes=12)

    assert accepted(bounds, text=letter * count)
    error = refused(bounds, text=letter * count + "x")
    assert (error.field, error.too_large) == ("text", True)
    assert "the limit is 12" in str(error)


def test_the_usual_limits_are_256_and_64_kib():
    assert accepted(text="x" * 262_144)
    assert refused(text="x" * 262_145).too_large
    empty = len(json.dumps({"k": ""}))
    assert accepted(meta={"k": "x" * (65_536 - empty)})
    error = refused(meta={"k": "x" * (65_537 - empty)})
    assert (error.field, error.too_large) == ("meta", True)


def test_meta_is_measured_as_the_bytes_that_are_written():
    meta = {"k": "é"}
    size = len('{"k": "é"}'.encode())

    assert accepted(Bounds(meta_bytes=size), meta=meta)
    assert refused(Bounds(meta_bytes=size - 1), meta=meta).too_large


@pytest.mark.parametrize("bad", ["\x00", "a\x00b", HALF, "\udc00 alone"])
def test_what_no_database_stores_is_refused_and_not_altered(bad):
    assert refused(text=f"hi {bad}").field == "text"
    assert refused(meta={"k": bad}).field == "meta"
    assert refused(meta={bad: 1}).field == "meta"
    assert refused(meta={"k": [{"deep": bad}]}).field == "meta"


def test_whole_pairs_are_text_like_any_other():
    assert accepted(text="🧵", meta={"k": "🧵"})


def test_text_may_speak_of_the_escape_for_nul():
    assert accepted(text=r"what does \u0000 mean in JSON?")


def test_meta_may_speak_of_the_escape_for_nul():
    assert accepted(meta={"k": r"\u0000"})
    assert refused(meta={"k": "\\\x00"}).field == "meta"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1}], ids=["nan", "inf", "object", "set"])
def test_meta_that_is_no_json_is_refused(value):
    assert refused(meta={"k": value}).field == "meta"


@given(text=st.text(min_size=1).filter(str.strip))
def test_any_text_that_utf_8_can_hold_is_accepted_or_refused_for_its_nul(text):
    if "\x00" in text:
        assert refused(text=text).field == "text"
    else:
        assert accepted(text=text)


# names: what the columns of the database can hold


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\x00b", HALF], ids=["empty", "long", "nul", "half a pair"])
def test_a_dedupe_key_has_one_to_two_hundred_characters_that_can_be_stored(bad):
    assert accepted(dedupe_key="k") and accepted(dedupe_key="k" * 200)
    assert refused(dedupe_key=bad).field == "dedupe_key"


@pytest.mark.parametrize("bad", ["x" * 201, "a\x00b", HALF], ids=["long", "nul", "half a pair"])
def test_channel_and_tenant_can_be_stored(bad):
    assert accepted(origin=Origin.CHAT, channel="c" * 200, tenant="t" * 200)
    assert refused(origin=Origin.CHAT, channel=bad).field == "channel"
    assert refused(tenant=bad).field == "tenant"


@pytest.mark.parametrize("bad", ["\x00", HALF, float("nan"), object()], ids=["nul", "half a pair", "nan", "object"])
def test_a_reply_target_can_be_stored(bad):
    assert accepted(reply_target={"channel": "42"})
    assert refused(reply_target={"channel": bad}).field == "reply_target"


def test_a_reply_target_is_no_larger_than_meta():
    error = refused(Bounds(meta_bytes=20), reply_target={"channel": "x" * 20})

    assert (error.field, error.too_large) == ("reply_target", True)


# group, control and times


@pytest.mark.parametrize("group", list(Group))
@pytest.mark.parametrize("origin", list(Origin))
def test_a_turn_may_only_be_moved_downwards(origin, group):
    fields = {"origin": origin, "channel": "api" if origin is Origin.CHAT else None, "sender": Sender.SELF}
    fields["thread_id"] = THREAD.get(origin)
    own = group_of(a_request(**fields))

    if group.rank >= own.rank:
        assert accepted(**fields, group=group)
        assert group_of(a_request(**fields, group=group)) is group
    else:
        error = refused(**fields, group=group)
        assert error.field == "group"
        assert f"ranks above {own.value!r}" in str(error)


@pytest.mark.parametrize(
    ("origin", "group"),
    [
        (Origin.INVOKE, Group.CHAT),
        (Origin.CHAT, Group.CHAT),
        (Origin.TASK, Group.TASK),
        (Origin.CHORE, Group.CHORE),
        (Origin.WILL, Group.WILL),
    ],
)
def test_the_origin_decides_the_group(origin, group):
    assert group_of(a_request(origin=origin)) is group


def test_terms_of_stepping_come_with_control_step_and_within_bounds():
    assert accepted(control=Control.STEP, step=StepTerms(max_iterations=1, hold_seconds=1))
    assert refused(step=StepTerms()).field == "step"
    for wrong in (0, -1):
        assert refused(control=Control.STEP, step=StepTerms(max_iterations=wrong)).field == "step.max_iterations"
    for wrong in (0.0, -1.0, 1e9):
        assert refused(control=Control.STEP, step=StepTerms(hold_seconds=wrong)).field == "step.hold_seconds"


@pytest.mark.parametrize("seconds", [0, -1, -86_400])
def test_deadline_is_in_the_future(seconds):
    assert refused(deadline=NOON + timedelta(seconds=seconds)).field == "deadline"
    assert accepted(deadline=NOON + timedelta(microseconds=1))


@pytest.mark.parametrize("later", [0, 1])
def test_a_turn_that_could_never_start_is_refused(later):
    deadline = NOON + timedelta(hours=1)

    error = refused(deadline=deadline, not_before=deadline + timedelta(seconds=later))

    assert error.field == "not_before"
    assert accepted(deadline=deadline, not_before=deadline - timedelta(microseconds=1))


def test_not_before_may_be_in_the_past():
    assert accepted(not_before=NOON - timedelta(days=1))


def test_first_broken_rule_is_reported():
    assert refused(origin=Origin.CHAT, channel=None, thread_id="", text="").field == "channel"
    assert refused(thread_id="", text="").field == "thread_id"
