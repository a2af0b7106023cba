"""What a server says when it refuses a request for want of a token (`WWW-Authenticate`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_MAX_CHALLENGE: Final = 16 << 10
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
