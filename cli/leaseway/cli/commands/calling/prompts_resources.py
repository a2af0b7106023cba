"""`leaseway prompts`, `prompt`, `resources` and `resource`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from leaseway.cli.commands.calling.calls import first_line, with_qualified_name
from leaseway.cli.commands.calling.session_leases import print_new_lease, with_lease
from leaseway.cli.commands.server_checks import check_servers, print_pending
from leaseway.cli.errors import CliFailure
from leaseway.cli.options.common import (
    ConnectionOptions,
    client_options,
    examples,
    json_option,
    seen_by_option,
    timeout_option,
)
from leaseway.cli.options.connection import with_client
from leaseway.cli.options.tool_arguments import parse_texts
from leaseway.cli.output.content import describe_item, resource_piece
from leaseway.cli.output.files import Output, Piece, output_options
from leaseway.cli.output.tables import one_line, print_json, print_table, say

if TYPE_CHECKING:
    from leaseway.sdk import (
        AsyncClient,
        Prompt,
        PromptArgument,
        PromptList,
        Resource,
        ResourceList,
        ResourceTemplate,
        ResourceTemplateList,
    )
    from leaseway.sdk.calls.prompt_results import PromptResult, ResourceResult


@click.command()
@click.argument("servers", nargs=-1)
@seen_by_option
@json_option
@client_options
def prompts(
    servers: tuple[str, ...], session: str | None, as_json: bool, connection: ConnectionOptions
) -> None:
    """List the prompts of all servers, or of SERVERS.

    Required arguments are marked with a star.
    """

    async def request(client: AsyncClient) -> PromptList:
        whose = client if session is None else client.session(session)
        found = await whose.list_prompts(servers=list(servers) or None)
        await check_servers(client, servers, {p.server_id for p in found} | set(found.pending))
        return found

    listed = with_client(connection, request)
    if as_json:
        print_json([with_qualified_name(prompt) for prompt in listed])
    else:
        rows = [
            (p.name, p.qualified_name, list(map(_argument, p.arguments)), _shared(p), first_line(p))
            for p in listed
        ]
        headers = ("NAME", "QUALIFIED NAME", "ARGUMENTS", "CALLS", "DESCRIPTION")
        print_table(headers, rows, "No prompts.")
    print_pending(listed.pending)


@click.command(epilog=examples("leaseway prompt docs_review language=Python"))
@click.argument("name")
@click.argument("arguments", nargs=-1)
@click.option("--server", help="The id of the prompt's server.")
@click.option("--session", help="Use this session, whose lease is kept.")
@timeout_option("Seconds to wait; else 60.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as the server sent it.")
@client_options
def prompt(
    name: str,
    arguments: tuple[str, ...],
    server: str | None,
    session: str | None,
    timeout: float | None,
    as_json: bool,
    connection: ConnectionOptions,
) -> None:
    """Get the prompt NAME, by its name or as server:prompt.

    ARGUMENTS are key=value words; all values are strings.
    """
    try:
        values = parse_texts(arguments)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def request(client: AsyncClient) -> PromptResult:
        caller = client if session is None else client.session(session)
        result = await with_lease(
            partial(caller.get_prompt, name, values, server=server, timeout=timeout)
        )
        await print_new_lease(client, session, result)
        return result

    result = with_client(connection, request)
    if as_json:
        print_json(result.raw)
        return
    for message in result.messages:
        content, role = message.get("content"), message.get("role", "unknown")
        for item in content if isinstance(content, list) else [content]:
            if isinstance(item, dict) and item.get("type") == "text":
                say(f"{role}: {item.get('text', '')}")
            elif isinstance(item, dict):
                say(f"{role}: {describe_item(item)}", err=True)


@click.command()
@click.argument("servers", nargs=-1)
@seen_by_option
@json_option
@client_options
def resources(
    servers: tuple[str, ...], session: str | None, as_json: bool, connection: ConnectionOptions
) -> None:
    """List the resources of all servers, or of SERVERS.

    Resource templates are listed, too.
    """

    async def request(client: AsyncClient) -> tuple[ResourceList, ResourceTemplateList]:
        whose = client if session is None else client.session(session)
        found = await whose.list_resources(servers=list(servers) or None)
        templates = await whose.list_resource_templates(servers=list(servers) or None)
        listed_servers = {item.server_id for item in (*found, *templates)}
        await check_servers(client, servers, listed_servers | set(found.pending))
        return found, templates

    listed, templates = with_client(connection, request)
    if as_json:
        print_json([*map(_resource, listed), *map(_template, templates)])
    else:
        rows = [(r.server_id, r.uri, "resource", *_about(r)) for r in listed]
        rows += [(t.server_id, t.uri_template, "template", *_about(t)) for t in templates]
        headers = ("SERVER", "URI", "KIND", "NAME", "TYPE", "CALLS", "DESCRIPTION")
        print_table(headers, rows, "No resources.")
    print_pending(listed.pending)


@click.command(
    epilog=examples("leaseway resource file:///notes.md --server docs --output notes.md")
)
@click.argument("uri")
@click.option("--server", help="The id of the resource's server; URI may then be unlisted.")
@click.option("--session", help="Use this session, whose lease is kept.")
@timeout_option("Seconds to wait; else 60.")
@output_options("the content, unchanged,")
@click.option("--json", "as_json", is_flag=True, help="Print the result as the server sent it.")
@client_options
def resource(
    uri: str,
    server: str | None,
    session: str | None,
    timeout: float | None,
    output: Output | None,
    as_json: bool,
    connection: ConnectionOptions,
) -> None:
    """Read the resource URI and print its content."""
    if output is not None and output.path is None and as_json:
        raise click.UsageError("Use either --json or --output -: both write to stdout.")

    async def request(client: AsyncClient) -> ResourceResult:
        caller = client if session is None else client.session(session)
        result = await with_lease(
            partial(caller.read_resource, uri, server=server, timeout=timeout)
        )
        await print_new_lease(client, session, result)
        return result

    result = with_client(connection, request)
    if as_json:
        print_json(result.raw)
    if output is not None:
        output.save(_pieces(result, several=output.is_folder))
    elif as_json:
        return
    elif result.blob is not None and not sys.stdout.isatty():
        click.echo(_pieces(result, several=False)[0].content, nl=False)  # bytes
    else:
        _print_parts(result)


def _pieces(result: ResourceResult, *, several: bool) -> list[Piece]:
    parts = result.contents
    if len(parts) != 1 and not several:
        raise CliFailure(
            f"The resource has {len(parts)} parts; --json prints them all, --output FOLDER saves "
            "each."
        )
    pieces = [piece for part in parts if (piece := resource_piece(part)) is not None]
    if len(pieces) != len(parts) or not pieces:
        raise CliFailure("A part of the resource is neither text nor base64; --json prints it.")
    return pieces


def _print_parts(result: ResourceResult) -> None:
    for part in result.contents:
        if isinstance(part.get("text"), str):
            say(part["text"])
        else:
            facts = [str(part[key]) for key in ("mimeType", "uri") if key in part]
            about = one_line(" ".join(["bytes", *facts]))
            say(f"[{about}; --output PATH saves it]", err=True)


def _about(item: Resource | ResourceTemplate) -> tuple[str, ...]:
    return (item.name, item.mime_type, _shared(item), first_line(item))


def _shared(item: Prompt | Resource | ResourceTemplate) -> str:
    return "shared" if item.shared else "leased"


def _argument(argument: PromptArgument) -> str:
    return f"{argument.name}*" if argument.required else argument.name


def _resource(item: Resource) -> dict[str, Any]:
    return {"uri": item.uri, "template": False, **_item(item)}


def _template(item: ResourceTemplate) -> dict[str, Any]:
    return {"uri": item.uri_template, "template": True, **_item(item)}


def _item(item: Resource | ResourceTemplate) -> dict[str, Any]:
    return {
        "server_id": item.server_id,
        "name": item.name,
        "title": item.title,
        "description": item.description,
        "mime_type": item.mime_type,
        "shared": item.shared,
        "extra": item.extra,
    }
