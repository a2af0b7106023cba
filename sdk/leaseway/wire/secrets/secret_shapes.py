"""Detects likely secrets by their names and by the shapes of their values.

This is a heuristic for warnings and for redacting records. That it finds nothing does not make a
value safe to print.
"""

from __future__ import annotations

import re
from typing import Final

SHAPES: Final = (
    ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    ("a private key", r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}"),
    ("a private key", r"PuTTY-User-Key-File-\d"),
    (
        # From the beginning of a word, with all that stands before it, so that the time of a search
        # does not grow with the square of a text's length.
        "a JSON web token",
        r"(?<![\w-])(?=[\w-]*\beyJ[\w-]{8})[\w-]++\.eyJ[\w-]{8,}+\.[\w-]*",
    ),
    ("a Leaseway key", r"\blwk_[a-z0-9]{8}_[\w-]{20,}"),
    ("an API key", r"\bsk-[A-Za-z0-9_-]{16,}"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,})"),
    ("a GitLab token", r"\bgl(?:pat|rt|dt|cbt|ptt)-[\w-]{16,}"),
    ("an AWS access key", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("a Slack token", r"\bx(?:ox[abeoprs]|app)-[A-Za-z0-9-]{10,}"),
    ("a Slack webhook", r"hooks\.slack\.com/services/T\w+/B\w+/\w{16,}"),
    ("a Google API key", r"\bAIza[\w-]{30,}"),
    ("a Google token", r"\bya29\.[\w-]{20,}"),
    ("an npm token", r"\bnpm_[A-Za-z0-9]{30,}"),
    ("a PyPI token", r"\bpypi-AgE[\w-]{30,}"),
    ("a Docker token", r"\bdckr_pat_[\w-]{20,}"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{20,}"),
    ("a Stripe key", r"\b(?:[rs]k|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,}"),
    ("a SendGrid key", r"\bSG\.[\w-]{16,}\.[\w-]{16,}"),
    ("a DigitalOcean token", r"\bdo[opr]_v1_[a-f0-9]{32,}"),
    ("a Shopify token", r"\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{24,}"),
    ("a Vault token", r"\bhv[sbr]\.[\w-]{20,}"),
    ("a Telegram token", r"\b\d{8,10}:AA[\w-]{32,}"),
    ("a bearer credential", r"(?i:\b(?:bearer|basic|token)\s+[A-Za-z0-9+/=_.~-]{16,})"),
    ("an address with a password", r"://[^/\s:@\"]*:[^/\s@\"]+@"),
    (
        "a password",
        (
            r"(?i:\b(?:password|passwd|pwd|secret|api_?key|access_?key|account_?key|auth_?token"
            r"|access_?token|sig|signature|client_secret)\s?[=:]\s?[^\s&;,\"]{6,})"
        ),
    ),
)
"""(description, regular expression); each works on text and on JSON bytes."""

SECRET_SHAPES: Final = "|".join(f"(?:{expression})" for _, expression in SHAPES)
"""One regular expression for all of them."""

SENSITIVE_NAMES: Final = (
    "tokens?|secrets?|passwo?r?ds?|passphrase|pwd|credentials?|api[_-]?keys?|access[_-]?key"
    "|access[_-]?key[_-]?id|private[_-]?key|secret[_-]?key|signing[_-]?key|encryption[_-]?key"
    "|authorization|auth|cookies?|session[_-]?id"
    "|(?:\\b|[_-])(?:pass|pin|cvv|cvc|otp|jwt)"
)
"""Endings of names that stand for secrets."""

_SHAPE_MARKS_TEXT: Final = (
    "private key|age-secret-key-1|putty-user-key|eyj|lwk_|sk-|ghp_|gho_|ghu_|ghs_|ghr_|github_pat_"
    "|glpat-|glrt-|gldt-|glcbt-|glptt-|akia|asia|xox|xapp-|slack.com|aiza|ya29.|npm_|pypi-age"
    "|dckr_pat_|hf_|sk_|rk_|whsec_|sg.|_v1_|shpat_|shpca_|shppa_|shpss_|hvs.|hvb.|hvr.|:aa|bearer"
    "|basic|token|://|pass|pwd|secret|key|sig"
)
_SHAPE_MARKS: Final = tuple(_SHAPE_MARKS_TEXT.split("|"))
"""Each shape contains at least one of these in lower case; a cheap test before the expression."""

_MARKS: Final = (*_SHAPE_MARKS, "credential", "auth", "cookie", "session", "pin", "cvv", "cvc")
BYTE_MARKS: Final = tuple(mark.encode() for mark in (*_MARKS, "otp", "jwt", "\\"))
"""JSON with a secret contains at least one of these in lower case."""

_NAME: Final = re.compile(rf"(?i)(?:{SENSITIVE_NAMES})\Z")
_ANY: Final = re.compile(SECRET_SHAPES)
_MAX_SEARCHED: Final = 1 << 20


def names_a_secret(name: str) -> bool:
    """Return whether the name of a key, variable, header or flag suggests a secret."""
    return _NAME.search(name.strip("-")) is not None


def contains_secret(text: str) -> bool:
    """Return whether a text contains a likely secret."""
    lower = text.lower()
    if not any(mark in lower for mark in _SHAPE_MARKS):
        return False
    return _ANY.search(text, 0, _MAX_SEARCHED) is not None
