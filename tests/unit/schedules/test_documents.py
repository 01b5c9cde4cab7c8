"""What files of tasks, chores and the will say, and what is said about those that say it wrong."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.errors import LostRace, RoomError
from chordage.orchestrator.core.pulse import WorkKind
from chordage.orchestrator.gateways.schedules import files, front_matter
from chordage.orchestrator.gateways.schedules.documents import read_item, read_task


def item(path, text):
    return read_item(path, text.encode())


def task(matter="", body="Paint.\n"):
    return item("tasks/fence.md", f"---\nid: abcd2345\n{matter}---\n{body}")


def test_task_without_a_body_is_called_like_its_file():
    assert task(body="\n").text == "fence"
    assert item("tasks/v1.2.md", "---\nid: x\n---\n").text == "v1.2"


def test_id_is_read_as_it_is_written_also_where_yaml_sees_a_number():
    assert item("tasks/a.md", "---\nid: 23456723\n---\n").key == "23456723"
    assert item("tasks/a.md", "---\nid: 2e345677\n---\n").key == "2e345677"


def test_chore_is_named_by_its_path_with_all_its_dots():
    assert item("chores/home/v1.2.md", "x").key == "home/v1.2"
    assert item("will.md", "x").kind is WorkKind.WILL


def test_chore_without_a_schedule_comes_every_hour():
    assert item("chores/a.md", "x").schedule_words == "every 3600 s"
    assert item("chores/a.md", "---\ninterval_sec: 300\n---\n").schedule_words == "every 300 s"


def test_unknown_keys_and_the_body_are_part_of_what_counts_as_a_change():
    same = task("colour: red\n")

    assert same.hash == task("colour: red\n").hash
    assert len({same.hash, task("colour: blue\n").hash, task().hash, task("colour: red\n", "Paint!\n").hash}) == 4


def test_id_and_pause_are_no_change():
    assert task("paused: true\n").hash == task().hash == item("tasks/fence.md", "---\nid: other\n---\nPaint.\n").hash


def test_windows_line_ends_and_byte_order_marks_are_read():
    found = item("tasks/a.md", "\ufeff---\r\nid: x\r\nstatus: done\r\n---\r\nPaint.\r\n")

    assert (found.key, found.closed, found.text) == ("x", True, "Paint.")


@pytest.mark.parametrize(("path", "text", "place", "says"), [
    ("tasks/a.md", "---\nid: x\nstatus: later\n---\n", 3, "todo, doing, done, cancelled"),
    ("tasks/a.md", "---\nstatus:\n---\n", 2, "todo"),
    ("tasks/a.md", "---\nid: ''\n---\n", 2, "is no id"),
    ("tasks/a.md", "---\nid: a..b\n---\n", 2, "is no id"),
    ("tasks/a.md", "---\nid: [a]\n---\n", 2, "is no id"),
    ("tasks/a.md", "---\nid: x\npaused: maybe\n---\n", 3, "true or false"),
    ("tasks/a.md", "---\nid: x\nagent: no body\n---\n", 3, "name of an agent"),
    ("tasks/a.md", "---\nid: x\nrequester: [me]\n---\n", 3, "must be text"),
    ("tasks/a.md", "---\nid: x\nid: y\n---\n", 3, "is listed twice"),
    ("tasks/a.md", "---\nid: x\n", 1, "does not end"),
    ("tasks/a.md", "---\n- id\n---\n", 2, "`key: value`"),
    ("tasks/a.md", "---\nid: x\n  bad: : y\n---\n", 3, "not YAML"),
    ("tasks/a.md", "---\n[a]: x\n---\n", 2, "must be a word"),
    ("tasks/a.md", "---\nid: x\na: &a [1]\nb: *a\n---\n", 3, "anchors"),
    ("tasks/a.md", "---\nid: x\na: !!python/object:os.system {}\n---\n", 3, "not YAML"),
    ("tasks/a.md", "---\nid: x\na: 2026-99-99\n---\n", 2, "not YAML"),
    ("chores/a.md", "---\nthread_id: t\n---\n", 2, "thread of their own"),
    ("chores/a.md", "---\nevery: 5m\ncron: '* * * * *'\n---\n", 3, "keep one"),
    ("chores/a.md", "---\nevery: soon\n---\n", 2, "15m"),
    ("chores/a.md", "---\ntimezone: Mars/Olympus\n---\n", 2, "Europe/Berlin"),
    ("chores/a.md", "---\ntitle: ''\n---\n", 2, "must be text"),
    (f"chores/{'a' * 191}.md", "x", 1, "rename it"),
    ("chores/a.md", "---\na: {1: 2, b: 3}\n---\n", 2, "cannot be compared"),
])  # fmt: skip
def test_fault_names_file_line_and_what_to_do(path, text, place, says):
    with pytest.raises(RoomError) as fault:
        read_item(path, text.encode())

    assert str(fault.value).startswith(f"{path}:{place}: ")
    assert says in str(fault.value)


@pytest.mark.parametrize("text", [
    "Paint.", "Paint.\r\nTwice.\r\n", "---\nstatus: todo # soon\n---\nPaint", "---\r\nstatus: todo\r\n---\r\n", "",
    "\ufeffPaint", "\ufeff---\nstatus: todo\n---\n", "---\n---\nPaint\n",
])  # fmt: skip
def test_id_is_put_in_and_every_other_byte_stays(text):
    found = front_matter.with_key(text, "tasks/a.md", "id", "abcd2345")
    line = "id: abcd2345\r\n" if "\r\n" in text else "id: abcd2345\n"

    assert item("tasks/a.md", found).key == "abcd2345"
    rest = found.replace(line, "", 1)
    assert rest == text or rest.replace("---\r\n---\r\n" if "\r\n" in text else "---\n---\n", "", 1) == text


def test_id_is_the_same_for_all_readers_and_differs_for_each_file():
    ids = {files.new_id(path, b"x", at) for path in ("tasks/a.md", "tasks/b.md") for at in (1, 2)}

    assert len(ids) == 4
    assert all(len(one) == 8 and one.islower() | one.isdecimal() for one in ids)
    assert files.new_id("tasks/a.md", b"x", 1) in ids


@pytest.mark.parametrize(("before", "after"), [
    ("---\nstatus: todo # soon\nid: x\n---\nPaint", "---\nstatus: done # soon\nid: x\n---\nPaint"),
    ("---\nid: x\n---\n", "---\nstatus: done\nid: x\n---\n"),
    ("---\nä: ö\nstatus: 'doing'\n---\n", "---\nä: ö\nstatus: done\n---\n"),
    ("---\r\nid: x\r\nstatus: todo\r\n---\r\n", "---\r\nid: x\r\nstatus: done\r\n---\r\n"),
])  # fmt: skip
def test_status_is_changed_in_place(before, after):
    assert front_matter.with_key(before, "tasks/a.md", "status", "done") == after


def test_body_is_changed_and_the_front_matter_stays():
    assert (
        front_matter.with_body("---\r\nid: x\r\n---\r\nold", "a", "new\nlines")
        == "---\r\nid: x\r\n---\r\nnew\r\nlines\r\n"
    )
    assert front_matter.with_comment("---\nid: x\n---\n", "a", "> hm") == "---\nid: x\n---\n> hm\n"


def test_file_that_was_saved_meanwhile_is_not_overwritten(tmp_path):
    file = tmp_path / "a.md"
    file.write_text("theirs")

    with pytest.raises(LostRace):
        files.replace(file, b"old", b"ours")
    assert [place.name for place in tmp_path.iterdir()] == ["a.md"]
    assert file.read_text() == "theirs"


def test_replacing_keeps_the_mode_of_the_file(tmp_path):
    file = tmp_path / "a.md"
    file.write_text("old")
    file.chmod(0o640)
    files.replace(file, b"old", b"new")

    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)


@pytest.mark.parametrize(
    ("raw", "says"), [(b"\n\xff", ":2: this is not UTF-8"), (b"no id", "write the line `id: ...`")]
)
def test_file_that_is_no_task_any_more_is_reported(raw, says):
    with pytest.raises(RoomError, match=says):
        read_task("tasks/a.md", raw)
