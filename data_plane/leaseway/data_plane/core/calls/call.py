"""What a call looks like to those who make one, whichever transport carries it.

`leaseway.data_plane.mcp` has the connections that run them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, Protocol

from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE

Answers = frozenset[str]
"""Methods that the caller of a call answers."""

NO_ANSWERS: Final[Answers] = frozenset()
SERVER_METHODS: Final[Answers] = frozenset({ELICIT, SAMPLE, ROOTS})
"""What a server can ask of a caller."""

_SETS: Final[Mapping[Answers, Answers]] = {
    frozenset(methods): frozenset(methods)
    for count in range(len(SERVER_METHODS) + 1)
    for methods in combinations(sorted(SERVER_METHODS), count)
}


def answerable(methods: Iterable[str]) -> Answers:
    """Return those of a caller's methods that servers can ask for; others are of later versions."""
    return _SETS[SERVER_METHODS.intersection(methods)]


OnProgress = Callable[[float, float | None, str], None]
"""(progress, total where known, message or empty); runs on the loop and must not block."""

OnLog = Callable[[str, str, bytes], None]
"""(level, logger or empty, data as JSON); runs on the loop and must not block."""

OnUpdate = Callable[[str], None]
"""(URI of what changed, or empty once a subscription holds); runs on the loop, must not block."""


class Ask:
    """One question of a server, settled exactly once: by an answer, a refusal or its withdrawal.

    Whoever gets one settles it, at the latest when its call ends.

    Args:
        method: The MCP method.
        params: Its params, a JSON object.
        on_answer: Takes the answer, a JSON object.
        on_refusal: Takes a JSON-RPC error code and why there is no answer.

    Attributes:
        method: As given.
        params: As given.
        on_withdrawn: Called when the server does not want the answer any more; whoever gets the
            question may set it.
    """

    __slots__ = ("_on_answer", "_on_refusal", "is_open", "method", "on_withdrawn", "params")

    def __init__(
        self,
        method: str,
        params: bytes,
        on_answer: Callable[[bytes], None],
        on_refusal: Callable[[int, str], None],
    ) -> None:
        self.method = method
        self.params = params
        self.is_open = True
        self.on_withdrawn: Callable[[], None] | None = None
        self._on_answer = on_answer
        self._on_refusal = on_refusal

    def answer(self, result: bytes) -> None:
        """Answer with an MCP result: a JSON object in UTF-8, on one line."""
        if self.is_open:
            self.is_open = False
            self._on_answer(result)

    def refuse(self, code: int, message: str) -> None:
        """Say why there is no answer."""
        if self.is_open:
            self.is_open = False
            self._on_refusal(code, message)

    def withdraw(self) -> None:
        """Note that the server does not want the answer any more."""
        if self.is_open:
            self.is_open = False
            if self.on_withdrawn is not None:
                self.on_withdrawn()


OnAsk = Callable[[Ask], None]
"""Takes a question; runs on the loop and must not block."""


@dataclass(slots=True)
class Outcome:
    """How a tool call ended.

    Attributes:
        payload: The MCP `result` object exactly as the server sent it; empty with a fault. Above
            `bounds.MAX_RESULT` only where media may be in it, which are taken out first.
        is_error: What the tool said about itself: `isError` of the payload.
        fault: Why there is no result, or None.
    """

    payload: bytes
    is_error: bool = False
    fault: Fault | None = None


def too_large(server: str, size: int) -> Fault:
    """Return the fault for a result above the bound."""
    return Fault(
        Reason.RESULT_TOO_LARGE,
        f"The result of the server {server} has {size} bytes, more than the {bounds.MAX_RESULT} "
        "that may pass; ask the tool for less at a time.",
        started="yes",
        metadata={"server": server, "limit": str(bounds.MAX_RESULT)},
    )


ReadArtifact = Callable[[str, int], Awaitable[bytes]]


@dataclass(slots=True)
class ToolRequest:
    """One `tools/call`, or another request of a caller.

    Attributes:
        name: The tool's original name; of another `method` what it names, for messages.
        params_head: What `params_head` made of the name, once for all calls of the tool.
        arguments: A valid JSON object; empty means `{}`.
        meta: More keys for `_meta`, `traceparent` say, or None.
        on_progress: Gets the server's progress reports. None asks for none.
        on_log: Gets the server's log messages of this call. None asks for none.
        log_level: The least level for `on_log`.
        param_headers: `Mcp-Param-*` headers that the caller computed itself; those that the
            tool's schema asks for are added by the instance. Only HTTP sends them.
        on_ask: Gets what the server asks of the caller. None where `answers` is empty.
        answers: The methods that the caller answers.
        continuation: More members of `params`, with a comma before each: the answers to what a
            modern server asked when the call was made before.
        passes_input: Whether the caller takes a result that wants input as it is, and makes the
            call again itself.
        method: The MCP method; empty means `tools/call`. Of others, `arguments` are all params
            but `_meta`: an object on one line with at least one member.
        read_artifact: Returns the bytes of an artifact of the caller's, of at most so many. Only
            instances that send bytes get it.
    """

    name: str
    params_head: bytes
    arguments: bytes
    meta: dict[str, object] | None = None
    on_progress: OnProgress | None = None
    on_log: OnLog | None = None
    log_level: str = "info"
    param_headers: Mapping[str, str] = field(default_factory=dict)
    on_ask: OnAsk | None = None
    answers: Answers = NO_ANSWERS
    continuation: bytes = b""
    passes_input: bool = False
    method: str = ""
    read_artifact: ReadArtifact | None = None


class PendingCall(Protocol):
    """A call under way."""

    @property
    def written(self) -> bool:
        """Whether its bytes were handed to the server's pipe or socket."""

    def cancel(self, reason: str) -> None:
        """Stop waiting and tell the server. `done` is not called any more. Idempotent."""
