"""Task names: a wire format. A message may outlive a deploy, so a name is changed in two of them."""

from __future__ import annotations

WIRE = 1  # of the messages that this version understands; what raises it: newer_messages.py
NEEDS = "chordage_needs"  # the header of a message that takes more than the first: the WIRE that its workers need

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
