"""Which files are found, which are refused, and that nothing is read twice."""

from __future__ import annotations

import os

import pytest

from chordage.orchestrator.core.pulse import WorkKind
from chordage.orchestrator.gateways.schedules import files, room_work
from chordage.orchestrator.gateways.schedules.room_work import RoomWork
from chordage.workers.room_check import pulse_faults
from support.pulse_room import aged


@pytest.fixture
def room(tmp_path):
    inside = tmp_path / "room"
    (inside / "tasks").mkdir(parents=True)
    (inside / "chores" / "home").mkdir(parents=True)
    return inside


def test_files_are_found_at_any_depth_and_hidden_ones_are_not(room):
    for path in ("chores/home/a.md", "chores/b.md", "chores/.c.md", "chores/d.txt", "will.md"):
        (room / path).write_text("x")

    assert set(RoomWork(room).read().items) == {
        (WorkKind.CHORE, "home/a"),
        (WorkKind.CHORE, "b"),
        (WorkKind.WILL, "will"),
    }


def test_links_out_of_the_room_are_not_followed(room):
    (room.parent / "secret.md").write_text("secret")
    (room.parent / "more").mkdir()
    (room / "chores/in.md").write_text("x")
    (room / "chores/out.md").symlink_to(room.parent / "secret.md")
    (room / "chores/within.md").symlink_to(room / "chores/in.md")
    (room / "chores/more").symlink_to(room.parent / "more")
    (room / "will.md").symlink_to(room.parent / "secret.md")

    look = RoomWork(room).read()

    assert {key for _kind, key in look.items} == {"in", "within"}
    assert [str(error).split(": is a")[0] for error in pulse_faults(room)] == [
        "chores/more:1", "chores/out.md:1", "will.md:1",
    ]  # fmt: skip


def test_links_that_lead_in_a_circle_are_a_fault_of_their_own(room):
    (room / "chores/a.md").symlink_to(room / "chores/b.md")
    (room / "chores/b.md").symlink_to(room / "chores/a.md")
    (room / "chores/folder").symlink_to(room / "chores/folder")
    (room / "chores/in.md").write_text("x")

    look = RoomWork(room).read()

    assert {key for _kind, key in look.items} == {"in"}
    assert [str(error).split(": ")[0] for error in pulse_faults(room)] == [
        "chores/a.md:1", "chores/b.md:1", "chores/folder:1",
    ]  # fmt: skip


def test_what_is_no_file_or_too_large_is_refused(room):
    os.mkfifo(room / "chores/pipe.md")
    (room / "chores/folder.md").mkdir()
    (room / "chores/large.md").write_bytes(b"x" * (files.LARGEST + 1))

    assert [str(error).split(": ")[0] for error in pulse_faults(room)] == [
        "chores/folder.md:1", "chores/large.md:1", "chores/pipe.md:1",
    ]  # fmt: skip


def test_folders_that_never_end_are_refused(room):
    deep = room / "chores" / "/".join("d" * (files.DEEPEST + 2))
    deep.mkdir(parents=True)
    (deep / "a.md").write_text("x")

    assert f"is nested more than {files.DEEPEST} folders deep: move it up" in str(pulse_faults(room)[0])


@pytest.mark.parametrize("name", ["a\nb.md", "a\x1b[31m.md", "a\u202e.md", "more\n/a.md"])
def test_name_with_invisible_characters_is_a_fault_of_one_line(room, name):
    place = room / "chores" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("every: 1h")

    assert RoomWork(room).read().items == {}
    (told,) = map(str, pulse_faults(room))
    assert told.isprintable()
    assert "rename it" in told


def test_name_that_is_no_unicode_is_a_fault(room):
    (room / os.fsdecode(b"chores/\xff.md")).write_text("x")

    assert "not UTF-8" in str(pulse_faults(room)[0])


def test_folder_that_cannot_be_read_hides_nothing_for_good(room, monkeypatch):
    (room / "chores/a.md").write_text("x")

    def refuse(_folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.os, "scandir", refuse)
    look = RoomWork(room).read()

    assert sorted(look.faults) == ["chores", "tasks"]
    assert look.may_be_there("chores/home/a.md")
    assert not look.may_be_there("will.md")


def test_file_that_did_not_change_is_not_read_again(room, monkeypatch):
    aged(_written(room / "chores/a.md", "x"))
    work = RoomWork(room)
    first = work.read()
    monkeypatch.setattr(room_work, "_read", lambda *_, **__: pytest.fail("it was read"))

    assert work.read() is first


def test_file_that_was_saved_just_now_is_read_again_for_it_may_change_without_a_trace(room):
    file = _written(room / "chores/a.md", "x")
    work = RoomWork(room)
    work.read()
    before = file.stat()
    file.write_text("y")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert work.read().items[WorkKind.CHORE, "a"].text.endswith("y")


def test_id_is_written_once_and_looking_alone_writes_none(room):
    file = _written(room / "tasks/a.md", "Paint.\n")
    assert pulse_faults(room) == []
    assert file.read_text() == "Paint.\n"
    one, other = RoomWork(room), RoomWork(room)
    one.read()

    keys = {key for work in (one, other, one) for _kind, key in work.read(give_ids=True).items}

    assert len(keys) == 1
    assert file.read_text() == f"---\nid: {keys.pop()}\n---\nPaint.\n"


def test_task_that_cannot_get_an_id_is_a_fault(room, monkeypatch):
    _written(room / "tasks/a.md", "Paint.\n")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room_work.files, "replace", full)

    assert "id: abcd2345" in str(RoomWork(room).read(give_ids=True).faults["tasks/a.md"])


def test_task_saved_while_it_gets_an_id_is_left_to_the_next_look(room, monkeypatch):
    file = _written(room / "tasks/a.md", "Paint.\n")
    work = RoomWork(room)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(room_work.files, "new_id", lambda *_: file.write_text("Paint it.\n") and "abcd2345")
        assert work.read(give_ids=True).items == {}

    assert [item.text for item in work.read(give_ids=True).items.values()] == ["Paint it."]


def test_mirror_that_cannot_be_written_stops_nothing(room):
    (room / "pulse.json").mkdir()

    RoomWork(room).mirror(room_work.PulseMemory())

    assert list((room / "pulse.json").iterdir()) == []


def test_what_became_something_else_is_not_read_as_what_it_was(room):
    file = _written(room / "tasks/a.md", "---\nid: one\n---\n")
    work = RoomWork(room)
    (item,) = work.read().items.values()
    assert work.again(item) is item
    file.write_text("---\nid: two\n---\n")

    assert work.again(item) is None
    assert work.find_task("two").key == "two"


def _written(file, text):
    file.write_text(text)
    return file
