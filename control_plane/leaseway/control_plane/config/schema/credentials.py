"""Literals that look like credentials, which should not be in a file (design.md#configuration).

A guess from shape and name, good enough for a warning. The value itself is never printed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from leaseway.spec.references import references
from leaseway.wire.secrets.secret_names import looks_secret
from leaseway.wire.secrets.secret_shapes import SHAPES, names_a_secret

_HEADERS: Final = (
    ("a bearer credential", r"(?i)\Abearer\s+\S{8,}"),
    ("a basic credential", r"(?i)\Abasic\s+[A-Za-z0-9+/=_-]{8,}"),
)
"""A whole header's value; inside of a text these would be words."""
_SHAPES: Final = tuple((kind, re.compile(shape)) for kind, shape in (*_HEADERS, *SHAPES))

_ADDRESS: Final = re.compile(r"\A(?:[a-z][a-z0-9+.-]*://|[./~])", re.IGNORECASE)
_MIN_SECRET_LENGTH: Final = 10
_MIN_ENTROPY: Final = 2.8
_MAX_SEARCHED: Final = 4_096


def credential_kind(name: str, literal: str) -> str | None:
    """Return the kind of credential that a literal looks like, or None.

    `${NAME:-default}` counts as its default, `${NAME}` as empty. The name is that of the variable,
    header or flag, and may be empty.
    """
    text = with_defaults(literal[:_MAX_SEARCHED])
    for kind, shape in _SHAPES:
        if shape.search(text):
            return kind
    if names_a_secret(name) and _is_random(text):
        return "a secret"
    return None


def credential_in_argument(argument: str, before: str) -> str | None:
    """Return the kind of credential in an argument, in `--flag=value`, or after `--flag`."""
    flag, equals, value = argument.partition("=")
    if equals and flag.startswith("-"):
        return credential_kind(flag, value)
    is_value = before.startswith("-") and not argument.startswith("-")
    return credential_kind(before if is_value else "", argument)


def secret_in_argument(argument: str, before: str) -> str | None:
    """Return the name of a secret that an argument puts on the command line by `${NAME}`, or None.

    The argument before it may be its flag.
    """
    flag = argument.partition("=")[0] if argument.startswith("-") else before
    is_flag = flag.startswith("-") and names_a_secret(flag)
    for name, _ in references(argument):
        if is_flag or looks_secret(name):
            return name
    return None


def credential_in_url(url: str) -> str | None:
    """Return the kind of credential in a URL's query or path, or None."""
    try:
        query = parse_qsl(urlsplit(with_defaults(url)).query, max_num_fields=100)
    except ValueError:
        query = []
    found = [credential_kind(name, value) for name, value in query]
    return next((kind for kind in found if kind), None) or credential_kind("", url)


def with_defaults(text: str, unset: str = "") -> str:
    """Return a text with its references replaced by their defaults, or by `unset`."""
    for name, default in references(text):
        written = f"${{{name}}}" if default is None else f"${{{name}:-{default}}}"
        text = text.replace(written, default or unset)
    return text


def _is_random(text: str) -> bool:
    if len(text) < _MIN_SECRET_LENGTH or " " in text.strip() or _ADDRESS.match(text):
        return False
    counts = Counter(text).values()
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    return entropy >= _MIN_ENTROPY
