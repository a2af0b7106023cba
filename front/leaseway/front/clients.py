"""What clients declare about themselves: of which types it must be. Pure.

What has another type is refused and not left out: a client that declares `"elicitation": 5` means
something, and nobody knows what. Members that MCP does not name are left out (`McpClient`).
"""

from __future__ import annotations

from typing import Any

import msgspec

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


def problem_of_initialize(params: dict[str, Any]) -> str:
    """Return what is wrong with the params of `initialize`, or empty."""
    return _problem(params | {"capabilities": objects_in(params.get("capabilities"))}, _Initialize)


def problem_of_meta(capabilities: object, info: object) -> str:
    """Return what is wrong with what the `_meta` of a modern request declares, or empty."""
    return _problem({"clientCapabilities": objects_in(capabilities), "clientInfo": info}, _Meta)


def objects_in(capabilities: Any, depth: int = 2) -> Any:
    """Return capabilities with an object for each `[]`, as which PHP writes an empty one.

    Args:
        capabilities: As the client has sent them.
        depth: How many levels below may be objects: each capability, and its options. What the
            settings of an extension contain is its own.
    """
    if capabilities == []:
        return {}
    if not depth or not isinstance(capabilities, dict):
        return capabilities
    return {name: objects_in(value, depth - 1) for name, value in capabilities.items()}


def _problem(declared: dict[str, Any], kind: type[msgspec.Struct]) -> str:
    try:
        msgspec.convert(declared, kind)
    except msgspec.ValidationError as error:
        return str(error)  # it names types and known members, and nothing that was sent
    except RecursionError:
        return "it is nested too deeply"
    return ""
