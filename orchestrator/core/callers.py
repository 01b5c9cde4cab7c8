"""Who sends a request over HTTP, and what that caller may do and reach."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.errors import Forbidden
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import space_of

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")  # a part of the ids of its threads: no colon, no tilde


class KeyScope(StrEnum):
    SUBMIT = "submit"  # send messages, and drive stepped turns
    READ = "read"  # states, times, names and counts
    PAYLOADS = "payloads"  # texts, arguments and results
    DECIDE = "decide"  # answer questions
    OPERATE = "operate"  # cancel, retry, fork, budgets, deliveries, tasks and chores
    ADMIN = "admin"  # keys


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    id: str  # of its key, or of the way it came in: recorded with what it decides and changes
    tenant: str | None = None  # its turns count for this tenant, whatever they say
    scopes: frozenset[KeyScope] = frozenset(KeyScope)
    agents: frozenset[str] | None = None  # the agents it may address; None: all
    groups: frozenset[Group] | None = None  # the groups it may use; None: all
    sees_all: bool = False  # threads of every space, not only of its own: an operator
    address: str | None = None  # of the client
    traceparent: str | None = None  # what it sent with this request
    may_act_as: bool = False  # speak for users, each of whom has threads of its own
    user: str | None = None  # for whom it speaks

    @property
    def space(self) -> str:
        """Of the threads it writes to."""
        return space_of(self.tenant, self.user)

    @property
    def reach(self) -> str | None:
        """The space of the threads it can see; None: all of them."""
        return None if self.sees_all else self.space

    @property
    def sees_room(self) -> bool:
        """Where the files of the room are, and what is in them: who operates the whole fleet."""
        return KeyScope.OPERATE in self.scopes and self.user is None and (self.tenant is None or self.sees_all)

    @property
    def label(self) -> str:
        """Its name in a refusal. Who comes without a key is `local`, or has an id with a colon."""
        if self.id == LOCAL.id:
            return "a request without a key"
        return f"the caller {self.id}" if ":" in self.id else f"the key {self.id}"

    @property
    def actor(self) -> Actor:
        return Actor(id=self.id, user=self.user, tenant=self.tenant, address=self.address)

    def acting_as(self, user: str) -> Caller:
        """The caller that speaks for this user, and reaches the threads of that user alone. Raises Forbidden."""
        if not self.may_act_as:
            problem = f"{self.label} may not speak for users: make one with `chordage keys create --act-as`"
            raise Forbidden(problem)
        check_user(user)
        return replace(self, user=user, sees_all=False)


_ALL_BUT_KEYS = frozenset(KeyScope) - {KeyScope.ADMIN}
# A program on this machine, where the server can be reached from this machine alone.
LOCAL = Caller(id="local", scopes=_ALL_BUT_KEYS, may_act_as=True)
# A person who came with a one-time link, which only who has the database can make.
OPERATOR = Caller(id="local", scopes=_ALL_BUT_KEYS, sees_all=True)


def check_user(name: str) -> None:
    """Raises Forbidden."""
    if not _USER.fullmatch(name):
        problem = f"{name!r:.120} is no name of a user: give 1 to 100 of letters, digits and ._@+-, and no sign first"
        raise Forbidden(problem)
