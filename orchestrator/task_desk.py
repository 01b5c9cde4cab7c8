"""What an agent does to the file of its own task is on record before the file changes.

The record names the text that is about to stand there, so that the pulse knows it when it finds it. Dying between the
two leaves the file as it was, which the record still knows; the call runs again. It is made only for a text that was
known itself: where a person has changed the file, the change is not the agent's own, and leads to a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chordage.orchestrator.core.errors import Conflict, InvalidMessage, LostRace, NotFound, RoomError
from chordage.orchestrator.core.standing_work import Kind
from chordage.orchestrator.gateways.ports import TaskText
from chordage.orchestrator.gateways.work import changing
from chordage.orchestrator.gateways.work.documents import Status
from chordage.orchestrator.gateways.work.room_work import RoomWork
from chordage.orchestrator.gateways.work.task_file import TaskFile, read_file
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import pulse

TRIES = 5  # against an editor that saves at the same moment
_THREAD = "task:"


def of_thread(rt: Runtime, thread_id: str) -> Desk | None:
    """None: a turn on this thread belongs to no task."""
    if rt.work is None or not thread_id.startswith(_THREAD):
        return None
    return Desk(rt=rt, work=rt.work, key=thread_id.removeprefix(_THREAD))


@dataclass(frozen=True, kw_only=True, slots=True)
class Desk:
    """Implements `ports.TaskDesk`."""

    rt: Runtime
    work: RoomWork
    key: str

    def read(self) -> TaskText:
        return _shown(self._file())

    def write(self, *, body: str | None, status: str | None, version: str | None) -> TaskText:
        if status is not None and status not in list(Status):
            raise InvalidMessage(f"status must be one of {', '.join(Status)}, not {status!r}", field="status")

        def change(file: TaskFile) -> str:
            text = file.text
            if body is not None:
                self._check_known(file, version)
                text = changing.with_body(text, file.path, body)
            return text if status is None else changing.with_status(text, file.path, Status(status))

        return self._change(change)

    def comment(self, text: str, mark: str) -> TaskText:
        """`mark`: of this call; a comment that is there already is not made twice."""
        told = f"> {' '.join(text.split())} <!-- {mark} -->"

        def change(file: TaskFile) -> str:
            return file.text if f"<!-- {mark} -->" in file.text else changing.with_comment(file.text, file.path, told)

        return self._change(change)

    def _check_known(self, file: TaskFile, version: str | None) -> None:
        """A body takes the place of the whole text: not of one that the agent has never seen."""
        if version is not None:
            known = version == file.version
        else:
            with self.rt.store.read() as tx:
                row = pulse.load(tx, Kind.TASK, self.key)
            known = row is not None and row.covers(file.item.hash)
        if not known:
            raise Conflict(
                "somebody else has changed the task's file since; nothing was written. Read it with task_read, and "
                "write again with the version it tells"
            )

    def _change(self, change: Callable[[TaskFile], str]) -> TaskText:
        place = self.work.room / self._file().path
        for _ in range(TRIES):
            with changing.holding(place):
                file = self._file()
                after = change(file)
                if after == file.text:
                    return _shown(file)
                new = read_file(file.path, after.encode())
                with self.rt.store.write() as tx:
                    pulse.note_own(tx, self.key, file.item.hash, new.item.hash)
                try:
                    changing.replace(self.work.room / file.path, file.raw, new.raw)
                except LostRace:
                    continue
                except OSError as error:
                    raise RoomError(f"{file.path}:1: cannot be written ({error.strerror}): put it right") from error
                return _shown(new)
        raise Conflict(f"{place.name} is changed again and again by somebody else; nothing was written. Try later")

    def _file(self) -> TaskFile:
        item = self.work.find_task(self.key)
        if item is None:
            raise NotFound(f"there is no file with id {self.key} under tasks/ any more, or it cannot be read")
        return read_file(item.path, (self.work.room / item.path).read_bytes())


def _shown(file: TaskFile) -> TaskText:
    return TaskText(id=file.item.key, path=file.path, status=file.status, text=file.item.text, version=file.version)
