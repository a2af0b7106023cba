"""What a fake tool knows of the call that it runs for, and can say meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import LOG_LEVELS


@dataclass(frozen=True)
class Line:
    """The way back to a caller; each may be used from any thread.

    Attributes:
        progress: Sends progress, or None where the caller wants none.
        log: Sends a message, or None likewise.
        log_level: The least level that the caller wants.
        ask: Asks the caller something.
        answers: The methods that the caller answers.
    """

    progress: Callable[[float, float | None, str], None] | None
    log: Callable[[str, str, bytes], None] | None
    log_level: str
    ask: Callable[[str, bytes], asyncio.Future[bytes]]
    answers: frozenset[str]


@dataclass(frozen=True, eq=False)
class CallContext:
    """One call, for a fake tool or prompt that has a parameter annotated with this class.

    Attributes:
        tool: The tool's exposed name; the server's own of a prompt.
        tenant: Whose call it is.
        agent: Which agent of the tenant calls, or empty.
        session: The session.
        lease_id: The lease that it runs on, or empty where the server is shared.
        state: What the tool's server remembers: of the lease, or of the whole server where that
            is shared. Gone with the lease.
    """

    tool: str
    tenant: str
    agent: str
    session: str
    lease_id: str
    state: dict[str, Any]
    _line: Line = field(repr=False)

    def progress(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Report progress to the caller; nothing happens where it wants none."""
        if self._line.progress is not None:
            self._line.progress(progress, total, message)

    def log(self, data: Any, level: str = "info", logger: str = "") -> None:
        """Send the caller a log message, if it wants ones of this level.

        Raises:
            ValueError: There is no such level.
        """
        if level not in LOG_LEVELS:
            raise ValueError(f"level is one of {', '.join(LOG_LEVELS)}, not {level!r}.")
        wanted = self._line.log_level
        if self._line.log is not None and LOG_LEVELS.index(level) >= LOG_LEVELS.index(wanted):
            self._line.log(level, logger, json.dumps(data).encode())

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Ask the caller something, as a server does; for async tools.

        Args:
            method: `elicitation/create`, `sampling/createMessage` or `roots/list`.
            params: The MCP params.

        Returns:
            The MCP result that the caller's handler gave.

        Raises:
            Fault: INPUT_REQUIRED: the caller has no handler for it, or that refused; what the
                call ends with unless the tool catches it.
        """
        if method not in self._line.answers:
            raise Fault(
                Reason.INPUT_REQUIRED,
                f"Tool '{self.tool}' asks {method}, which this caller does not answer.",
                started="yes",
                metadata={"method": method},
            )
        answered: dict[str, Any] = json.loads(
            await self._line.ask(method, json.dumps(params).encode())
        )
        return answered
