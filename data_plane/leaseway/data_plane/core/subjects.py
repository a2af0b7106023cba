"""Names the subjects of calls: users, and those who are known by a token of their own.

See design.md#tokens-for-remote-servers.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

_SALT: Final = secrets.token_bytes(32)
"""Makes digests meaningless outside of this process."""
_DIGEST: Final = "token "
"""How the name of a subject begins that is known by its token only."""


def subject_name(user: str, token: str) -> str:
    """Return the name of whoever gives a token: the user, or else a digest of the token.

    What a token says about its subject is not checked here, so that it names nobody. A user whose
    name looks like such a digest gets the digest, too: he could be taken for another subject.
    """
    if user and user_of_subject(user):
        return user
    digest = hmac.new(_SALT, token.encode(errors="replace"), hashlib.sha256).hexdigest()
    return f"{_DIGEST}{digest[:32]}"


def user_of_subject(subject: str) -> str:
    """Return the user that a subject's name names; empty for the digest of a token."""
    return "" if is_of_token(subject) else subject


def is_of_token(subject: str) -> bool:
    """Return whether a subject's name is the digest of a token, so that it names no user."""
    return subject.startswith(_DIGEST)
