"""What servers ask of callers during a call: elicitation, sampling, roots (DESIGN §6). Pure.

Legacy servers send requests for it (`asks_legacy`), modern ones answer the call with it, which is
then made again (`asks_rounds`). Either way the caller sees an `Ask`, whatever method its call has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED

from leaseway.data_plane.core.calls.call import Answers
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE

_PARAMETERS: Final[Mapping[str, str]] = {
    ELICIT: "on_elicitation=",
    SAMPLE: "on_sampling=",
    ROOTS: "roots=",
}

_CAPABILITIES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    ELICIT: ("elicitation", {"form": {}, "url": {}}),
    SAMPLE: ("sampling", {}),
    ROOTS: ("roots", {}),
}
LEGACY_CAPABILITIES: Final[Mapping[str, Any]] = {
    **dict(_CAPABILITIES.values()),
    "roots": {"listChanged": False},
}
"""What a legacy server is told at the handshake, where its questions can reach a caller."""

ROOTS_ALONE: Final[Mapping[str, Any]] = {"roots": LEGACY_CAPABILITIES["roots"]}
"""The same where no question can reach a caller, and the server's permissions name its roots."""

MODERN_CAPABILITIES: Final[Mapping[Answers, Mapping[str, Any]]] = {
    frozenset(methods): dict(_CAPABILITIES[method] for method in methods)
    for count in range(len(_CAPABILITIES) + 1)
    for methods in combinations(_CAPABILITIES, count)
}
"""What a modern server is told with a call, by what its caller answers."""


def roots_result(folders: Iterable[str]) -> bytes:
    """Return the answer to a server that asks for its roots: folders, by their absolute paths."""
    roots = [
        {"uri": PurePosixPath(folder).as_uri(), "name": PurePosixPath(folder).name or folder}
        for folder in folders
    ]
    return msgspec.json.encode({"roots": roots})


def nobody_answers(method: str) -> str:
    """Return what a server is told whose question no caller answers."""
    return f"No call under way answers {method}: its caller has to {_how_to_answer(method)}."


def input_required(
    server: str, name: str, method: str, facts: Mapping[str, str] | None = None
) -> Fault:
    """Return the fault for a call whose server wants what its caller does not answer.

    Args:
        server: The server's id.
        name: What was called.
        method: What it asks for.
        facts: What else is known, for programs.
    """
    return Fault(
        Reason.INPUT_REQUIRED,
        f"{server}:{name} asks its caller for input ({method}), which this call does not answer: "
        f"{_how_to_answer(method)}.",
        started="yes",
        metadata={**(facts or {}), "server": server, "method": method},
    )


def _how_to_answer(method: str) -> str:
    return f"pass {_PARAMETERS[method]} to the call or to the client"


def lacking(code: int, data: msgspec.Raw, answers: Answers) -> str | None:
    """Return the method that a server's error demands of its caller, who does not answer it.

    Args:
        code: The JSON-RPC error's code.
        data: Its data.
        answers: What the caller answers.
    """
    if code == URL_ELICITATION_REQUIRED:
        return ELICIT if ELICIT not in answers else None
    if code != MISSING_REQUIRED_CLIENT_CAPABILITY:
        return None
    try:
        required = _decode_required(data).requiredCapabilities
    except ValueError:
        return None
    for method, (capability, _) in _CAPABILITIES.items():
        if capability in required and method not in answers:
            return method
    return None


def url_questions(data: msgspec.Raw, answers: Answers) -> bytes | None:
    """Return what a UrlElicitationRequired error asks, in the form of an `input_required` result.

    Args:
        data: The error's data.
        answers: What the caller answers.

    Returns:
        None where it asks nothing that the caller answers.
    """
    try:
        asked = _decode_required(data).elicitations
    except ValueError:
        return None
    if not asked or ELICIT not in answers:
        return None
    questions = {str(n): {"method": ELICIT, "params": each} for n, each in enumerate(asked)}
    return msgspec.json.encode({"inputRequests": questions})


def params_of(raw: msgspec.Raw) -> bytes | None:
    """Return a question's params as they came, `{}` for none, or None where they are no object."""
    params = bytes(raw)
    if params in (b"", b"null"):
        return b"{}"
    try:
        if not params.isascii():
            params.decode()
    except UnicodeDecodeError:
        return None
    return params if params.startswith(b"{") else None


class _Required(msgspec.Struct):
    requiredCapabilities: dict[str, msgspec.Raw] = {}  # noqa: N815 - MCP's name
    elicitations: list[msgspec.Raw] = []


_decode_required: Final = msgspec.json.Decoder(_Required).decode
