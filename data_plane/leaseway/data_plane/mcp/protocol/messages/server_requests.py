"""Requests of servers to callers during a call: elicitation, sampling, roots (design.md#calls).

Legacy servers send them as requests (see `incoming`). Modern ones request all input at once, in an
`input_required` result; once every answer is available, the call is sent again with the answers
and the server's state, under the same deadline. Legacy servers may require a person to visit URLs
first; then the call is sent again unchanged. The caller gets an `Ask` either way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import msgspec
from mcp_types import INTERNAL_ERROR, MISSING_REQUIRED_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED

from leaseway.data_plane.core.calls.call import SERVER_METHODS, Answers, Ask, ToolRequest
from leaseway.data_plane.core.definitions.results import corrected_params
from leaseway.wire.bounds import MAX_ASKS
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
"""Sent to a legacy server in the handshake if its requests can reach a caller."""

ROOTS_ONLY: Final[Mapping[str, Any]] = {"roots": LEGACY_CAPABILITIES["roots"]}
"""Sent if no request can reach a caller, but the server's permissions define its roots."""

MODERN_CAPABILITIES: Final[Mapping[Answers, Mapping[str, Any]]] = {
    frozenset(methods): dict(_CAPABILITIES[method] for method in methods)
    for count in range(len(_CAPABILITIES) + 1)
    for methods in combinations(_CAPABILITIES, count)
}
"""Sent to a modern server with a call, by the methods that its caller answers."""


def roots_result(folders: Iterable[str]) -> bytes:
    """Return the result of a roots request: folders, by their absolute paths."""
    roots = [
        {"uri": Path(folder).as_uri(), "name": Path(folder).name or folder} for folder in folders
    ]
    return msgspec.json.encode({"roots": roots})


def unanswered_text(method: str) -> str:
    """Return the error text for a server request that no caller answers."""
    return f"No call in flight answers {method}: its caller has to {_advice(method)}."


def input_required_fault(
    server: str,
    name: str,
    method: str,
    metadata: Mapping[str, str] | None = None,
    *,
    capability: str = "",
) -> Fault:
    """Return the fault for a call whose server asks for input that its caller does not answer.

    `capability` is what the MCP client that the caller speaks for has not declared, if it is one.
    """
    advice = f"which this call does not answer: {_advice(method)}"
    facts = {**(metadata or {}), "server": server, "method": method}
    if capability:
        advice = f"for which its client must declare the capability {capability}"
        facts["capability"] = capability
    return Fault(
        Reason.INPUT_REQUIRED,
        f"{server}:{name} asks its caller for input ({method}), {advice}.",
        started="yes",
        metadata=facts,
    )


def lacking_fault(server: str, request: ToolRequest, method: str, params: bytes) -> Fault | None:
    """Return the fault for a question of a server that a call's caller lacks the capability for.

    None if it answers the question.
    """
    lacking = request.callbacks.lacking(method, params)
    if not lacking:
        return None
    capability = lacking if request.callbacks.client is not None else ""
    return input_required_fault(server, request.name, method, capability=capability)


def undeclared_text(capability: str) -> str:
    """Return the error text for a server request that its client cannot answer."""
    return f"The client has not declared the capability {capability}."


def _advice(method: str) -> str:
    return f"pass {_PARAMETERS[method]} to the call or to the client"


def missing_method(code: int, data: msgspec.Raw, answers: Answers) -> str | None:
    """Return the method that a JSON-RPC error requires its caller to answer, or None."""
    if code not in (URL_ELICITATION_REQUIRED, MISSING_REQUIRED_CLIENT_CAPABILITY):
        return None
    try:
        required = _decode_required(data)
    except (ValueError, RecursionError):
        return None
    if code == URL_ELICITATION_REQUIRED:
        return ELICIT if required.elicitations and ELICIT not in answers else None
    for method, (capability, _) in _CAPABILITIES.items():
        if capability in required.requiredCapabilities and method not in answers:
            return method
    return None


def url_elicitations(data: msgspec.Raw, answers: Answers) -> bytes | None:
    """Return the requests of a UrlElicitationRequired error as an `input_required` result.

    None if it has no request that the caller answers.
    """
    try:
        elicitations = _decode_required(data).elicitations
    except (ValueError, RecursionError):
        return None
    if not elicitations or ELICIT not in answers:
        return None
    requests = {
        str(n): {"method": ELICIT, "params": params} for n, params in enumerate(elicitations)
    }
    return msgspec.json.encode({"inputRequests": requests})


def parse_params(raw: msgspec.Raw) -> bytes | None:
    """Return a request's params, `{}` for none, or None if they are not an object.

    They are as received, unless a client would reject them for a null.
    """
    params = bytes(raw)
    if params in (b"", b"null"):
        return b"{}"
    try:
        if not params.isascii():
            params.decode()
    except UnicodeDecodeError:
        return None
    if not params.startswith(b"{"):
        return None
    try:
        return corrected_params(params)
    except (RecursionError, ValueError):  # such as 1e999, or nearly too many levels
        return params


class _Required(msgspec.Struct):
    requiredCapabilities: dict[str, msgspec.Raw] = {}  # noqa: N815 - MCP's name
    elicitations: list[msgspec.Raw] = []


_decode_required: Final = msgspec.json.Decoder(_Required).decode


MAX_ROUNDS: Final = 10
"""Maximum input rounds of one call."""

_PAUSES: Final = (0.05, 0.1, 0.2, 0.25)
"""Seconds before a call is sent again whose result only requested that."""

_MAX_TEXT: Final = 2048


class _InputRequest(msgspec.Struct):
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _InputRequired(msgspec.Struct):
    inputRequests: dict[str, _InputRequest] | None = None  # noqa: N815 - MCP's name
    requestState: str | None = None  # noqa: N815 - MCP's name


_decode: Final = msgspec.json.Decoder(_InputRequired).decode
_encode: Final = msgspec.json.encode


class InputRounds:
    """The input rounds of one call.

    Args:
        request: The call as first sent.
        resend: Sends it again, with this `ToolRequest.continuation`.
        fail: Ends the call with a fault.
        roots: The answer to roots requests, or None if the caller answers them.

    Attributes:
        waiting: Whether the call waits for its caller, so that the server does not work on it.
    """

    def __init__(
        self,
        server: str,
        request: ToolRequest,
        resend: Callable[[bytes], None],
        fail: Callable[[Fault], None],
        roots: bytes | None = None,
    ) -> None:
        self.waiting = False
        self._roots = roots
        self._server = server
        self._request = request
        self._resend = resend
        self._fail = fail
        self._round = 0
        self._pauses = 0
        self._state: str | None = None
        self._declined: Fault | None = None
        self._unanswered: set[str] = set()
        self._answers: dict[str, bytes] = {}
        self._asks: list[Ask] = []
        self._pause: asyncio.TimerHandle | None = None

    def start(self, result: bytes, declined: Fault | None = None) -> None:
        """Ask the caller for the requested input, or fail the call if that is impossible.

        `declined` is the call's fault unless the caller accepts everything; the call is then sent
        again unchanged. None if the server evaluates the answers.
        """
        self._round += 1
        self._declined = declined
        self.waiting = True
        try:
            parsed = _decode(result)
        except (ValueError, RecursionError) as error:
            self._fail_call(self._invalid(f"an unreadable request for input ({error})"))
            return
        requests = parsed.inputRequests or {}
        fault = self._unanswerable(requests, parsed.requestState)
        if fault is not None:
            self._fail_call(fault)
            return
        self._state = parsed.requestState
        if requests:
            self._pauses = 0
            self._send_requests(requests)
        else:
            delay = _PAUSES[min(self._pauses, len(_PAUSES) - 1)]
            self._pauses += 1
            self._pause = asyncio.get_running_loop().call_later(delay, self._resume)

    def cancel(self) -> None:
        """Withdraw the requests: the call has ended."""
        self.waiting = False
        asks, self._asks = self._asks, []
        for ask in asks:
            ask.withdraw()
        if self._pause is not None:
            self._pause.cancel()

    def _unanswerable(self, requests: dict[str, _InputRequest], state: str | None) -> Fault | None:
        """Return the fault for a request that can't be answered, or None."""
        if self._round > MAX_ROUNDS:
            return self._invalid(f"a request for input for the {MAX_ROUNDS + 1}th time in one call")
        if not requests and state is None:
            return self._invalid("a request for input without requests and state")
        if len(requests) > MAX_ASKS:
            return self._invalid(
                f"{len(requests)} requests for input at once, more than {MAX_ASKS}"
            )
        for request in requests.values():
            if request.method not in SERVER_METHODS:
                return self._invalid("a request for input with a method that MCP does not have")
            params = parse_params(request.params)
            if params is None:
                return self._invalid("a request for input whose params are not a JSON object")
            if request.method == ROOTS and self._roots is not None:
                continue
            fault = lacking_fault(self._server, self._request, request.method, params)
            if fault is not None:
                return fault
        return None

    def _invalid(self, problem: str) -> Fault:
        return Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} answered the call of {self._request.name} with {problem}; "
            "report it to the server's maintainer.",
            started="yes",
            metadata={"server": self._server, "code": str(INTERNAL_ERROR)},
        )

    def _send_requests(self, requests: dict[str, _InputRequest]) -> None:
        if self._roots is not None:
            known = {key for key, request in requests.items() if request.method == ROOTS}
            self._answers = dict.fromkeys(known, self._roots)
            requests = {key: asked for key, asked in requests.items() if key not in known}
            if not requests:
                self._resume()
                return
        assert self._request.callbacks.on_ask is not None  # checked by `_unanswerable`
        self._unanswered = set(requests)
        self._asks = [self._build_ask(key, request) for key, request in requests.items()]
        for ask in tuple(self._asks):
            if ask.is_open:
                self._request.callbacks.on_ask(ask)

    def _build_ask(self, key: str, request: _InputRequest) -> Ask:
        def answer(result: bytes) -> None:
            if self.waiting:
                self._answers[key] = result
                self._unanswered.discard(key)
                if not self._unanswered:
                    self._resume()

        def refuse(_code: int, message: str, _data: bytes) -> None:
            if self.waiting:
                self._fail_call(self._refused(request.method, message))

        return Ask(request.method, parse_params(request.params) or b"{}", answer, refuse)

    def _refused(self, method: str, message: str) -> Fault:
        return Fault(
            Reason.INPUT_REQUIRED,
            f"{self._server}:{self._request.name} asked its caller for input ({method}) and got "
            f"none: {message[:_MAX_TEXT]}",
            started="yes",
            metadata={"server": self._server, "method": method},
        )

    def _fail_call(self, fault: Fault) -> None:
        self.cancel()
        self._fail(fault)

    def _resume(self) -> None:
        answers, self._answers = self._answers, {}
        self._asks = []
        if self._declined is not None and not all(map(_accepts, answers.values())):
            self._fail_call(self._declined)
            return
        self.waiting = False
        parts: list[bytes] = []
        if answers and self._declined is None:
            members = b",".join(
                b"%b:%b" % (_encode(key), answer) for key, answer in answers.items()
            )
            parts.append(b',"inputResponses":{%b}' % members)
        if self._state is not None:
            parts.append(b',"requestState":%b' % _encode(self._state))
        self._resend(b"".join(parts))


def unanswerable(server: str, request: ToolRequest, result: bytes) -> Fault | None:
    """Return the fault for an `input_required` result that its caller cannot answer, or None.

    Its caller gets it unchanged otherwise, and says itself what is wrong with it.
    """
    try:
        requests = (_decode(result).inputRequests or {}).values()
    except (ValueError, RecursionError):
        return None
    faults = (
        lacking_fault(server, request, embedded.method, parse_params(embedded.params) or b"{}")
        for embedded in requests
    )
    return next((fault for fault in faults if fault is not None), None)


class _Action(msgspec.Struct):
    action: str = ""


_decode_action: Final = msgspec.json.Decoder(_Action).decode


def _accepts(answer: bytes) -> bool:
    try:
        return _decode_action(answer).action == "accept"
    except (ValueError, RecursionError):
        return False
