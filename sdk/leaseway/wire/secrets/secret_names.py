"""Names that look like those of credentials, and the encodings of secret values. Pure."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

from leaseway.wire.secrets.secret_shapes import contains_secret, names_a_secret

_SECRET: Final = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|AUTHORIZATION|COOKIE)S?(_|-|$)"
    r"|(API|ACCESS|PRIVATE|SECRET)[_-]?KEY"
    r"|(^|_|-)KEYS?$"
    r"|(^|_)PAT$"
    r"|(^|_|-)PASS(_|-|$)"
    r"|_PWD$",
    re.IGNORECASE,
)
_FOLDERS: Final = frozenset({"PWD", "OLDPWD"})
"""Variables of a shell's working folders; elsewhere `pwd` is a password."""
_IN_VARIABLE: Final = re.compile(
    r"://[^/\s]*@"  # a user, and usually a password, in a URL
    r"|\b(?:password|passwd|pwd|secret|token|accountkey|sharedaccesskey)\s*=",
    re.IGNORECASE,
)
"""What a variable's value is hidden for beside the shapes of secrets."""
_ORDINARY: Final = re.compile(
    r"HOME|PWD|USER(NAME)?|LOGNAME|SHELL|LANG|LC_[A-Z]+|TZ|TERM|TMPDIR|TE?MP|DISPLAY"
    r"|([A-Z0-9_]*_)?(HOST|HOSTNAME|PORT|PATH|DIR|HOME|REGION)",
    re.IGNORECASE,
)
_MIN_UNNAMED: Final = 8
"""Minimum characters of a secret in a variable whose name does not look secret."""
_HEX: Final = re.compile("%[0-9A-F]{2}")
_MIN_ENCODED: Final = 6
"""Minimum bytes for base64 and hexadecimal forms, as shorter ones occur in ordinary text."""


def looks_secret(name: str) -> bool:
    """Return whether a variable's or header's name looks like that of a credential.

    More names do than in arguments (`names_a_secret`), where a `key` is seldom one.
    """
    if _SECRET.search(name) is not None:
        return True
    return name not in _FOLDERS and names_a_secret(name)


def is_secret_text(name: str, text: str) -> bool:
    """Return whether a variable may be shown to nobody, because of its name or its value."""
    return looks_secret(name) or contains_secret(text) or _IN_VARIABLE.search(text) is not None


def is_secret_variable(name: str, value: str) -> bool:
    """Return whether an environment variable of a server must be redacted.

    Its name need not look secret: `DATABASE_URL` may contain a password. Short values, and those
    whose names stand for places, users and locales, are not redacted, because messages need them.
    """
    if looks_secret(name):
        return True
    return len(value) >= _MIN_UNNAMED and _ORDINARY.fullmatch(name) is None


def secret_forms(values: Iterable[str]) -> frozenset[str]:
    """Return secret values and their secret parts, in each encoding that servers use.

    The parts are the lines of a value, the token after `Bearer`, and the password in a URL. The
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


def _other_json(part: str) -> Iterator[str]:
    """Yield JSON strings as PHP, Go, Gson and .NET write them, with unnecessary escapes."""
    for plain in (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]):
        yield plain.replace("/", "\\/")
        for escaped, form in (("<>&", "x"), ("<>&='", "x"), ("<>&'+`", "X")):
            numbered = {ord(char): f"\\u{ord(char):04{form}}" for char in escaped}
            yield (text := plain.translate(numbered))
            yield text.replace('\\"', "\\u0022")


def _markup(part: str) -> Iterator[str]:
    """Yield a text as HTML and XML, with named and numeric quotes."""
    yield html.escape(part, quote=False)
    yield (named := html.escape(part))
    yield named.replace("&#x27;", "&#39;")
    yield named.replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    yield named.replace("&#x27;", "&apos;")


def _encodings(part: str) -> Iterator[str]:
    raw = part.encode(errors="replace")
    yield part
    yield json.dumps(part)[1:-1]
    yield json.dumps(json.dumps(part)[1:-1])[1:-1]  # JSON in a JSON string
    yield json.dumps(part, ensure_ascii=False)[1:-1]
    yield repr(part)[1:-1]
    yield from _other_json(part)
    yield from _markup(part)
    for quoted in (quote(raw), quote(raw, safe=""), quote_plus(raw), quote(raw, safe="!'()*")):
        yield quoted
        yield _HEX.sub(lambda match: match[0].lower(), quoted)
    yield quote(quote(raw, safe=""))  # a URL in a URL
    if len(raw) >= _MIN_ENCODED:
        yield raw.hex()
        yield raw.hex().upper()
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            for before in range(3):  # bytes before the secret, such as `user:`
                skipped = -before % 3  # these share characters with the bytes before
                whole = (len(raw) - skipped) // 3 * 3  # the rest depends on the bytes after
                yield encode(raw[skipped : skipped + whole]).decode()
