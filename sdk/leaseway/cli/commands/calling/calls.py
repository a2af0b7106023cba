"""`leaseway tools` and `leaseway call`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from leaseway.cli.commands.calling.session_leases import tell_new_lease
from leaseway.cli.commands.unknown_names import require_servers
from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.common import (
    Connection,
    client_options,
    examples,
    json_option,
    timeout_option,
)
from leaseway.cli.options.connection import ask
from leaseway.cli.options.tool_arguments import are_pairs, keep_texts, parse_arguments
from leaseway.cli.output.content import describe_item, how_to_get, pieces_of
from leaseway.cli.output.files import Output, output_options
from leaseway.cli.output.tables import one_line, print_json, print_table, say
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
@json_option
@client_options
def tools(servers: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """List the tools that can be called.

    Of all servers, or of SERVERS only.
    """

    async def question(client: AsyncClient) -> ToolList:
        found = await client.list_tools(servers=list(servers) or None)
        seen = {tool.server_id for tool in found} | set(found.pending)
        await require_servers(client, [each for each in servers if each not in seen])
        return found

    listed = ask(connection, question)
    if as_json:
        print_json([_tool(tool) for tool in listed])
    else:
        rows = [
            (t.name, t.qualified_name, "shared" if t.shared else "leased", first_line(t))
            for t in listed
        ]
        print_table(("NAME", "QUALIFIED NAME", "CALLS", "DESCRIPTION"), rows, "No tools.")
    if listed.pending:
        say(f"leaseway: Still starting: {', '.join(listed.pending)}.", err=True)


@click.command(
    epilog=examples(
        "leaseway call time_current_time timezone=Europe/Berlin",
        """leaseway call files:list_files '{"pattern": "*.yaml"}'""",
        "leaseway call browser_take_screenshot --session s1 --output shot.png",
    )
)
@click.argument("tool")
@click.argument("arguments", nargs=-1)
@click.option("--session", help="Call in this session; its lease stays for its time to live.")
@timeout_option("Seconds to wait; else 60.")
@click.option("--agent", default="leaseway-cli", show_default=True, help="Who calls.")
@click.option(
    "--progress/--no-progress",
    default=None,
    help="Show progress on stderr; the default is where that is a terminal.",
)
@click.option(
    "--server-log",
    type=click.Choice(LOG_LEVELS),
    help="Show what the server logs meanwhile, from this level on, on stderr.",
)
@output_options("images, sounds and embedded files of the result")
@click.option("--json", "as_json", is_flag=True, help="Print the result as the server sent it.")
@client_options
def call(
    tool: str,
    arguments: tuple[str, ...],
    session: str | None,
    timeout: float | None,
    agent: str,
    progress: bool | None,
    server_log: str | None,
    output: Output | None,
    as_json: bool,
    connection: Connection,
) -> int:
    """Call TOOL, by its name or as server:tool.

    ARGUMENTS are one JSON object, or key=value words, or - for a JSON object on stdin. A value is
    text where the tool wants text, else JSON where it can be read as such.
    Without --session, a server that is leased is leased for this call only. In a session, images
    and sounds are kept for a while: `leaseway artifact` gets them.
    """
    if output is not None and output.path is None and as_json:
        raise click.UsageError("stdout takes --json or --output -, not both.")
    try:
        values = parse_arguments(arguments, _read_stdin() if arguments == ("-",) else None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    heard = _callbacks(progress, server_log)

    async def question(client: AsyncClient) -> ToolResult:
        caller = client if session is None else client.session(session)
        # The session of a call outside of any ends with this command: nobody could read artifacts.
        result: ToolResult = await caller.call_tool(
            tool,
            await _fitting(client, tool, arguments, values),
            timeout=timeout,
            inline_media=session is None,
            **heard,
        )
        await tell_new_lease(client, session, result)
        if as_json:
            print_json(result.raw)
        else:
            _print_result(result, session, output)
        if output is not None:
            await _save(output, result, caller, tool)
        return result

    result = ask(connection, question, agent=agent, keep_leases=session is not None)
    return FAILED if result.is_error else 0


async def _fitting(
    client: AsyncClient, tool: str, words: tuple[str, ...], values: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments with texts where the tool wants texts; asks only where that matters."""
    from leaseway.sdk import ToolNotFound

    if not are_pairs(words) or all(isinstance(value, str) for value in values.values()):
        return values
    try:
        definition = await client.describe_tool(tool)
    except ToolNotFound:
        return values  # the call says which names are near
    return keep_texts(words, values, definition.get("inputSchema", {}))


async def _save(
    output: Output, result: ToolResult, caller: AsyncClient | AsyncSession, tool: str
) -> None:
    pieces = await pieces_of(result, caller, tool)
    if pieces:
        output.save(pieces)
    elif not result.is_error:
        raise CliFailure("The result has no image, sound or file; nothing was written.")


def _callbacks(progress: bool | None, server_log: str | None) -> dict[str, Any]:
    """Return what to pass to `call_tool`, so that what the server says shows on stderr."""
    heard: dict[str, Any] = {}
    if progress or (progress is None and sys.stderr.isatty()):
        heard["on_progress"] = _print_progress
    if server_log is not None:
        heard |= {"on_log": _print_log, "log_level": server_log}
    return heard


def _print_progress(progress: float, total: float | None, message: str | None) -> None:
    far = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
    say(f"leaseway: Progress {far}{f': {one_line(message)}' if message else ''}", err=True)


def _print_log(level: str, logger: str | None, data: Any) -> None:
    said = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    where = f"{one_line(logger)}: " if logger else ""
    say(f"leaseway: The server logs {one_line(level)}: {where}{one_line(said)}", err=True)


def _read_stdin() -> str:
    content = sys.stdin.buffer.read(bounds.MAX_ARGUMENTS + 1)
    if len(content) > bounds.MAX_ARGUMENTS:
        raise ValueError(f"stdin holds more than {bounds.MAX_ARGUMENTS} bytes of arguments.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("stdin is not UTF-8.") from None


def _print_result(result: ToolResult, session: str | None, output: Output | None) -> None:
    aside = output is not None and output.path is None  # stdout is for bytes
    for sent in result.content:
        item = sent if isinstance(sent, dict) else {}  # a server may send anything
        if item.get("type") == "text":
            say(item.get("text", ""), err=aside)
        else:
            how = how_to_get(item, session) if output is None else ""
            say(describe_item(item, how), err=True)
    if not result.content and result.structured is not None and not aside:
        print_json(result.structured)
    if result.is_error:
        say("leaseway: The tool says that it failed.", err=True)


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "qualified_name": tool.qualified_name,
        "server_id": tool.server_id,
        "original_name": tool.original_name,
        "title": tool.title,
        "description": tool.description,
        "shared": tool.shared,
        "input_schema": tool.input_schema,
        "output_schema": tool.output_schema,
        "annotations": tool.annotations,
    }


def first_line(item: Tool | Prompt | Resource | ResourceTemplate) -> str:
    """Return what a row says of something that a server offers."""
    lines = item.description.strip().splitlines()
    line = lines[0] if lines else item.title
    # A pipe gets all of it; a terminal's reader wants to see one row each.
    return line if not sys.stdout.isatty() or len(line) <= 80 else f"{line[:79]}…"
