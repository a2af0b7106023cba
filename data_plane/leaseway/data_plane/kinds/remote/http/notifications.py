"""Posts notifications, and responses to the server's requests.

Each is a separate POST without a JSON-RPC response. A slow server delays no other request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sized
from typing import Any, Final

from leaseway.data_plane.kinds.remote.http.endpoint import HttpEndpoint, RequestBody
from leaseway.data_plane.kinds.remote.http.errors import CONNECTION_ERRORS, describe_error
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
_POST_TIMEOUT: Final = 10.0
"""Seconds for a POST."""

_MAX_TASKS: Final = 64
"""Maximum background tasks of a connection; further messages wait for the end of a POST."""
_MAX_WAITING: Final = 1024
"""Messages that wait; further ones are dropped. Each of a few dozen calls may ask 16 questions."""

OnUndelivered = Callable[[str, bool], None]
"""Called with the reason (the end of a sentence), and whether non-delivery is certain."""


class NotificationPoster:
    """Posts the messages of one connection that have no response, in background tasks."""

    def __init__(
        self,
        server: str,
        endpoint: HttpEndpoint,
        background: Sized,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._background = background
        self._spawn = spawn
        self._posting = 0
        self._waiting: deque[tuple[bytes, Mapping[str, str], OnUndelivered | None]] = deque()
        self._dropped = 0

    def post_later(
        self, line: bytes, headers: Mapping[str, str], on_undelivered: OnUndelivered | None = None
    ) -> None:
        """Post a message in the background, after others if many are; drop it if too many wait.

        `on_undelivered` is called at most once, perhaps before this returns.
        """
        if len(self._background) < _MAX_TASKS:
            self._begin(line, headers, on_undelivered)
            return
        if self._posting and len(self._waiting) < _MAX_WAITING:
            self._waiting.append((line, headers, on_undelivered))
            return
        self._dropped += 1
        if self._dropped == 1:
            _logger.warning(
                "The server %s does not accept messages: %s responses and notifications are "
                "pending, and further ones are dropped.",
                self._server,
                _MAX_TASKS + len(self._waiting),
            )
        if on_undelivered is not None:
            pending = _MAX_TASKS + len(self._waiting)
            on_undelivered(f"{pending} messages to it are still pending", True)

    def _begin(
        self, line: bytes, headers: Mapping[str, str], on_undelivered: OnUndelivered | None
    ) -> None:
        self._posting += 1
        self._spawn(self._post_next_after(line, headers, on_undelivered))

    async def _post_next_after(
        self, line: bytes, headers: Mapping[str, str], on_undelivered: OnUndelivered | None
    ) -> None:
        """Post a message, then those that have waited for this, one after the other."""
        try:
            await self.post(line, headers, on_undelivered)
            while self._waiting:
                await self.post(*self._waiting.popleft())
        finally:
            self._posting -= 1

    async def post(
        self, line: bytes, headers: Mapping[str, str], on_undelivered: OnUndelivered | None = None
    ) -> None:
        """Post a message; never raises for the server's errors."""
        body = RequestBody(line, receipt := _Receipt())
        try:
            async with (
                asyncio.timeout(_POST_TIMEOUT),
                await self._endpoint.request("POST", headers, body) as response,
            ):
                if response.status >= 400:
                    cause = f"it answered with HTTP status {response.status}"
                    self._report_undelivered(cause, False, on_undelivered)
        except Fault as fault:  # a redirect that is not followed
            self._report_undelivered(fault.message.rstrip("."), True, on_undelivered)
        except CONNECTION_ERRORS as error:
            self._report_undelivered(describe_error(error), not receipt.written, on_undelivered)

    def _report_undelivered(
        self, cause: str, is_certain: bool, on_undelivered: OnUndelivered | None
    ) -> None:
        _logger.debug("A message to the server %s was not delivered: %s.", self._server, cause)
        if on_undelivered is not None:
            on_undelivered(cause, is_certain)


class _Receipt:
    written = False


def undelivered_answer(server: str, cause: str) -> Fault:
    """Return the fault for a call whose server did not receive its caller's answer."""
    return Fault(
        Reason.SERVER_LOST,
        f"The server {server} asked its caller for input, and the answer could not be delivered: "
        f"{cause}. It must accept POST requests while a call is in flight.",
        "yes",
        {"server": server},
    )
