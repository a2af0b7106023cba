"""What a server says when it refuses a request for want of a token (`WWW-Authenticate`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_MAX_CHALLENGE: Final = 16 << 10
_NEXT_DOUBT: Final = 300.0
_LAST_DOUBT: Final = 86_400.0
"""Seconds between two doubts, at first and at most."""
_BEARER: Final = "bearer"
_DPOP: Final = "dpop"
_CHARACTER: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]"
_QUOTED: Final = r'"((?:[^"\\]|\\.?)*+)(?:"|$)'
# Repetitions are possessive: no header takes more than one look at each of its characters.
_ITEM: Final = re.compile(rf'(?:[^,"]|{_QUOTED})++')
"""What is between commas, except commas inside quotes."""
_SCHEME: Final = re.compile(rf"\s*+({_CHARACTER}++)(?:\s++(?!=)|$)")
"""The beginning of a challenge; a parameter has an equals sign after its name."""
_PARAMETER: Final = re.compile(
    rf'(?<!{_CHARACTER})({_CHARACTER}++)\s*+=\s*+(?:{_QUOTED}|([^\s,"]++))'
)


@dataclass(frozen=True)
class Challenge:
    """What a server said when it refused a request.

    Attributes:
        status: 401 or 403.
        resource_metadata: The address of its metadata, or empty.
        scope: The scopes that the request needs, or empty.
        error: Such as `insufficient_scope`, or empty.
        asks_proof: Whether it offers tokens that are bound to a key (the scheme `DPoP`).
        asks_only_proof: Whether it offers no others.
        algorithms: How proofs may be signed; empty if it does not say.
    """

    status: int
    resource_metadata: str = ""
    scope: str = ""
    error: str = ""
    asks_proof: bool = False
    asks_only_proof: bool = False
    algorithms: tuple[str, ...] = ()


def challenge_of(status: int, headers: Mapping[str, str]) -> Challenge:
    """Return the challenge of a response whose names of headers match without regard to case.

    A server may offer several schemes, in one header or in one for each.
    """
    every: Any = getattr(headers, "getall", None)
    values = every("www-authenticate", ()) if every else [headers.get("www-authenticate", "")]
    return read_challenge(status, ", ".join(values))


def read_challenge(status: int, header: str) -> Challenge:
    """Return the challenge of a header's value: of its scheme `Bearer`, or `DPoP`.

    A token that is not valid is refused with 401, whatever the status is (RFC 6750, section 3.1).
    """
    schemes: set[str] = set()
    found: dict[str, str] = {}
    for scheme, parameters in _challenges(header[:_MAX_CHALLENGE]):
        if scheme in (_BEARER, _DPOP):
            schemes.add(scheme)
            for name, value in parameters.items():
                found.setdefault(name, value)
    return Challenge(
        401 if found.get("error") == "invalid_token" else status,
        found.get("resource_metadata", ""),
        found.get("scope", ""),
        found.get("error", ""),
        asks_proof=_DPOP in schemes,
        asks_only_proof=schemes == {_DPOP},
        algorithms=tuple(found.get("algs", "").split()),
    )


def _challenges(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each challenge of a header's value: its scheme in lower case, and its parameters."""
    scheme, parameters = "", dict[str, str]()
    for item in map(re.Match.group, _ITEM.finditer(header)):
        begins = _SCHEME.match(item)
        if begins is not None:
            if scheme:
                yield scheme, parameters
            scheme, parameters = begins[1].lower(), {}
            item = item[begins.end() :]
        # Some servers write no commas between parameters.
        for name, quoted, plain in _PARAMETER.findall(item):
            parameters.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or plain)
    if scheme:
        yield scheme, parameters


class Doubt:
    """Decides when a 403 that asks for nothing is a reason to renew the token that was sent.

    Many servers say so of a token that they know no more, as of a call that nobody may make; a new
    token tells which it was. If it was the call, the next doubt comes later, fourfold each time:
    some authorization servers count tokens.
    """

    def __init__(self) -> None:
        self._not_before = 0.0
        self._pause = _NEXT_DOUBT
        self._given: object = None

    def is_due(self, token: object, now: float, *, is_new: bool) -> bool:
        """Return whether to renew a token that was refused so.

        Args:
            token: The token.
            now: The monotonic clock.
            is_new: Whether it has just been issued, so that another one would not help.
        """
        if is_new:
            if token is self._given:  # the doubt that gave it was in vain
                self._given, self._pause = None, min(4 * self._pause, _LAST_DOUBT)
                self._not_before = now + self._pause
            return False
        if now < self._not_before:
            return False
        if self._given is not None:  # it has helped
            self._pause = _NEXT_DOUBT
        self._not_before = now + _NEXT_DOUBT
        return True

    def end(self, token: object) -> None:
        """Note the token that a doubt gave."""
        self._given = token
