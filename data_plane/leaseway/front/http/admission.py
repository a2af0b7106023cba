"""Who may talk to the front over HTTP: credentials, and where a browser's request comes from. Pure.

A browser that a stranger's page talks through names the page's origin; one that was led astray by
DNS names a host that is none of ours. Both are refused before anything is read.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from leaseway.wire.channels.auth import KEY_VARIABLE
from leaseway.wire.channels.endpoint import Endpoint

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Refusal:
    """Why a request is not even read."""

    status: int
    message: str
    headers: Mapping[str, str]


class Admission:
    """Decides by a request's headers.

    Args:
        endpoint: Where the front listens.
        key: The shared key that a request must carry, or None where anybody may ask.
        origins: Origins of pages that may ask, beside those of this machine.
        hosts: Names by which clients reach the front, beside those of this machine.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        key: str | None,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        self._expected = f"Bearer {key}".encode() if key is not None else None
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        # Beyond loopback the key protects: whoever has it is no stranger's page.
        self._hosts = (
            frozenset(host.lower() for host in hosts) | _LOCAL
            if endpoint.is_loopback or hosts
            else None
        )

    def refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is refused, or None."""
        origin = headers.get("Origin")
        if origin is not None and not self._knows_origin(origin):
            return Refusal(403, f"Pages of {origin[:200]} may not ask here: --allow-origin.", {})
        if self._hosts is not None and _host_of(headers.get("Host", "")) not in self._hosts:
            return Refusal(403, "This front is not known by that host: --allow-host.", {})
        if self._expected is None:
            return None
        sent = headers.get("Authorization")
        if sent is None or not hmac.compare_digest(sent.encode(errors="replace"), self._expected):
            message = f"Send the key: Authorization: Bearer, then what {KEY_VARIABLE} holds."
            return Refusal(401, message, {"WWW-Authenticate": 'Bearer realm="leaseway"'})
        return None

    def _knows_origin(self, origin: str) -> bool:
        if origin.lower() in self._origins:
            return True
        return self._hosts is not None and _host_of_url(origin) in _LOCAL


def _host_of(header: str) -> str:
    return _host_of_url(f"http://{header}")


def _host_of_url(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
