"""Rules for names of tools, servers, tenants and sessions; the key of a lease; names for typos."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, NamedTuple

from leaseway.wire.errors import Fault, Reason

DEFAULT_TENANT = "default"
"""The tenant of callers that name none (design.md#provisions-for-later)."""

ALL_TENANTS = "*"
"""Stands for all tenants in an operator's requests; no tenant may have this name."""

MAX_KEY_LENGTH: Final = 256
"""Characters of a session key, a tenant or an agent, which callers send with each request."""

KEY_RULE: Final = f"at most {MAX_KEY_LENGTH} characters, without line breaks or other control ones"
"""The rule for them, for messages."""

_CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")

_RESERVED_TENANTS: Final = frozenset({"", "all"})
_PATTERN_CHARACTERS: Final = frozenset("*\\")
_RESERVED_PARTS: Final = frozenset({"", ".", ".."})

TENANT_RULE: Final = (
    f"1 to {MAX_KEY_LENGTH} visible characters without '*' and '\\', and is neither 'all' nor a "
    "path such as '..' or '/a', which have a meaning"
)
"""The rule for a tenant's name, for messages."""

SECRET_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The name of a secret, in a vault and in references to it."""

SECRET_NAME_RULE = "1 to 128 letters, digits, '_', '.' or '-'"  # noqa: S105 - a rule
"""The rule for them, for messages."""

MAX_NAME: Final = 64
"""Characters of a tool name or server id."""

MAX_ORIGINAL_NAME: Final = 256
"""Characters of a server's own name of a tool or prompt, so at most 1,024 bytes."""

ORIGINAL_NAME_RULE: Final = (
    f"1 to {MAX_ORIGINAL_NAME} characters, without control ones, half surrogate pairs and marks of"
    " the direction of text"
)
"""The rule for them, for messages."""

_NAME = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_NAME}}}")
_IN_NO_NAME: Final = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


class LeaseKey(NamedTuple):
    """A session's use of a server: there is at most one lease per key (design.md#leases)."""

    tenant: str
    session: str
    server_id: str


def is_valid_name(name: str) -> bool:
    """Return whether a tool name or server id satisfies `^[a-zA-Z0-9_-]{1,64}$`.

    See design.md#configuration.
    """
    return _NAME.fullmatch(name) is not None


def is_valid_original_name(name: str) -> bool:
    """Return whether a server may list a tool or prompt by this name (`ORIGINAL_NAME_RULE`).

    MCP only recommends few characters (2025-11-25, server/tools), and servers use others. Names
    are compared as they are spelt: those with spaces around them, or in another Unicode
    normalization, are other names.
    """
    return 0 < len(name) <= MAX_ORIGINAL_NAME and has_name_characters(name)


def has_name_characters(text: str) -> bool:
    """Return whether a text, which may be empty or long, can be a part of such a name."""
    return _IN_NO_NAME.search(text) is None


def is_valid_key(key: str) -> bool:
    """Return whether a session key, a tenant or an agent satisfies `KEY_RULE`; empty ones do."""
    return len(key) <= MAX_KEY_LENGTH and _CONTROL.search(key) is None


@lru_cache(maxsize=4096)
def is_valid_tenant(name: str) -> bool:
    """Return whether a tenant may have this name (`TENANT_RULE`).

    Names stand in places where others have a meaning: `*` for all tenants, and paths.
    """
    return (
        len(name) <= MAX_KEY_LENGTH
        and name.isprintable()
        and name.strip() == name
        and name.lower() not in _RESERVED_TENANTS
        and _PATTERN_CHARACTERS.isdisjoint(name)
        and _RESERVED_PARTS.isdisjoint(name.split("/"))
    )


def is_text(value: str) -> bool:
    """Return whether a string can be encoded as UTF-8, and so be sent.

    A Python string may contain lone surrogates, from JSON escapes or from bytes of a command line
    that are not UTF-8.
    """
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def qualified(server_id: str, original_name: str) -> str:
    """Return the qualified name, such as `time:now`, which is unique without transforms."""
    return f"{server_id}:{original_name}"


def split_qualified(name: str) -> tuple[str, str] | None:
    server_id, colon, original = name.partition(":")
    return (server_id, original) if colon else None


def nearest(name: str, known: Iterable[str], limit: int = 3, *, cutoff: float = 0.5) -> list[str]:
    """Return the known names that are most similar to an unknown one, best first."""
    return get_close_matches(name, list(known), n=limit, cutoff=cutoff)


def check_caller_names(
    *, session: str = "", tenant: str = "", agent: str = "", user: str = ""
) -> None:
    """Reject names that break `KEY_RULE` or `TENANT_RULE`; empty means not given, and is valid.

    Raises:
        Fault: INVALID_REQUEST. The message does not repeat the name.
    """
    names = (("session key", session), ("tenant", tenant), ("agent", agent), ("user", user))
    for noun, name in names:
        if name and not is_valid_key(name):
            why = (
                f"this one has {len(name)}"
                if len(name) > MAX_KEY_LENGTH
                else "this one breaks that"
            )
            article = "An" if noun[0] == "a" else "A"
            raise Fault(Reason.INVALID_REQUEST, f"{article} {noun} has {KEY_RULE}; {why}.")
    if tenant and not is_valid_tenant(tenant):
        raise Fault(Reason.INVALID_REQUEST, f"A tenant's name has {TENANT_RULE}.")
