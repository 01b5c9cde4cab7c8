"""Task names: a wire format. A message may outlive a deploy, so a name is changed in two of them."""

from __future__ import annotations

SUBMIT = "turns.submit"
CANCEL = "turns.cancel"
DECIDE = "turns.decide"
COMPACT = "threads.compact"
STEP = "turns.step"
HELD = "turns.held"
DISPATCH = "turns.dispatch"
ADVANCE = "runs.advance"
STEP_ON = "runs.step_on"
CALL_MODEL = "models.call"
CALL_TOOLS = "tools.call"
COMMIT_ROUND = "rounds.commit"
BULK = "system.bulk"
RESCUE = "system.rescue"  # this and the next two are ticks of beat: config/celery_settings.py
PULSE = "system.pulse"
PROJECT = "system.project"
DELIVER = "deliveries.send"
