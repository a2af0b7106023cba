"""What was discovered about servers, for a minute: many callers ask for the same ones. Blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, TypeVar

from leaseway.data_plane.oauth.metadata import (
    AuthorizationServer,
    Discovered,
    authorization_server,
    discover,
)
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted
from leaseway.data_plane.oauth.web import Web
from leaseway.spec.auth import ADDRESSES
from leaseway.wire.sharing.newest import Newest

ResultT = TypeVar("ResultT")

_KEPT: Final = 60.0
"""Seconds."""
_MAX_KEPT: Final = 1_024
_CONFIGURED: Final = ("issuer", *ADDRESSES, "client_metadata_url", "resource", "dpop")
"""What of `auth` decides what is found."""


class Discoveries:
    """Keeps the metadata of servers and issuers for a minute, at most 1,024 of them.

    A failed discovery is not kept. Threads that begin at the same time may each discover.

    Args:
        now: The monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._known: Newest[Hashable, tuple[float, Any]] = Newest(_MAX_KEPT)

    def server(self, web: Web, wanted: Wanted, attempt: Attempt) -> Discovered:
        """Return what is known about a server's authorization, anew if it has refused a token.

        Raises:
            AuthorizationError: It cannot be found.
        """
        auth, challenge = wanted.auth, attempt.challenge
        said = (challenge.resource_metadata, challenge.asks_proof, challenge.algorithms)
        configured = tuple(getattr(auth, name) for name in _CONFIGURED)
        key = (wanted.web_url, configured, said)
        find = partial(discover, web, wanted.web_url, auth, challenge)
        return self._kept(key, find, is_fresh=bool(attempt.refused))

    def issuer(self, web: Web, issuer: str, wanted: Wanted) -> AuthorizationServer:
        """Return the metadata of an issuer that the operator has configured.

        Raises:
            AuthorizationError: There are none.
        """
        key = (wanted.web_url, issuer)
        return self._kept(key, partial(authorization_server, web, issuer, wanted.web_url))

    def _kept(
        self, key: Hashable, find: Callable[[], ResultT], *, is_fresh: bool = False
    ) -> ResultT:
        now = self._now()
        with self._lock:
            until, known = self._known.get(key, (0.0, None))
        if now < until and not is_fresh:
            result: ResultT = known
            return result
        found = find()
        with self._lock:
            self._known[key] = (now + _KEPT, found)
        return found
