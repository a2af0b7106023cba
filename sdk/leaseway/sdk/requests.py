"""Requests other than tool calls, as a `Caller` sends them: MCP's own params, by name or URI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leaseway.sdk.arguments import encode_arguments
from leaseway.sdk.checks import check_text
from leaseway.sdk.targets import Offer, Target
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire.bounds import MAX_URI
from leaseway.wire.fault import Fault
from leaseway.wire.reasons import Reason

__all__ = [
    "OfferRequest",
    "complete_prompt",
    "complete_template",
    "completion_params",
    "get",
    "read",
    "subscribe",
]

_PROMPT: Final = catalog_pb2.NAME_KIND_PROMPT
_RESOURCE: Final = catalog_pb2.NAME_KIND_RESOURCE


class OfferRequest:
    """One request about a prompt or a resource.

    Attributes:
        method: The MCP method.
        offer: What it is about, as callers name it.
        target: Where it led at the last try, or None before the first.
    """

    def __init__(self, method: str, offer: Offer, params: Mapping[str, Any]) -> None:
        self.method = method
        self.offer = offer
        self.target: Target | None = None
        self._params = params

    def complete(self, target: Target) -> tuple[bytes, bytes]:
        """Return what a call of it says beside what the target does, and its params as JSON.

        Raises:
            Fault: The params are none that JSON can hold, or too large.

        """
        self.target = target
        by_name = self.offer.kind == _PROMPT
        name = target.original_name if by_name else self.offer.name
        params: Mapping[str, Any] = self._params
        if self.method == "prompts/get":
            params = {"name": name, **params}
        elif self.method == "completion/complete" and by_name:
            params = {"ref": {"type": "ref/prompt", "name": name}, **params}
        call = execution_pb2.Call(method=self.method, tool=name)
        return call.SerializeToString(), encode_arguments(self.offer.name, params)


def get(name: str, arguments: Mapping[str, Any] | None, server: str | None) -> OfferRequest:
    """Return the request for a prompt."""
    check_text("name", name)
    params = {} if arguments is None else {"arguments": _texts("arguments", arguments)}
    return OfferRequest("prompts/get", _offer(_PROMPT, name, server), params)


def read(uri: str, server: str | None) -> OfferRequest:
    """Return the request for the content of a resource."""
    return _about("resources/read", uri, server)


def subscribe(uri: str, server: str | None) -> OfferRequest:
    """Return the request to be told of a resource's changes."""
    return _about("resources/subscribe", uri, server)


def complete_prompt(name: str, params: Mapping[str, Any], server: str | None) -> OfferRequest:
    """Return the request to complete an argument of a prompt."""
    check_text("prompt", name)
    return OfferRequest("completion/complete", _offer(_PROMPT, name, server), params)


def complete_template(uri: str, params: Mapping[str, Any], server: str | None) -> OfferRequest:
    """Return the request to complete a variable of a template."""
    check_text("template", uri)
    whole = {"ref": {"type": "ref/resource", "uri": uri}, **params}
    return OfferRequest("completion/complete", _offer(_RESOURCE, uri, server), whole)


def completion_params(
    argument: str, value: str, context: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what the requests to complete have in common."""
    check_text("argument", argument)
    check_text("value", value)
    params: dict[str, Any] = {"argument": {"name": argument, "value": value}}
    if context is not None:
        params["context"] = {"arguments": _texts("context", context)}
    return params


def _about(method: str, uri: str, server: str | None) -> OfferRequest:
    check_text("uri", uri)
    return OfferRequest(method, _offer(_RESOURCE, uri, server), {"uri": uri})


def _offer(kind: catalog_pb2.NameKind.ValueType, name: str, server: str | None) -> Offer:
    if server is not None:
        check_text("server", server)
    if not 0 < len(name) <= MAX_URI:
        what = "prompt's name" if kind == _PROMPT else "URI"
        raise Fault(
            Reason.INVALID_REQUEST,
            f"A {what} has 1 to {MAX_URI} characters, this one {len(name)}.",
        )
    return Offer(kind, name, server or "")


def _texts(parameter: str, values: object) -> dict[str, str]:
    """Return arguments of a prompt, which MCP says are texts."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{parameter} is a mapping of texts by name, not {type(values).__name__}.")
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"{parameter} maps names to texts, as MCP has it; {name!r} is a "
                f"{type(value).__name__}. Convert it with str()."
            )
    return dict(values)
