"""What clients declare about themselves: of which types it must be. Pure.

What has another type is refused and not left out: a client that declares `"elicitation": 5` means
something, and nobody knows what. Members that MCP does not name are left out (`McpClient`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from leaseway.front.protocol.empty_objects import capabilities_in

_Object = dict[str, Any]


class _Elicitation(msgspec.Struct):
    form: _Object | None = None
    url: _Object | None = None


class _Sampling(msgspec.Struct):
    tools: _Object | None = None
    context: _Object | None = None


class _Roots(msgspec.Struct, rename="camel"):
    list_changed: bool | None = None


class _Capabilities(msgspec.Struct):
    elicitation: _Elicitation | None = None
    sampling: _Sampling | None = None
    roots: _Roots | None = None
    extensions: dict[str, _Object] | None = None
    experimental: _Object | None = None
    tasks: _Object | None = None


class _Info(msgspec.Struct, rename="camel"):
    name: str
    version: str = ""
    title: str | None = None
    website_url: str | None = None
    description: str | None = None
    icons: list[_Object] | None = None


class _Initialize(msgspec.Struct, rename="camel"):
    protocol_version: str = ""
    capabilities: _Capabilities | None = None
    client_info: _Info | None = None


class _Meta(msgspec.Struct, rename="camel"):
    client_capabilities: _Capabilities
    client_info: _Info | None = None


class WrongDeclarationError(ValueError):
    """What a client declares has a wrong type; the text says which, and nothing that was sent."""


def initialize_in(params: dict[str, Any]) -> dict[str, Any]:
    """Return the params of `initialize`, with an object for each capability.

    Raises:
        WrongDeclarationError: A member has another type.
    """
    declared = params | {"capabilities": capabilities_in(params.get("capabilities"))}
    _check(declared, _Initialize)
    return declared


def meta_capabilities_in(capabilities: object, info: object) -> dict[str, Any]:
    """Return the capabilities that the `_meta` of a modern request declares.

    Args:
        capabilities: As the client has sent them.
        info: What it declares about itself beside them.

    Raises:
        WrongDeclarationError: One of both, or a member, has another type.
    """
    declared = {"clientCapabilities": capabilities_in(capabilities), "clientInfo": info}
    _check(declared, _Meta)
    found: dict[str, Any] = declared["clientCapabilities"]
    return found


def _check(declared: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    try:
        msgspec.convert(declared, kind)
    except msgspec.ValidationError as error:
        raise WrongDeclarationError(str(error)) from None
    except RecursionError:
        raise WrongDeclarationError("it is nested too deeply") from None
