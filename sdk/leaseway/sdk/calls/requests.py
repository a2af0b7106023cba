"""Calls as they are made, requests about prompts and resources, and the encoding of arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from json import encoder
from typing import Any, Final, NamedTuple

from opentelemetry.trace import Span

from leaseway.sdk.catalog.targets import NameOrItem, PromptOrResource, Target
from leaseway.sdk.leases.lease import ClientLease
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.in_flight import RawResult
from leaseway.sdk.transport.workers import WorkerLink, WorkerRun
from leaseway.sdk.validation import check_call, check_seconds, check_text, problem_of_json
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire.bounds import MAX_ARGUMENTS, MAX_URI
from leaseway.wire.channels.trace_context import NO_TRACE
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import LeaseKey

_plain: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _make_encoder() -> Callable[[Any, int], Iterable[str]]:
    """Return the encoder that `JSONEncoder.encode` would create for every object.

    Creating it takes two thirds of the time for a small object. Circular arguments raise
    RecursionError.
    """
    make = getattr(encoder, "c_make_encoder", None)
    if make is None:  # not CPython
        return lambda value, _level: (_plain.encode(value),)
    made: Callable[[Any, int], Iterable[str]] = make(
        None, _plain.default, encoder.encode_basestring, None, ":", ",", False, False, False
    )
    return made


_chunks: Final = _make_encoder()


def encode_arguments(tool: str, arguments: Mapping[str, Any] | None, encoded: bytes = b"") -> bytes:
    """Return the arguments of a call as one JSON object in UTF-8.

    Args:
        tool: The called tool, for messages.
        arguments: The arguments by name.
        encoded: The arguments as JSON; if given, `arguments` is ignored.

    Raises:
        Fault: JSON cannot represent the arguments, or they are larger than 4 MiB.
    """
    if not arguments and not encoded:
        return b"{}"
    if encoded:
        payload = encoded
    else:
        value = arguments
        try:
            if type(value) is not dict:
                value = dict(value or {})
            payload = "".join(_chunks(value, 0)).encode()
        except (TypeError, ValueError, RecursionError) as error:
            # The error's text may quote a value, so it is omitted.
            problem = problem_of_json(value) or type(error).__name__
            raise Fault(
                Reason.INVALID_ARGUMENTS,
                f"The arguments of '{tool}' cannot be written as JSON: {problem}. Pass strings, "
                "finite numbers, booleans, None, and lists and dicts of these; convert others "
                "first, such as by model_dump(mode='json'), asdict(), isoformat() or tolist().",
            ) from None
    if len(payload) > MAX_ARGUMENTS:
        raise Fault(
            Reason.INVALID_ARGUMENTS,
            f"The arguments of '{tool}' have {len(payload)} bytes as JSON; at most "
            f"{MAX_ARGUMENTS} are allowed.",
        )
    return payload


_PROMPT: Final = catalog_pb2.NAME_KIND_PROMPT
_RESOURCE: Final = catalog_pb2.NAME_KIND_RESOURCE


class McpRequest:
    """One request about a prompt or a resource.

    Attributes:
        method: The MCP method.
        item: The prompt or resource, as the caller names it.
        target: The resolved target of the last try, or None before the first.
    """

    def __init__(self, method: str, item: PromptOrResource, params: Mapping[str, Any]) -> None:
        self.method = method
        self.item = item
        self.target: Target | None = None
        self._params = params

    def complete(self, target: Target) -> tuple[bytes, bytes]:
        """Return the request's fields as a serialized `CallHead`, and its params as JSON.

        Raises:
            Fault: JSON cannot represent the params, or they are too large.
        """
        self.target = target
        by_name = self.item.kind == _PROMPT
        name = target.original_name if by_name else self.item.name
        params: Mapping[str, Any] = self._params
        if self.method == "prompts/get":
            params = {"name": name, **params}
        elif self.method == "completion/complete" and by_name:
            params = {"ref": {"type": "ref/prompt", "name": name}, **params}
        options = execution_pb2.CallOptions(method=self.method)
        head = execution_pb2.CallHead(tool=name, options=options)
        return head.SerializeToString(), encode_arguments(self.item.name, params)


class Release(NamedTuple):
    """What a call of `mcp_release` releases; `lease_id` is empty if another client holds it."""

    key: LeaseKey
    lease_id: str


class CallState:
    """One call, kept from its first try to its last; `tool_call` and the like make it.

    Args:
        session: The session of the call.
        name: The tool's name, or the prompt or resource.
        timeout: Seconds until the call fails; None means the server's `call_timeout` (60 unless
            configured), counted from when the name is resolved.
        events: Handles progress, log messages and server requests; reset before another try.
    """

    # Class attributes are set on an instance only if they differ: most calls succeed at the first
    # try and are not traced.
    request: McpRequest | None = None
    arguments: Mapping[str, Any] | None = None
    target: Target | None = None
    link: WorkerLink | None = None
    lease: ClientLease | None = None
    release: Release | None = None
    known: Fault | None = None
    cached = True
    open_ended = False
    repeated = False
    acquirer = ""
    user = ""
    subject_token = ""
    known_ends: tuple[str, ...] | None = None
    joins = False
    span: Span | None = None
    trace = NO_TRACE
    tries = 0
    avoid: frozenset[WorkerRun] = frozenset()
    slow: frozenset[WorkerRun] = frozenset()  # the avoided workers that did not report being full
    payload = b""
    deadline = 0.0
    sent_at = 0.0
    outcome: RawResult | BaseException | None = None  # of a first try that had no task

    def __init__(
        self, session: str, name: NameOrItem, timeout: float | None, events: CallEvents | None
    ) -> None:
        self.session = session
        self.name = name
        self.timeout = timeout
        self.events = events


def tool_call(
    session: str,
    name: str,
    arguments: Mapping[str, Any] | None,
    timeout: float | None,
    events: CallEvents | None = None,
) -> CallState:
    """Return a call of a tool by its exposed or qualified name; arguments are JSON values by name.

    Raises:
        TypeError: A parameter has the wrong type.
        InvalidRequest: The name cannot be sent.
    """
    if type(name) is not str or type(arguments) is not dict or timeout is not None:
        check_call(name, arguments, timeout)
    elif not name.isascii():
        check_text("name", name)
    state = CallState(session, name, timeout, events)
    state.arguments = arguments
    return state


def relayed_call(
    session: str, name: str, payload: bytes, timeout: float | None, events: CallEvents
) -> CallState:
    """Like `tool_call`, with arguments that are already one JSON object in UTF-8."""
    if type(name) is not str or not name.isascii() or timeout is not None:
        check_call(name, None, timeout)
    state = CallState(session, name, timeout, events)
    state.payload = payload
    return state


def mcp_call(
    session: str, request: McpRequest, timeout: float | None, events: CallEvents | None = None
) -> CallState:
    """Like `tool_call`, for a request about a prompt or a resource."""
    if timeout is not None:
        check_seconds("timeout", timeout)
    state = CallState(session, request.item, timeout, events)
    state.request = request
    return state


def get(name: str, arguments: Mapping[str, Any] | None, server: str | None) -> McpRequest:
    """Return the request for a prompt."""
    check_text("name", name)
    params = {} if arguments is None else {"arguments": _string_dict("arguments", arguments)}
    return McpRequest("prompts/get", _item(_PROMPT, name, server), params)


def read(uri: str, server: str | None) -> McpRequest:
    """Return the request for the content of a resource."""
    return _resource_request("resources/read", uri, server)


def subscribe(uri: str, server: str | None) -> McpRequest:
    """Return the request to subscribe to a resource's changes."""
    return _resource_request("resources/subscribe", uri, server)


def complete_prompt(name: str, params: Mapping[str, Any], server: str | None) -> McpRequest:
    """Return the request to complete an argument of a prompt."""
    check_text("prompt", name)
    return McpRequest("completion/complete", _item(_PROMPT, name, server), params)


def complete_template(uri: str, params: Mapping[str, Any], server: str | None) -> McpRequest:
    """Return the request to complete a variable of a template."""
    check_text("template", uri)
    params = {"ref": {"type": "ref/resource", "uri": uri}, **params}
    return McpRequest("completion/complete", _item(_RESOURCE, uri, server), params)


def completion_params(
    argument: str, value: str, context: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the params that all completion requests have."""
    check_text("argument", argument)
    check_text("value", value)
    params: dict[str, Any] = {"argument": {"name": argument, "value": value}}
    if context is not None:
        params["context"] = {"arguments": _string_dict("context", context)}
    return params


def _resource_request(method: str, uri: str, server: str | None) -> McpRequest:
    check_text("uri", uri)
    return McpRequest(method, _item(_RESOURCE, uri, server), {"uri": uri})


def _item(kind: catalog_pb2.NameKind.ValueType, name: str, server: str | None) -> PromptOrResource:
    if server is not None:
        check_text("server", server)
    if not 0 < len(name) <= MAX_URI:
        noun = "prompt's name" if kind == _PROMPT else "URI"
        raise Fault(
            Reason.INVALID_REQUEST,
            f"A {noun} has 1 to {MAX_URI} characters, this one {len(name)}.",
        )
    return PromptOrResource(kind, name, server or "")


def _string_dict(parameter: str, values: object) -> dict[str, str]:
    """Check that the names and values of prompt arguments are strings, as MCP requires."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{parameter} is a mapping of texts by name, not {type(values).__name__}.")
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"{parameter} maps names to texts, as MCP requires; {name!r} is a "
                f"{type(value).__name__}. Convert it with str()."
            )
    return dict(values)
