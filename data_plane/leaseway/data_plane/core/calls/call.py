"""A call as its instance sees it: request, questions, outcome. The same for every transport.

What each call makes anew is a `Struct`, whose constructor takes half the time of a dataclass's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Protocol

from msgspec import Struct

from leaseway.wire import bounds
from leaseway.wire.clients.mcp_client import CAPABILITIES, McpClient
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, INTERNAL_ERROR, ROOTS, SAMPLE
from leaseway.wire.signals import Signal

Answers = frozenset[str]
"""MCP methods that a caller answers."""

NO_ANSWERS: Final[Answers] = frozenset()
SERVER_METHODS: Final[Answers] = frozenset({ELICIT, SAMPLE, ROOTS})
"""MCP methods by which a server can ask a caller."""

_SETS: Final[Mapping[Answers, Answers]] = {
    frozenset(methods): frozenset(methods)
    for count in range(len(SERVER_METHODS) + 1)
    for methods in combinations(sorted(SERVER_METHODS), count)
}


def answerable(methods: Iterable[str]) -> Answers:
    """Return the methods that servers can ask for; later versions may have others."""
    return _SETS[SERVER_METHODS.intersection(methods)]


class OnProgress(Protocol):
    """Receives a progress report; runs on the loop and must not block."""

    def __call__(
        self, progress: float, total: float | None, message: str, extra: bytes = b""
    ) -> None:
        """Handle a report; `message` may be empty, `extra` are its other members as JSON."""


class OnLog(Protocol):
    """Receives a log message; runs on the loop and must not block."""

    def __call__(self, level: str, logger: str, data: bytes, extra: bytes = b"") -> None:
        """Handle a message; `logger` may be empty, `data` is JSON, and so are its other members."""


OnUpdate = Callable[[str], None]
"""(URI that changed, empty once the subscription is confirmed); runs on the loop, never blocks."""


CALL_ENDED: Final = "The call that asked this has ended."
"""What a server is told whose question belongs to no call any more."""


class Ask:
    """A question of a server. It ends once: by an answer, a refusal or a withdrawal.

    Its receiver must answer or refuse it before the call ends.

    Args:
        method: The MCP method.
        params: Its params, a JSON object.
        on_answer: Called with the answer, a JSON object.
        on_refusal: Called with the code, the message and the data of a JSON-RPC error; the data are
            JSON, or empty.
        on_call_end: Called if the call ends first; None refuses the question then.

    Attributes:
        withdrawn: The server has withdrawn the question.
    """

    __slots__ = (
        "_on_answer",
        "_on_call_end",
        "_on_refusal",
        "is_open",
        "method",
        "params",
        "withdrawn",
    )

    def __init__(
        self,
        method: str,
        params: bytes,
        on_answer: Callable[[bytes], None],
        on_refusal: Callable[[int, str, bytes], None],
        on_call_end: Callable[[], None] | None = None,
    ) -> None:
        self.method = method
        self.params = params
        self.is_open = True
        self.withdrawn: Signal[()] = Signal()
        self._on_answer = on_answer
        self._on_refusal = on_refusal
        self._on_call_end = on_call_end

    def answer(self, result: bytes) -> None:
        """Answer with an MCP result: a JSON object in UTF-8, on one line."""
        if self.is_open:
            self.is_open = False
            self._on_answer(result)

    def refuse(self, code: int, message: str, data: bytes = b"") -> None:
        """Answer with a JSON-RPC error, whose data are JSON on one line, or empty for none."""
        if self.is_open:
            self.is_open = False
            self._on_refusal(code, message, data)

    def end_with_call(self) -> None:
        """End the question, or ask another call, because the call has ended."""
        if self._on_call_end is None:
            self.refuse(INTERNAL_ERROR, CALL_ENDED)
        elif self.is_open:
            self.is_open = False
            self._on_call_end()

    def withdraw(self) -> None:
        """End the question because the server no longer wants an answer."""
        if self.is_open:
            self.is_open = False
            self.withdrawn.emit()


OnAsk = Callable[[Ask], None]
"""Receives a question; runs on the loop and must not block."""


class Outcome(Struct):
    """The result or the fault of a call.

    Attributes:
        payload: The MCP `result` object exactly as the server sent it; empty with a fault. Above
            `bounds.MAX_RESULT` only if it may contain media, which are removed first.
        is_error: `isError` of the payload.
        fault: Why there is no result, or None.
        lacks_media: Whether it certainly has no images and sounds; otherwise it may have some.
    """

    payload: bytes
    is_error: bool = False
    fault: Fault | None = None
    lacks_media: bool = False


def too_large(server: str, size: int) -> Fault:
    """Return the fault of a result above `bounds.MAX_RESULT`."""
    return Fault(
        Reason.RESULT_TOO_LARGE,
        f"The result of the server {server} has {size} bytes; the limit is {bounds.MAX_RESULT}. "
        "Ask the tool for less at a time.",
        started="yes",
        metadata={"server": server, "limit": str(bounds.MAX_RESULT)},
    )


ReadArtifact = Callable[[str, int], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a caller hears while its request runs, and what it answers.

    Attributes:
        on_progress: Called with progress reports; None requests none.
        on_log: Called with log messages of this call; None requests none.
        log_level: The lowest level for `on_log`.
        on_ask: Called with questions of the server; None if `answers` is empty.
        answers: The methods that the caller answers.
        passes_input: Whether an `input_required` result is passed to the caller, which then calls
            again itself.
        client: The MCP client that the caller speaks for, or None.
    """

    on_progress: OnProgress | None = None
    on_log: OnLog | None = None
    log_level: str = "info"
    on_ask: OnAsk | None = None
    answers: Answers = NO_ANSWERS
    passes_input: bool = False
    client: McpClient | None = None

    def lacking(self, method: str, params: bytes) -> str:
        """Return the capability that a question needs and the caller lacks, or empty.

        Args:
            method: The question's method.
            params: Its params: a JSON object.
        """
        if method not in self.answers:
            return CAPABILITIES.get(method, method)
        return self.client.lacking(method, params) if self.client is not None else ""


NO_CALLBACKS: Final = Callbacks()
"""Of most calls, so that a request is built from few values."""


class ToolRequest(Struct):
    """A `tools/call` request, or another MCP request of a caller.

    Attributes:
        name: The tool's original name; for another `method`, the name or URI in its params.
        params_head: The prepared start of `params`, shared by all calls of the tool.
        arguments: A valid JSON object; empty means `{}`.
        meta: Extra keys for `_meta`, such as `traceparent`, or None.
        callbacks: What the caller hears and answers.
        method: The MCP method; empty means `tools/call`. For other methods, `arguments` are the
            params without `_meta`: an object on one line with at least one member.
        continuation: Extra members of `params`, each after a comma: the caller's answers to an
            `input_required` result.
        read_artifact: Reads an artifact of the caller, up to a size; None if the instance sends
            no bytes.
    """

    name: str
    params_head: bytes
    arguments: bytes
    meta: dict[str, object] | None = None
    callbacks: Callbacks = NO_CALLBACKS
    method: str = ""
    continuation: bytes = b""
    read_artifact: ReadArtifact | None = None


class PendingCall(Protocol):
    """A request that was sent to an instance and has no outcome yet."""

    @property
    def written(self) -> bool:
        """Whether its bytes were handed to the server's pipe or socket."""

    def cancel(self, reason: str) -> None:
        """Cancel the request at the server. `done` is never called after this. Idempotent."""
