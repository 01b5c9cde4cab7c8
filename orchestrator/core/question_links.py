"""Links to one question: the person who has the address may answer that question once, and nothing else.

The address carries a random token and a signature over what the link is for: the question, the digest of the arguments
that would run, and the end of the link. Only a hash of the address is stored. A row that was changed, or a question
about other arguments, no longer fits the signature.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from datetime import datetime, timedelta

LASTS = timedelta(hours=1)
SHORTEST, LONGEST = timedelta(minutes=1), timedelta(days=30)
ADDRESS_MAX = 200  # characters


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionLink:
    id: str
    hash: str  # of the token with its signature
    question_id: str
    digest: str  # of the arguments that would run
    made_by: str
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    decision_id: str | None = None

    @property
    def decider(self) -> str:
        """Who decides through it, as the decision and the record have it."""
        return f"link:{self.id}"


def signature(secret: bytes, token: str, question_id: str, digest: str, expires_at: datetime) -> str:
    bound = "\n".join(("question-link", token, question_id, digest, str(int(expires_at.timestamp()))))
    return urlsafe_b64encode(hmac.digest(secret, bound.encode(), hashlib.sha256)).decode().rstrip("=")


def is_signed(secret: bytes, address: str, link: QuestionLink) -> bool:
    token, _, signed = address.rpartition(".")
    return hmac.compare_digest(signed, signature(secret, token, link.question_id, link.digest, link.expires_at))
