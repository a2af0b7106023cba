"""What callers name themselves and their sessions by: one rule at every entrance."""

from __future__ import annotations

from leaseway.wire.fault import Fault
from leaseway.wire.names import KEY_RULE, LONGEST_KEY, is_valid_key
from leaseway.wire.reasons import Reason

__all__ = ["check_caller_names"]


def check_caller_names(*, session: str = "", tenant: str = "", agent: str = "") -> None:
    """Refuse names that break the rule; an empty one is not given, and passes.

    Raises:
        Fault: INVALID_REQUEST. The message repeats no name.

    """
    for what, name in (("session key", session), ("tenant", tenant), ("agent", agent)):
        if not is_valid_key(name):
            why = f"this one has {len(name)}" if len(name) > LONGEST_KEY else "this one breaks that"
            article = "An" if what[0] == "a" else "A"
            raise Fault(Reason.INVALID_REQUEST, f"{article} {what} has {KEY_RULE}; {why}.")
