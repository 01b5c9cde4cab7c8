"""The Celery task of tool calls: the header of a round's chord."""

from __future__ import annotations

from celery import Celery

from chordage.orchestrator import stages
from chordage.tasks import names
from chordage.tasks.base import StageTask


def register(app: Celery, base: type[StageTask], *, time_limit: int) -> None:
    @app.task(name=names.CALL_TOOLS, base=base, bind=True, shared=False, time_limit=time_limit, acks_on_failure=True)
    def call_tools(
        self: StageTask,
        run: str,  # noqa: ARG001 - for whoever reads the message in Flower
        calls: list[str],
        alone: bool = False,
    ) -> list[str]:
        """Carry these calls out, one after the other. Each writes its own row; what is returned is ids, for the
        chord.
        """
        in_doubt = alone or bool(self.request.delivery_info and self.request.delivery_info.get("redelivered"))
        self.courier.send(stages.run_batch(self.runtime, calls, in_doubt=in_doubt))
        if alone:
            self.courier.send(stages.after_lone_call(self.runtime, calls[-1]))
        return calls
