"""Which literals look like credentials that should not be in a file (DESIGN §2).

A guess from shape and name: good enough for a warning, never a reason to print the value.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from leaseway.spec.references import references
from leaseway.wire.secrets.secret_names import looks_secret

_SHAPES: Final = tuple(
    (kind, re.compile(expression))
    for kind, expression in (
        ("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
        ("a JSON web token", r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"),
        ("an API key", r"\bsk-[A-Za-z0-9_-]{16,}"),
        ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,})"),
        ("a GitLab token", r"\bglpat-[\w-]{16,}"),
        ("an AWS access key", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
        ("a Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
        ("a Google API key", r"\bAIza[\w-]{30,}"),
        ("an npm token", r"\bnpm_[A-Za-z0-9]{30,}"),
        ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{20,}"),
        ("a Stripe key", r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
        ("a bearer credential", r"(?i)\Abearer\s+\S{8,}"),
        ("a basic credential", r"(?i)\Abasic\s+[A-Za-z0-9+/=_-]{8,}"),
        ("an address with a password", r"://[^/\s:@]+:[^/\s@]+@"),
    )
)

_SECRET_NAME: Final = re.compile(
    r"(?i)(?:token|secrets?|passwo?r?d|passphrase|pwd|credentials?|api[_-]?key|access[_-]?key"
    r"|access[_-]?key[_-]?id|private[_-]?key|secret[_-]?key|authorization|auth|cookie"
    r"|(?:\A|[_-])pass)\Z"
)

_ADDRESS: Final = re.compile(r"\A(?:[a-z][a-z0-9+.-]*://|[./~])", re.IGNORECASE)
_ENOUGH_CHARACTERS: Final = 10
_ENOUGH_ENTROPY: Final = 2.8
_LOOKED_AT: Final = 4_096


def names_a_secret(name: str) -> bool:
    """Return whether a variable, header or flag is named like what holds a secret."""
    return _SECRET_NAME.search(name.strip("-")) is not None


def credential_kind(name: str, literal: str) -> str | None:
    """Return what credential a literal looks like, or None.

    `${NAME:-default}` counts by its default, `${NAME}` for nothing.

    Args:
        name: What the literal is set for; may be empty.
        literal: The text as written.
    """
    text = _without_references(literal[:_LOOKED_AT])
    for kind, shape in _SHAPES:
        if shape.search(text):
            return kind
    if names_a_secret(name) and _is_random(text):
        return "a secret"
    return None


def credential_in_argument(argument: str, before: str) -> str | None:
    """Return what credential an argument holds, as itself, as `--flag=value` or after `--flag`."""
    flag, equals, value = argument.partition("=")
    if equals and flag.startswith("-"):
        return credential_kind(flag, value)
    is_value = before.startswith("-") and not argument.startswith("-")
    return credential_kind(before if is_value else "", argument)


def secret_in_argument(argument: str, before: str) -> str | None:
    """Return which `${NAME}` an argument puts on the command line that looks secret, or None.

    Args:
        argument: The argument as written.
        before: The one before it, which may be the flag that it is the value of.
    """
    flag = argument.partition("=")[0] if argument.startswith("-") else before
    is_flag = flag.startswith("-") and names_a_secret(flag)
    for name, _ in references(argument):
        if is_flag or looks_secret(name):
            return name
    return None


def credential_in_url(url: str) -> str | None:
    """Return what credential a URL's query or path holds."""
    try:
        query = parse_qsl(urlsplit(_without_references(url)).query, max_num_fields=100)
    except ValueError:
        query = []
    found = [credential_kind(name, value) for name, value in query]
    return next((kind for kind in found if kind), None) or credential_kind("", url)


def _without_references(text: str) -> str:
    for name, default in references(text):
        written = f"${{{name}}}" if default is None else f"${{{name}:-{default}}}"
        text = text.replace(written, default or "")
    return text


def _is_random(text: str) -> bool:
    if len(text) < _ENOUGH_CHARACTERS or " " in text.strip() or _ADDRESS.match(text):
        return False
    counts = Counter(text).values()
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    return entropy >= _ENOUGH_ENTROPY
