"""Which names look like those of credentials, and how a secret value may be written. Pure."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

_SECRET: Final = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|AUTHORIZATION|COOKIE)S?(_|-|$)"
    r"|(API|ACCESS|PRIVATE|SECRET)[_-]?KEY"
    r"|(^|_|-)KEYS?$"
    r"|(^|_)PAT$"
    r"|(^|_|-)PASS(_|-|$)"
    r"|_PWD$",
    re.IGNORECASE,
)


_ORDINARY: Final = re.compile(
    r"HOME|PWD|USER(NAME)?|LOGNAME|SHELL|LANG|LC_[A-Z]+|TZ|TERM|TMPDIR|TE?MP|DISPLAY"
    r"|([A-Z0-9_]*_)?(HOST|HOSTNAME|PORT|PATH|DIR|HOME|REGION)",
    re.IGNORECASE,
)
_LEAST_UNNAMED: Final = 8
"""Characters of a secret in a variable whose name does not look like one."""
_HEX: Final = re.compile("%[0-9A-F]{2}")
_LEAST_ENCODED: Final = 6
"""Bytes; the base64 of less is found in ordinary text."""


def looks_secret(name: str) -> bool:
    """Return whether a variable's or header's name looks like that of a credential."""
    return _SECRET.search(name) is not None


def holds_secret(name: str, text: str) -> bool:
    """Return whether a variable that a server is given is to be hidden.

    One need not look secret: `DATABASE_URL` has a password, though nothing in its name says so.
    Short texts, and what names say are places, users and locales, stay: messages need them.
    """
    if looks_secret(name):
        return True
    return len(text) >= _LEAST_UNNAMED and _ORDINARY.fullmatch(name) is None


def secret_forms(values: Iterable[str]) -> frozenset[str]:
    """Return values with what is secret inside of them, in each encoding that servers use.

    Inside are the lines of a value, the token behind `Bearer`, and the password in a URL. The
    encodings are JSON, Python and HTML strings, percent encoding, base64 and hexadecimal digits.
    """
    return frozenset(
        form for value in values for part in _secret_parts(value) for form in _encodings(part)
    )


def _secret_parts(value: str) -> Iterator[str]:
    yield value
    yield from (line.strip() for line in value.splitlines())
    scheme, _, token = value.partition(" ")
    if scheme.lower() in ("bearer", "basic", "token"):
        yield token.strip()
    if "://" in value:
        try:
            password = urlsplit(value).password
        except ValueError:
            return
        if password:
            yield from (password, unquote(password))


def _json_of_others(part: str) -> Iterator[str]:
    """Yield strings of JSON as PHP, Go, Gson and .NET write them, with more escapes than needed."""
    for plain in (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]):
        yield plain.replace("/", "\\/")
        for escaped, form in (("<>&", "x"), ("<>&='", "x"), ("<>&'+`", "X")):
            numbered = {ord(each): f"\\u{ord(each):04{form}}" for each in escaped}
            yield (text := plain.translate(numbered))
            yield text.replace('\\"', "\\u0022")


def _markup(part: str) -> Iterator[str]:
    """Yield what HTML and XML make of a text, quotes by name and by number."""
    yield html.escape(part, quote=False)
    yield (named := html.escape(part))
    yield named.replace("&#x27;", "&#39;")
    yield named.replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    yield named.replace("&#x27;", "&apos;")


def _encodings(part: str) -> Iterator[str]:
    raw = part.encode(errors="replace")
    yield part
    yield json.dumps(part)[1:-1]
    yield json.dumps(json.dumps(part)[1:-1])[1:-1]  # JSON inside a string of JSON
    yield json.dumps(part, ensure_ascii=False)[1:-1]
    yield repr(part)[1:-1]
    yield from _json_of_others(part)
    yield from _markup(part)
    for quoted in (quote(raw), quote(raw, safe=""), quote_plus(raw), quote(raw, safe="!'()*")):
        yield quoted
        yield _HEX.sub(lambda found: found[0].lower(), quoted)
    yield quote(quote(raw, safe=""))  # an address inside an address
    if len(raw) >= _LEAST_ENCODED:
        yield raw.hex()
        yield raw.hex().upper()
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            for before in range(3):  # as `user:` stands before a password
                skipped = -before % 3  # these share characters with what stands before
                whole = (len(raw) - skipped) // 3 * 3  # the rest depends on what follows it
                yield encode(raw[skipped : skipped + whole]).decode()
