"""Whether the server that a URL names exists, remembered for some seconds."""

from __future__ import annotations

import time
from typing import Final

from leaseway.front.http.request_checks import HttpError
from leaseway.front.methods import Methods
from leaseway.sdk import LeasewayError
from leaseway.wire.errors import SETTLING, UNANSWERED

_TTL: Final = 10.0
_ASK_AGAIN: Final = 2.0
"""Seconds that the control plane may take to say whether a known server still exists."""
_MAX_CACHED: Final = 10_000
_PASSING: Final = UNANSWERED | SETTLING


class Scopes:
    """Knows the servers that one caller may name in a URL.

    Args:
        methods: Its client asks for them.
    """

    def __init__(self, methods: Methods) -> None:
        self._client = methods.client
        self._known: dict[str, float] = {}

    def is_known(self, scope: str) -> bool:
        """Return whether a server was found less than 10 s ago."""
        return self._known.get(scope, 0.0) > time.monotonic()

    async def check(self, scope: str) -> None:
        """Raise `HttpError` if the server in the URL does not exist.

        A server that was found before exists while the control plane does not answer: calls go on
        without it, and 404 would say to a client that its session has ended.
        """
        if self.is_known(scope):
            return
        was_known = scope in self._known
        if was_known:  # one request asks; others do not wait for it
            self._remember(scope)
        try:
            await self._client.list_tools([scope], timeout=_ASK_AGAIN if was_known else None)
        except LeasewayError as error:
            passes = error.reason in _PASSING or error.retry_after is not None
            if not passes:
                self._known.pop(scope, None)
                raise HttpError(404, error.message) from None
            if not was_known:
                raise HttpError(503, error.message, {"Retry-After": "1"}) from None
        self._remember(scope)

    def _remember(self, scope: str) -> None:
        if len(self._known) > _MAX_CACHED:
            self._known.clear()
        self._known[scope] = time.monotonic() + _TTL
