"""A message that somebody else has sent, as monitors see it: their Celery puts all that was said into what is shown."""

from __future__ import annotations

from celery.worker.request import Request

from chordage.tasks import shown


class Intake(Request):
    @property
    def argsrepr(self) -> str:
        return ""

    @property
    def kwargsrepr(self) -> str:
        return shown.of_others(self.kwargs)
