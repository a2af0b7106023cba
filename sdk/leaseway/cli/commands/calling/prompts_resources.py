"""`leaseway prompts`, `prompt`, `resources` and `resource`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from leaseway.cli.commands.calling.calls import first_line
from leaseway.cli.commands.calling.session_leases import tell_new_lease
from leaseway.cli.commands.unknown_names import require_servers
from leaseway.cli.errors import CliFailure
from leaseway.cli.options.common import (
    Connection,
    client_options,
    examples,
    json_option,
    timeout_option,
)
from leaseway.cli.options.connection import ask
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
@json_option
@client_options
def prompts(servers: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """List the prompts that can be got.

    Of all servers, or of SERVERS only. An argument that is required is marked with a star.
    """

    async def question(client: AsyncClient) -> PromptList:
        found = await client.list_prompts(servers=list(servers) or None)
        await _require(client, servers, [p.server_id for p in found], found.pending)
        return found

    listed = ask(connection, question)
    if as_json:
        print_json([_prompt(one) for one in listed])
    else:
        rows = [
            (p.name, p.qualified_name, list(map(_argument, p.arguments)), _shared(p), first_line(p))
            for p in listed
        ]
        headers = ("NAME", "QUALIFIED NAME", "ARGUMENTS", "CALLS", "DESCRIPTION")
        print_table(headers, rows, "No prompts.")
    _say_pending(listed.pending)


@click.command(epilog=examples("leaseway prompt docs_review language=Python"))
@click.argument("name")
@click.argument("arguments", nargs=-1)
@click.option("--server", help="The server that is meant, by its id.")
@click.option("--session", help="Ask in this session; its lease stays for its time to live.")
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
    connection: Connection,
) -> None:
    """Get the prompt NAME, by its name or as server:prompt.

    ARGUMENTS are key=value words; all values are texts.
    """
    try:
        values = parse_texts(arguments)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def question(client: AsyncClient) -> PromptResult:
        caller = client if session is None else client.session(session)
        result = await caller.get_prompt(name, values, server=server, timeout=timeout)
        await tell_new_lease(client, session, result)
        return result

    result = ask(connection, question, keep_leases=session is not None)
    if as_json:
        print_json(result.raw)
        return
    for message in result.messages:
        content = message.get("content")
        if isinstance(content, dict) and content.get("type") == "text":
            said = f"{message.get('role', 'unknown')}: {content.get('text', '')}"
            say(said)
        elif isinstance(content, dict):
            said = f"{message.get('role', 'unknown')}: {describe_item(content)}"
            say(said, err=True)


@click.command()
@click.argument("servers", nargs=-1)
@json_option
@client_options
def resources(servers: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """List the resources that can be read, and templates.

    Of all servers, or of SERVERS only.
    """

    async def question(client: AsyncClient) -> tuple[ResourceList, ResourceTemplateList]:
        found = await client.list_resources(servers=list(servers) or None)
        templates = await client.list_resource_templates(servers=list(servers) or None)
        seen = [one.server_id for one in (*found, *templates)]
        await _require(client, servers, seen, found.pending)
        return found, templates

    listed, templates = ask(connection, question)
    if as_json:
        print_json([*map(_resource, listed), *map(_template, templates)])
    else:
        rows = [(r.server_id, r.uri, "resource", *_about(r)) for r in listed]
        rows += [(t.server_id, t.uri_template, "template", *_about(t)) for t in templates]
        headers = ("SERVER", "URI", "KIND", "NAME", "TYPE", "CALLS", "DESCRIPTION")
        print_table(headers, rows, "No resources.")
    _say_pending(listed.pending)


@click.command(
    epilog=examples("leaseway resource file:///notes.md --server docs --output notes.md")
)
@click.argument("uri")
@click.option("--server", help="The server that is meant, by its id; any URI may be one of its.")
@click.option("--session", help="Read in this session; its lease stays for its time to live.")
@timeout_option("Seconds to wait; else 60.")
@output_options("the content, bytes as they are,")
@click.option("--json", "as_json", is_flag=True, help="Print the result as the server sent it.")
@client_options
def resource(
    uri: str,
    server: str | None,
    session: str | None,
    timeout: float | None,
    output: Output | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Read the resource URI and print its content."""
    if output is not None and output.path is None and as_json:
        raise click.UsageError("stdout takes --json or --output -, not both.")

    async def question(client: AsyncClient) -> ResourceResult:
        caller = client if session is None else client.session(session)
        result = await caller.read_resource(uri, server=server, timeout=timeout)
        await tell_new_lease(client, session, result)
        return result

    result = ask(connection, question, keep_leases=session is not None)
    if as_json:
        print_json(result.raw)
    if output is not None:
        output.save(_pieces(result, several=output.takes_several))
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
        raise CliFailure("The resource has a part that is neither text nor base64; see --json.")
    return pieces


def _print_parts(result: ResourceResult) -> None:
    for part in result.contents:
        if isinstance(part.get("text"), str):
            say(part["text"])
        else:
            facts = [str(part[key]) for key in ("mimeType", "uri") if key in part]
            about = one_line(" ".join(["bytes", *facts]))
            say(f"[{about}; --output PATH saves it]", err=True)


async def _require(
    client: AsyncClient, wanted: Sequence[str], seen: Sequence[str], pending: Sequence[str]
) -> None:
    known = {*seen, *pending}
    await require_servers(client, [each for each in wanted if each not in known])


def _say_pending(pending: Sequence[str]) -> None:
    if pending:
        say(f"leaseway: Still starting: {', '.join(pending)}.", err=True)


def _about(item: Resource | ResourceTemplate) -> tuple[str, ...]:
    return (item.name, item.mime_type, _shared(item), first_line(item))


def _shared(item: Prompt | Resource | ResourceTemplate) -> str:
    return "shared" if item.shared else "leased"


def _argument(argument: PromptArgument) -> str:
    return f"{argument.name}*" if argument.required else argument.name


def _prompt(one: Prompt) -> dict[str, Any]:
    return {
        "name": one.name,
        "qualified_name": one.qualified_name,
        "server_id": one.server_id,
        "original_name": one.original_name,
        "title": one.title,
        "description": one.description,
        "shared": one.shared,
        "arguments": one.arguments,
        "extra": one.extra,
    }


def _resource(one: Resource) -> dict[str, Any]:
    return {"uri": one.uri, "template": False, **_described(one)}


def _template(one: ResourceTemplate) -> dict[str, Any]:
    return {"uri": one.uri_template, "template": True, **_described(one)}


def _described(one: Resource | ResourceTemplate) -> dict[str, Any]:
    return {
        "server_id": one.server_id,
        "name": one.name,
        "title": one.title,
        "description": one.description,
        "mime_type": one.mime_type,
        "shared": one.shared,
        "extra": one.extra,
    }
