"""Why an instance did not start, as one fault with one sentence.

The official package reports failures as groups within groups; what counts is the first cause.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from leaseway.data_plane.mcp.process.stderr import StderrTail, significant_line
from leaseway.data_plane.mcp.protocol.features.listing import ListingFailed
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost, Unanswered
from leaseway.spec.model import ServerSpec
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import redact

Phase = Literal["connect", "negotiate", "list"]
_DOING = {
    "connect": "open a connection",
    "negotiate": "agree on a protocol version",
    "list": "list its tools",
}

_OF_ANOTHER_TRANSPORT = frozenset({"400", "404", "405"})
"""What servers answer as a rule to the first message of a transport that they do not speak."""


def first_cause(error: BaseException) -> BaseException:
    """Return the first error in a group of groups that is not a mere cancellation."""
    while isinstance(error, BaseExceptionGroup):
        error = next(
            (e for e in error.exceptions if not isinstance(e, asyncio.CancelledError)),
            error.exceptions[0],
        )
    return error


def start_fault(
    spec: ServerSpec, error: BaseException, phase: Phase, stderr: StderrTail, garbage: int = 0
) -> Fault:
    """Return the fault that says why a server did not start or list.

    Args:
        spec: The server.
        error: What ended the start.
        phase: How far it was.
        stderr: What the server wrote there.
        garbage: How much it sent that is no message.
    """
    cause = first_cause(error)
    if isinstance(cause, Fault):
        return cause
    server = spec.key.server_id
    problem, text, known = _describe(spec, cause, phase)
    last_words = stderr.last(lines=10, size=2048)
    metadata = {"server": server, **known, "problem": problem}
    if last_words:
        metadata["stderr"] = last_words
        if "wrote last" not in text:
            text += f" It wrote last: {significant_line(last_words)}"
    if garbage and phase != "list":
        text += (
            " It also sent what is no JSON-RPC message: check that its command starts an MCP server"
            " that logs to its standard error."
        )
    return Fault(Reason.SERVER_NOT_READY, text, metadata=metadata)


def _describe(
    spec: ServerSpec, cause: BaseException, phase: Phase
) -> tuple[str, str, dict[str, str]]:
    """Return the problem, its sentence, and facts that are known already."""
    server = spec.key.server_id
    failed = "LIST_FAILED" if phase == "list" else "START_FAILED"
    head = f"The server {server} did not {_DOING[phase]}"
    match cause:
        case ConnectionLost(fault=fault):
            known = dict(fault.metadata)
            problem = "EXITED" if "exit_status" in known else failed
            return problem, _with_hint(spec, fault, phase), known
        case Unanswered(fault=fault):
            return failed, _with_hint(spec, fault, phase), dict(fault.metadata)
        case TimeoutError():
            text = f"{head} within {spec.startup_timeout:g} s. Look at what it writes to stderr, "
            return "START_TIMEOUT", f"{text}or raise startup_timeout.", {}
        case MCPError(error=answer):
            said = redact(answer.message)[:500].rstrip(".")
            text = f"{head}: it answered with error {answer.code}: {said}."
            return failed, text, {"code": str(answer.code)}
        case ValidationError():  # its own words quote what the server sent
            wrong = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
                for each in cause.errors(include_input=False, include_url=False)[:3]
            )
            return failed, f"{head}: its answer is not what MCP asks for ({wrong:.300}).", {}
        case ListingFailed():
            return failed, f"{head}: {cause}.", {}
        case asyncio.CancelledError():
            return "START_FAILED", f"{head}: the start was called off.", {}
        case _:
            why = _said(cause)[:300]
            return failed, f"{head}: its answer is not what MCP asks for ({why}).", {}


def _said(cause: BaseException) -> str:
    """Return what an error says of an answer, but not what was in the answer."""
    if isinstance(cause, ValidationError):  # it shows the start and the end of long values
        errors = cause.errors(include_input=False, include_context=False, include_url=False)
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors[:5])
    return redact(str(cause))


def _with_hint(spec: ServerSpec, fault: Fault, phase: Phase) -> str:
    """Return a fault's message; a refusal that often means another transport asks about it."""
    if phase == "list" or fault.metadata.get("http_status") not in _OF_ANOTHER_TRANSPORT:
        return fault.message
    return f"{fault.message.rstrip('.')}; is its transport really {spec.transport}?"
