"""Whether a reply that would end a run is the output its agent demands, and what follows when it is not.

Asked before the transaction in which the reply is recorded: the form may be the room's own code, and it has a few
seconds. One that hangs longer, or raises what is no verdict, ends the run with an error that names it. It runs in a
thread, so what never lets go of the interpreter (a regular expression that explodes) cannot be helped.

Whether the one repair was given already is read from the journal, where it is noted with the reply it was given for: a
process may die anywhere, and none is given twice.
"""

from __future__ import annotations

from chordage.orchestrator.core import output
from chordage.orchestrator.core.model import Reply, StopReason
from chordage.orchestrator.core.moves import Finish, Move
from chordage.orchestrator.core.output import Accepted, Ended, Refused, Verdict
from chordage.orchestrator.core.reasons import Reason, failed
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.text import clean_json
from chordage.orchestrator.gateways.ports import OutputForm
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import journal
from chordage.orchestrator.strategies.shipped import ENDINGS
from chordage.orchestrator.system.user_code import JobRaised, TookTooLong, within

CHECK_SECONDS = 5.0


def complete_only(move: Move, reply: Reply) -> Move:
    """A reply that was cut or declined is no answer to be judged: the run stops with that, in every strategy."""
    if not _is_natural(move) or reply.stop in {StopReason.TOOL_USE, StopReason.PAUSE_TURN}:
        return move
    return Finish(ending=ENDINGS[reply.stop])


def verdict(rt: Runtime, run: Run, form: OutputForm, reply: Reply, move: Move) -> Verdict | None:
    """None where the reply does not end the run by itself."""
    if not _is_natural(move):
        return None
    checked = check(form, reply.text)
    if isinstance(checked, Refused) and _was_repaired(rt, run):
        return output.given_up(checked.why)
    return checked


def _is_natural(move: Move) -> bool:
    return isinstance(move, Finish) and move.ending.reason is Reason.NATURAL_END


def _was_repaired(rt: Runtime, run: Run) -> bool:
    with rt.store.read() as tx:
        return journal.was_refused(tx, run.id)


def check(form: OutputForm, text: str, *, seconds: float = CHECK_SECONDS) -> Verdict:
    try:
        value = clean_json(output.value_in(text))  # what is judged is what will be stored
        problems = within(seconds, lambda: form.problems(value), "output check")
    except output.NoValue as error:
        return Refused(why=str(error))
    except JobRaised as error:
        return _unchecked(form, f"raised {error}")
    except TookTooLong:
        return _unchecked(form, f"took longer than {seconds:g} s")
    return Refused(why=output.listed(problems)) if problems else Accepted(value=value)


def _unchecked(form: OutputForm, what: str) -> Ended:
    remedy = "a validator refuses a value with ValueError, and comes back at once"
    return Ended(ending=failed(output.UNCHECKED, f"{form.name} {what} when the answer was checked; {remedy}"))
