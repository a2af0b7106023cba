"""Completes an `http_api` server with its document's tools, its credentials and its address."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from leaseway.control_plane.config.openapi.names import leave_room
from leaseway.control_plane.config.openapi.servers import origin
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.kinds.http_api.documents import OpenApi, Origin, openapi
from leaseway.control_plane.config.schema.kinds.http_api.security import (
    ToolCredentials,
    resolve_credentials,
    security,
)
from leaseway.control_plane.config.schema.kinds.http_api.tools import http_tools
from leaseway.control_plane.config.schema.values import Reader
from leaseway.control_plane.config.tree.yaml_tree import TableEntry
from leaseway.spec.kinds.http_tools import HttpTool, SetNames, without_parameters
from leaseway.spec.model import Transform

_MAX_WARNINGS: Final = 20
_MAX_NAMED: Final = 3


def complete(
    server: TableEntry, values: dict[str, Any], transforms: Sequence[Transform], where: Where
) -> None:
    """Add the tools of its document, if all that is written was accepted."""
    if where.server_id not in where.log.failed:
        _add_http_tools(server, values, transforms, where)
    values.pop("openapi", None)


def _add_http_tools(
    server: TableEntry, values: dict[str, Any], transforms: Sequence[Transform], where: Where
) -> None:
    """Add the tools of an OpenAPI document to those of the file, and report missing keys.

    Args:
        values: Its values; modified.
        transforms: What is added to the names of its tools.
        where: Where mistakes are reported.
    """
    document: OpenApi | None = values.get("openapi")
    tools = {tool.name: tool for tool in values.get("http_tools", ())}
    headers = {name.lower(): "headers" for name in values.get("headers", {})}
    schemes = document.imported.schemes if document is not None else None
    given = values.get("security", {})
    credentials = resolve_credentials(given, schemes, where)
    values["security"] = credentials
    of_tools = ToolCredentials(
        credentials, has_token=bool(values.get("auth")), schemes=schemes or {}
    )
    of_tools.check_names(tools.values(), where)
    for name, credential in credentials.items():
        if credential.header.lower() in headers:
            message = (
                f"{quoted(name)} sets the header {quoted(credential.header)}, but 'headers' sets"
                " it, too."
            )
            place, at = where.find(f"security.{name}", where.log.places[where.key])
            place.error(at, IssueReason.BAD_VALUE, message)
    cookies = {
        credential.name for credential in credentials.values() if credential.kind == "cookie"
    }
    set_cookies = None if "cookie" in headers else cookies
    headers |= {
        credential.header.lower(): "security"
        for credential in credentials.values()
        if credential.header
    }
    if values.get("auth"):
        headers["authorization"] = "auth"
    query = {credential.name for credential in credentials.values() if credential.kind == "query"}
    names = SetNames(headers=headers, query=query, cookies=set_cookies)
    place, at = where.find("http_tools", server.at)
    for tool in tools.values():
        for parameter in tool.parameters:
            if names.has(parameter):
                is_header = parameter.position == "header" or set_cookies is None
                header = "cookie" if parameter.position == "cookie" else parameter.sent_as.lower()
                by = headers.get(header, "security") if is_header else "security"
                message = (
                    f"The tool {quoted(tool.name)} has the {parameter.position} parameter"
                    f" {quoted(parameter.sent_as)}, which {by!r} sets already."
                )
                place.error(at, IssueReason.BAD_HTTP_TOOL, message)
    if document is not None:
        imported = document.imported
        is_moved = origin(values.setdefault("url", imported.base_url)) != origin(imported.base_url)
        written = [
            _trusting(without_parameters(of_tools.of_document(tool), names), document.trusted)
            for tool in imported.tools
            if tool.name not in tools
        ]
        named = leave_room(written, sum(len(step.add) for step in transforms))
        tools = {tool.name: tool for tool in named} | tools
        if headers or query or credentials or is_moved:
            _warn_of_other_servers(document, tools.values(), where)
        if given:
            _warn_of_unmet(document, of_tools, values.get("headers", {}), where)
        else:
            _warn_of_credentials(document, headers, where)
    of_tools.check(tools.values(), where)
    if not tools:
        message = f"The server {quoted(server.name)} needs 'http_tools' or 'openapi'."
        where.missing(server.at, "http_tools", message)
    if not values.get("url"):
        text = " the document names no absolute address" if document is not None else ""
        message = f"The server {quoted(server.name)} needs 'base_url'{':' if text else ''}{text}."
        where.missing(server.at, "base_url", message)
    values["http_tools"] = tuple(tools.values())


def _trusting(tool: HttpTool, trusted: frozenset[Origin]) -> HttpTool:
    is_trusted = bool(tool.base_url) and origin(tool.base_url) in trusted
    return replace(tool, send_credentials=True) if is_trusted else tool


def _warn_of_other_servers(document: OpenApi, tools: Iterable[HttpTool], where: Where) -> None:
    """Warn of each origin other than the server's that gets neither headers nor credentials."""
    found: dict[Origin, list[HttpTool]] = {}
    for tool in tools:
        own = origin(tool.base_url)
        if own is not None and not tool.send_credentials:
            found.setdefault(own, []).append(tool)
    for of_origin in found.values():
        url = of_origin[0].base_url
        address = "/".join(url.split("/")[:3])
        more = f" and {len(of_origin) - 1} more" if len(of_origin) > 1 else ""
        message = (
            f"The tool {quoted(of_origin[0].name)}{more} of the document has its own server,"
            f" {address}: 'base_url' does not apply to it, and it gets neither 'headers' nor"
            f" 'security'. Add {address} to 'send_credentials_to' of 'openapi' if it may have them,"
            " or leave the tool out with 'exclude'."
        )
        place, _ = where.find("openapi", document.at)
        place.warning(document.at, IssueReason.CREDENTIAL_MISSING, message)


def _warn_of_credentials(document: OpenApi, headers: Collection[str], where: Where) -> None:
    """Warn of each header, query parameter or cookie that needs a credential by its document."""
    reported: set[str] = set()
    for name, scheme in document.imported.schemes.items():
        if scheme.target in reported or scheme.target.removeprefix("header ") in headers:
            continue
        reported.add(scheme.target)
        message = (
            f"The document says that requests may need its security scheme {quoted(name)}"
            f" ({scheme.example}); set it under 'security' if yours do."
        )
        place, _ = where.find("openapi", document.at)
        place.warning(document.at, IssueReason.CREDENTIAL_MISSING, message)


def _warn_of_unmet(
    document: OpenApi, of_tools: ToolCredentials, headers: Iterable[str], where: Where
) -> None:
    """Warn of tools that ask only for schemes whose credentials are not set, by these schemes."""
    imported = document.imported
    in_headers = {f"header {name.lower()}" for name in headers}
    found: dict[tuple[str, ...], list[HttpTool]] = {}
    for tool in imported.tools:
        targets = {imported.schemes[name].target for name in tool.security or ()}
        if tool.security and not of_tools.meets(tool.security) and not targets & in_headers:
            found.setdefault(tool.security, []).append(tool)
    for asked, tools in list(found.items())[:_MAX_WARNINGS]:
        more = f" and {len(tools) - 1} more" if tools[1:] else ""
        schemes = " or ".join(
            f"{quoted(name)} ({imported.schemes[name].example})" for name in asked[:_MAX_NAMED]
        )
        message = (
            f"The tool {quoted(tools[0].name)}{more} of the document asks for its security scheme"
            f" {schemes}, which 'security' does not set: it is called without a credential."
        )
        place, _ = where.find("openapi", document.at)
        place.warning(document.at, IssueReason.CREDENTIAL_MISSING, message)


READERS: Final[Mapping[str, Reader[Any]]] = {
    "http_tools": http_tools,
    "openapi": openapi,
    "security": security,
}
"""The readers of its keys that no shape describes."""
