"""`CallContext`: what a fake tool can learn about its call, and send to its caller."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leaseway.data_plane.core.calls.call import Ask, ToolRequest
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import LOG_LEVELS


@dataclass(frozen=True, eq=False)
class CallContext:
    """One call, passed to a fake tool or prompt in a parameter annotated with this class.

    Attributes:
        tool: The tool's exposed name, or the prompt's name without the prefix.
        tenant: The tenant that calls.
        agent: The tenant's agent that calls; may be empty.
        session: The key of the session.
        lease_id: The lease that the call runs on; empty on a shared server.
        state: Values that the server keeps between calls: one dict per lease, or one for all
            callers of a shared server. It is discarded when the lease ends.
    """

    tool: str
    tenant: str
    agent: str
    session: str
    lease_id: str
    state: dict[str, Any]
    _request: ToolRequest = field(repr=False)
    _loop: asyncio.AbstractEventLoop = field(repr=False)
    _loop_thread: int = field(repr=False)
    _on_notification: Callable[[str, bytes], None] = field(repr=False)

    def progress(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Report progress to the caller; no-op if the caller asked for none."""
        if self._request.callbacks.on_progress is not None:
            self._run_in_loop(self._request.callbacks.on_progress, progress, total, message)

    def log(self, data: Any, level: str = "info", logger: str = "") -> None:
        """Send the caller a log message; no-op if the caller did not ask for this level.

        Args:
            data: Anything that JSON can hold.
            level: One of MCP's log levels, such as `warning`.
            logger: The logger's name.

        Raises:
            ValueError: MCP has no such level.
        """
        if level not in LOG_LEVELS:
            raise ValueError(f"level is one of {', '.join(LOG_LEVELS)}, not {level!r}.")
        minimum = self._request.callbacks.log_level
        on_log = self._request.callbacks.on_log
        if on_log is not None and LOG_LEVELS.index(level) >= LOG_LEVELS.index(minimum):
            self._run_in_loop(on_log, level, logger, json.dumps(data).encode())

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Tell the MCP client that has the lease something outside of the call; also after it.

        Args:
            method: `notifications/message` or `notifications/elicitation/complete`.
            params: The MCP params of the notification.
        """
        self._run_in_loop(self._on_notification, method, json.dumps(params).encode())

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send the caller a request, as an MCP server can; for async tools and prompts.

        Args:
            method: `elicitation/create`, `sampling/createMessage` or `roots/list`.
            params: The MCP params of the request.

        Returns:
            The MCP result that the caller's handler returned.

        Raises:
            Fault: INPUT_REQUIRED: the caller has no handler for the method, or its handler
                failed. The call fails with it unless the tool catches it.
        """
        if method not in self._request.callbacks.answers:
            raise Fault(
                Reason.INPUT_REQUIRED,
                f"Tool '{self.tool}' asks {method}, which this caller does not answer.",
                started="yes",
                metadata={"method": method},
            )
        result: asyncio.Future[bytes] = self._loop.create_future()

        def on_answer(answer: bytes) -> None:
            if not result.done():
                result.set_result(answer)

        def on_refusal(_code: int, message: str, _data: bytes) -> None:
            if not result.done():
                result.set_exception(Fault(Reason.INPUT_REQUIRED, message, started="yes"))

        ask = Ask(method, json.dumps(params).encode(), on_answer, on_refusal)
        assert self._request.callbacks.on_ask is not None
        self._request.callbacks.on_ask(ask)
        try:
            answer: dict[str, Any] = json.loads(await result)
        except asyncio.CancelledError:
            ask.withdraw()
            raise
        return answer

    def _run_in_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Run a callback in the worker's event loop; at once, if this is the loop's thread."""
        if threading.get_ident() == self._loop_thread:
            callback(*arguments)
        else:
            self._loop.call_soon_threadsafe(callback, *arguments)
