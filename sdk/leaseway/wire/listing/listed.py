"""Tools, prompts and resources as callers list them, made of the definitions of their servers."""

from __future__ import annotations

from collections.abc import Iterable

from leaseway.v1 import catalog_pb2
from leaseway.wire.listing.definitions import parse_definition, parse_prompt, parse_resource


def listed_tool(
    name: str,
    original: str,
    server_id: str,
    definition: bytes,
    *,
    shared: bool,
    sessions_from: Iterable[str],
) -> catalog_pb2.Tool:
    """Return a tool.

    Args:
        name: Its exposed name.
        original: Its name at the server.
        server_id: The server.
        definition: The server's definition.
        shared: Whether its server is used without leases.
        sessions_from: How its server tells sessions apart, as configured.
    """
    parsed = parse_definition(definition)
    return catalog_pb2.Tool(
        name=name,
        original_name=original,
        server_id=server_id,
        title=parsed.title,
        description=parsed.description,
        input_schema=parsed.input_schema,
        output_schema=parsed.output_schema,
        annotations=parsed.annotations,
        extra=parsed.extra,
        shared=shared,
        sessions_from=sessions_from,
    )


def listed_prompt(
    name: str, original: str, server_id: str, definition: bytes, *, shared: bool
) -> catalog_pb2.Prompt:
    """Return a prompt; its arguments are those of `listed_tool`."""
    parsed = parse_prompt(definition)
    return catalog_pb2.Prompt(
        name=name,
        original_name=original,
        server_id=server_id,
        title=parsed.title,
        description=parsed.description,
        arguments=parsed.arguments,
        extra=parsed.extra,
        shared=shared,
    )


def listed_resource(
    uri: str, server_id: str, definition: bytes, *, is_template: bool, shared: bool
) -> catalog_pb2.Resource:
    """Return a resource, or a template of resources with its URI template."""
    parsed = parse_resource(definition)
    return catalog_pb2.Resource(
        uri=uri,
        is_template=is_template,
        server_id=server_id,
        name=parsed.name,
        title=parsed.title,
        description=parsed.description,
        mime_type=parsed.mime_type,
        extra=parsed.extra,
        shared=shared,
    )
