"""The file of a task, as the tools of its turn read and change it.

A change is on record before the file changes: the record names the text that is about to be in the file, so that the
pulse does not take it for a person's change. A process that dies between the two leaves the file as it was, which the
record still knows, and the call runs again. The record is made only for a text that was known itself: where a person
has changed the file, the change is not the agent's own, and leads to a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chordage.orchestrator.core.errors import Conflict, InvalidMessage, LostRace, NotFound, RoomError
from chordage.orchestrator.core.pulse import WorkKind
from chordage.orchestrator.gateways.ports import TaskText
from chordage.orchestrator.gateways.schedules import files, front_matter
from chordage.orchestrator.gateways.schedules.documents import Status, TaskDocument, read_task
from chordage.orchestrator.gateways.schedules.room_work import RoomWork
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import pulse

TRIES = 5  # against an editor that saves at the same moment
_THREAD = "task:"


def of_thread(rt: Runtime, thread_id: str) -> StoredTaskFile | None:
    """None: a turn on this thread belongs to no task."""
    if rt.work is None or not thread_id.startswith(_THREAD):
        return None
    return StoredTaskFile(rt=rt, work=rt.work, key=thread_id.removeprefix(_THREAD))


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTaskFile:
    """Implements `ports.TaskFile`."""

    rt: Runtime
    work: RoomWork
    key: str

    def read(self) -> TaskText:
        return _shown(self._file())

    def write(self, *, body: str | None, status: str | None, version: str | None) -> TaskText:
        if status is not None and status not in list(Status):
            raise InvalidMessage(f"status must be one of {', '.join(Status)}, not {status!r}", field="status")

        def change(file: TaskDocument) -> str:
            text = file.text
            if body is not None:
                self._check_known(file, version)
                text = front_matter.with_body(text, file.path, body)
            return text if status is None else front_matter.with_key(text, file.path, "status", status)

        return self._change(change)

    def comment(self, text: str, mark: str) -> TaskText:
        """`mark`: of this call; a comment that is there already is not made twice."""
        line = f"> {' '.join(text.split())} <!-- {mark} -->"

        def change(file: TaskDocument) -> str:
            return (
                file.text if f"<!-- {mark} -->" in file.text else front_matter.with_comment(file.text, file.path, line)
            )

        return self._change(change)

    def _check_known(self, file: TaskDocument, version: str | None) -> None:
        """A body replaces the whole text, but none that the agent has never seen."""
        if version is not None:
            known = version == file.version
        else:
            with self.rt.store.read() as tx:
                row = pulse.load(tx, WorkKind.TASK, self.key)
            known = row is not None and row.covers(file.item.hash)
        if not known:
            raise Conflict(
                "the task's file has changed since; nothing was written. Read it with task_read, and write again with "
                "the version that it returns"
            )

    def _change(self, change: Callable[[TaskDocument], str]) -> TaskText:
        place = self.work.room / self._file().path
        for _ in range(TRIES):
            with files.locked(place):
                file = self._file()
                after = change(file)
                if after == file.text:
                    return _shown(file)
                new = read_task(file.path, after.encode())
                with Unit(self.rt) as unit:
                    pulse.note_own(unit.tx, self.key, file.item.hash, new.item.hash)
                try:
                    files.replace(self.work.room / file.path, file.raw, new.raw)
                except LostRace:
                    continue
                except OSError as error:
                    raise RoomError(f"{file.path}:1: cannot be written ({error.strerror}): put it right") from error
                return _shown(new)
        raise Conflict(f"{place.name} is changed again and again; nothing was written. Try later")

    def _file(self) -> TaskDocument:
        item = self.work.find_task(self.key)
        if item is None:
            raise NotFound(f"there is no file with id {self.key} under tasks/ any more, or it cannot be read")
        return read_task(item.path, (self.work.room / item.path).read_bytes())


def _shown(file: TaskDocument) -> TaskText:
    return TaskText(id=file.item.key, path=file.path, status=file.status, text=file.item.text, version=file.version)
