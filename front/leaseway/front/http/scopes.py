"""Whether the server that a URL names exists, remembered for some seconds."""

from __future__ import annotations

import time
from typing import Final

from leaseway.front.http.request_checks import HttpError
from leaseway.front.methods import Methods
from leaseway.sdk import LeasewayError

_TTL: Final = 10.0
_MAX_CACHED: Final = 10_000


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
        """Raise `HttpError` if the server in the URL does not exist."""
        if self.is_known(scope):
            return
        try:
            await self._client.list_tools([scope])
        except LeasewayError as error:
            raise HttpError(404, error.message) from None
        if len(self._known) > _MAX_CACHED:
            self._known.clear()
        self._known[scope] = time.monotonic() + _TTL
