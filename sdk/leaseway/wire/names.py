"""The rule for names, and which known names are near to an unknown one.

What callers name themselves and their sessions by: one rule at every entrance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from leaseway.wire.errors import Fault, Reason

DEFAULT_TENANT = "default"
"""Who everyone is until tenants exist (DESIGN §14)."""

ALL_TENANTS = "*"
"""Who an operator asks for to have the servers of every tenant listed; no tenant's name."""

LONGEST_KEY: Final = 256
"""Characters of a session key, a tenant or an agent: what callers name in each request."""

KEY_RULE: Final = f"at most {LONGEST_KEY} characters, without line breaks or other control ones"
"""The rule for them in words, for messages."""

_CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")

SECRET_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""What names a secret, in a vault and in the references to it."""

SECRET_NAME_RULE = "1 to 128 letters, digits, '_', '.' or '-'"  # noqa: S105 - a rule
"""The same in words, for messages."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def is_valid_name(name: str) -> bool:
    """Return whether a tool name or server id satisfies `^[a-zA-Z0-9_-]{1,64}$` (DESIGN §2)."""
    return _NAME.fullmatch(name) is not None


def is_valid_key(key: str) -> bool:
    """Return whether a session key, a tenant or an agent satisfies `KEY_RULE`; empty ones do."""
    return len(key) <= LONGEST_KEY and _CONTROL.search(key) is None


def is_text(value: str) -> bool:
    """Return whether UTF-8 can hold a string, and so whether it can be sent at all.

    Python's strings may have lone surrogates, halves of characters: JSON can name them, and the
    bytes of a command line that are not UTF-8 become such.
    """
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def qualified(server_id: str, original_name: str) -> str:
    """Return the name that is unique without transforms, such as `time:now`."""
    return f"{server_id}:{original_name}"


def split_qualified(name: str) -> tuple[str, str] | None:
    server_id, colon, original = name.partition(":")
    return (server_id, original) if colon else None


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return the known names most like an unknown one, the nearest first."""
    return get_close_matches(name, list(known), n=limit, cutoff=0.5)


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
