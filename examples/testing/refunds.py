"""A tool with a fault: it says that it is idempotent, and pays again when its worker died after the first payment."""

from __future__ import annotations

from typing import Protocol

from chordage import Context, tool


class PaymentProvider(Protocol):
    def pay(self, order: int, cents: int, *, key: str | None = None) -> None: ...


class Payments:
    """What the tools of this module use. A test puts its own provider here."""

    provider: PaymentProvider


@tool(effect="idempotent")
def refund(order: int, cents: int, ctx: Context) -> str:
    """Pay money back for an order."""
    ctx.progress("asking the bank")
    Payments.provider.pay(order, cents)  # the fault: without key=ctx.idempotency_key every call pays
    return f"Refunded {cents / 100:.2f} for order {order}."
