"""`leaseway tools`, `call` and `artifact`."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from leaseway.cli.commands.calling.session_leases import print_new_lease, with_lease
from leaseway.cli.commands.server_checks import check_servers, print_pending
from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.common import (
    ConnectionOptions,
    client_options,
    examples,
    json_option,
    seen_by_option,
    timeout_option,
)
from leaseway.cli.options.connection import with_client
from leaseway.cli.options.tool_arguments import are_pairs, keep_texts, parse_arguments
from leaseway.cli.output.content import describe_item, how_to_get, result_pieces
from leaseway.cli.output.files import Output, Piece, output_options, stdout_or_fail
from leaseway.cli.output.tables import one_line, plain, print_json, print_table, say
from leaseway.wire import bounds
from leaseway.wire.messages.mcp import LOG_LEVELS

if TYPE_CHECKING:
    from leaseway.sdk import (
        AsyncClient,
        AsyncSession,
        Prompt,
        Resource,
        ResourceTemplate,
        Tool,
        ToolList,
        ToolResult,
    )


@click.command()
@click.argument("servers", nargs=-1)
@click.option("--user", default="", help="The user who sees them; needs the role delegate.")
@seen_by_option
@json_option
@client_options
def tools(
    servers: tuple[str, ...],
    user: str,
    session: str | None,
    as_json: bool,
    connection: ConnectionOptions,
) -> None:
    """List the tools of all servers, or of SERVERS."""

    async def request(client: AsyncClient) -> ToolList:
        whose = client if session is None else client.session(session)
        found = await whose.list_tools(servers=list(servers) or None)
        await check_servers(client, servers, {t.server_id for t in found} | set(found.pending))
        return found

    listed = with_client(connection, request, user=user)
    if as_json:
        print_json([with_qualified_name(tool) for tool in listed])
    else:
        rows = [
            (t.name, t.qualified_name, "shared" if t.shared else "leased", first_line(t))
            for t in listed
        ]
        print_table(("NAME", "QUALIFIED NAME", "CALLS", "DESCRIPTION"), rows, "No tools.")
    print_pending(listed.pending)


@click.command(
    epilog=examples(
        "leaseway call time_current_time timezone=Europe/Berlin",
        """leaseway call files:list_files '{"pattern": "*.yaml"}'""",
        "leaseway call browser_take_screenshot --session s1 --output shot.png",
    )
)
@click.argument("tool")
@click.argument("arguments", nargs=-1)
@click.option("--session", help="Call in this session, whose lease is kept.")
@timeout_option("Seconds to wait; else 60.")
@click.option("--agent", default="leaseway-cli", show_default=True, help="The agent that calls.")
@click.option("--user", default="", help="The user for whom it calls; needs the role delegate.")
@click.option(
    "--progress/--no-progress",
    default=None,
    help="Print progress to stderr; the default is yes if that is a terminal.",
)
@click.option(
    "--server-log",
    type=click.Choice(LOG_LEVELS),
    help="Print the server's log messages from this level on to stderr.",
)
@output_options("images, sounds and embedded files of the result")
@click.option("--json", "as_json", is_flag=True, help="Print the result as the server sent it.")
@client_options
def call(  # noqa: PLR0913 - each is an option of the command
    tool: str,
    arguments: tuple[str, ...],
    session: str | None,
    timeout: float | None,
    agent: str,
    user: str,
    progress: bool | None,
    server_log: str | None,
    output: Output | None,
    as_json: bool,
    connection: ConnectionOptions,
) -> int:
    """Call TOOL, by its name or as server:tool.

    ARGUMENTS are one JSON object, or key=value words, or - for a JSON object on stdin. A value is
    text if the tool's schema has a string there, else JSON if it can be parsed.
    Without --session, the call's lease ends with the call. With --session, images and sounds are
    kept for some time: get them with `leaseway artifact`.
    """
    if output is not None and output.path is None and as_json:
        raise click.UsageError("Use either --json or --output -: both write to stdout.")
    try:
        values = parse_arguments(arguments, _read_stdin() if arguments == ("-",) else None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    callbacks = _callbacks(progress, server_log)

    async def request(client: AsyncClient) -> ToolResult:
        caller = client if session is None else client.session(session)
        # Without --session the call's session ends with this command, and its artifacts with it.
        values_to_send = await _keep_texts(client, tool, arguments, values)
        result: ToolResult = await with_lease(
            partial(
                caller.call_tool,
                tool,
                values_to_send,
                timeout=timeout,
                inline_media=session is None,
                **callbacks,
            )
        )
        await print_new_lease(client, session, result)
        if as_json:
            print_json(result.raw)
        else:
            _print_result(result, session, user, output)
        if output is not None:
            await _save(output, result, caller, tool)
        return result

    result = with_client(connection, request, agent=agent, user=user)
    return FAILED if result.is_error else 0


async def _keep_texts(
    client: AsyncClient, tool: str, words: tuple[str, ...], values: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments with texts for string properties; fetch the schema if it matters."""
    from leaseway.sdk import ToolNotFound

    if not are_pairs(words) or all(isinstance(value, str) for value in values.values()):
        return values
    try:
        definition = await client.describe_tool(tool)
    except ToolNotFound:
        return values  # the call reports it, with similar names
    return keep_texts(words, values, definition.get("inputSchema", {}))


async def _save(
    output: Output, result: ToolResult, caller: AsyncClient | AsyncSession, tool: str
) -> None:
    pieces = await result_pieces(result, caller, tool)
    if pieces:
        output.save(pieces)
    elif not result.is_error:
        raise CliFailure("The result has no image, sound or file; nothing was written.")


def _callbacks(progress: bool | None, server_log: str | None) -> dict[str, Any]:
    """Return the arguments of `call_tool` that print the server's notifications to stderr."""
    callbacks: dict[str, Any] = {}
    if progress or (progress is None and sys.stderr.isatty()):
        callbacks["on_progress"] = _print_progress
    if server_log is not None:
        callbacks |= {"on_log": _print_log, "log_level": server_log}
    return callbacks


def _print_progress(progress: float, total: float | None, message: str | None) -> None:
    count = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
    say(f"leaseway: Progress {count}{f': {one_line(message)}' if message else ''}", err=True)


def _print_log(level: str, logger: str | None, data: Any) -> None:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    source = f"{one_line(logger)}: " if logger else ""
    say(f"leaseway: Server log {one_line(level)}: {source}{one_line(text)}", err=True)


def _read_stdin() -> str:
    content = sys.stdin.buffer.read(bounds.MAX_ARGUMENTS + 1)
    if len(content) > bounds.MAX_ARGUMENTS:
        raise ValueError(f"stdin has more than {bounds.MAX_ARGUMENTS} bytes of arguments.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("stdin is not UTF-8.") from None


def _print_result(
    result: ToolResult, session: str | None, user: str, output: Output | None
) -> None:
    bytes_on_stdout = output is not None and output.path is None
    for received in result.content:
        item = received if isinstance(received, dict) else {}  # a server may send anything
        if item.get("type") == "text":
            say(item.get("text", ""), err=bytes_on_stdout)
        else:
            hint = how_to_get(item, session, user) if output is None else ""
            say(describe_item(item, hint), err=True)
    if not result.content and result.structured is not None and not bytes_on_stdout:
        print_json(result.structured)
    if result.is_error:
        say("leaseway: The tool returned an error.", err=True)


@click.command(
    epilog=examples(
        "leaseway call browser_take_screenshot --session s1",
        "leaseway artifact artifacts/mcp/browser/… --session s1 --output shot.png",
    )
)
@click.argument("ref")
@click.option("--session", required=True, help="The session of the call that returned it.")
@click.option("--user", default="", help="The user of that call; needs the role delegate.")
@output_options("the content")
@timeout_option("Seconds to wait for each part; else 30.")
@client_options
def artifact(
    ref: str,
    session: str,
    user: str,
    output: Output | None,
    timeout: float | None,
    connection: ConnectionOptions,
) -> None:
    """Get the image or sound REF of an earlier call.

    REF is the `artifact` of a content item, which `leaseway call` prints. Only the session and
    tenant of that call can read it (and only its user, if the server acts for users), until its
    worker stops or deletes it. Without --output the bytes are written to stdout, unless that is a
    terminal.
    """
    target = output or stdout_or_fail()

    async def request(client: AsyncClient) -> Piece:
        artifact = client.session(session).read_artifact(ref, timeout=timeout)
        content = await artifact
        return Piece(content, ref.rpartition("/")[2], artifact.mime_type)

    target.save([with_client(connection, request, user=user)])


def with_qualified_name(item: Tool | Prompt) -> dict[str, Any]:
    """Return all fields of an item for JSON, and its qualified name."""
    return {**plain(item), "qualified_name": item.qualified_name}


def first_line(item: Tool | Prompt | Resource | ResourceTemplate) -> str:
    """Return the description of an item for a row of a table."""
    lines = item.description.strip().splitlines()
    line = lines[0] if lines else item.title
    # On a terminal, cut it to keep each item on one row.
    return line if not sys.stdout.isatty() or len(line) <= 80 else f"{line[:79]}…"
