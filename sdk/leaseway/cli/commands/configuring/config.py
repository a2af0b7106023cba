"""What a configuration comes to: `config`, `diff`, `import`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leaseway.cli.commands.configuring.check import print_issues
from leaseway.cli.commands.configuring.config_diff import CHANGED, compared
from leaseway.cli.errors import FAILED, USAGE, CliFailure
from leaseway.cli.options.common import Connection, client_options, examples, json_option
from leaseway.cli.options.config import (
    ConfiguredCommand,
    config_option,
    existing_sources,
    prefix_option,
)
from leaseway.cli.options.connection import ask
from leaseway.cli.output.tables import plain, print_json, print_table, say
from leaseway.wire.names import ALL_TENANTS, is_valid_name

_OPENAPI_WORDS = 2

if TYPE_CHECKING:
    from leaseway.control_plane.config.schema.issues import ParsedConfig


@click.command(
    cls=ConfiguredCommand,
    epilog=examples("leaseway config --config system=base.yaml --config domain=acme:acme.yaml"),
)
@config_option
@prefix_option
@json_option
def config(config: tuple[str, ...], prefix: str, as_json: bool) -> int:
    """Print what a configuration comes to.

    Each value with the layer, file and line that it is from. Exit status: 1 where the
    configuration, or an entry of it, has an error.
    """
    from leaseway.control_plane.config.effective import effective_values
    from leaseway.control_plane.config.loading import load_sources

    sources = existing_sources(config, prefix)
    parsed = load_sources(sources)
    print_issues(parsed.issues, err=True)
    if parsed.broken:
        return FAILED
    values = effective_values(parsed, sources)
    if as_json:
        print_json(values)
    else:
        print_table(
            ("SERVER", "TENANT", "KEY", "VALUE", "LAYER", "FROM"),
            [
                (one.server, one.tenant, one.key, _text(one.value), one.layer, _place(one))
                for one in values
            ],
            "No servers are configured.",
        )
    return FAILED if any(one.severity == "error" for one in parsed.issues) else 0


@click.command(epilog=examples("leaseway diff .minds/mcp.yaml"))
@click.argument("config", nargs=-1, required=True, type=click.Path(), metavar="[LAYER=]PATH...")
@prefix_option
@json_option
@client_options
def diff(config: tuple[str, ...], prefix: str, as_json: bool, connection: Connection) -> int:
    """Print what a reload would do to the running system.

    Were it to read this configuration: PATH, or several as layers, as for --config. Exit status:
    0 nothing would change, 2 something would, 3 unreachable, 1 the configuration is broken: it
    would change nothing, or not the servers whose entries have errors.
    """
    from leaseway.control_plane.config.loading import load_sources

    parsed = load_sources(existing_sources(config, prefix))
    errors = [one for one in parsed.issues if one.severity == "error"]
    print_issues(errors, err=True)
    if parsed.broken:
        raise CliFailure("The configuration is broken: a reload would change nothing.", FAILED)
    running = ask(replace(connection, tenant=ALL_TENANTS), lambda client: client.servers())
    rows = compared(parsed, running)
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("SERVER", "TENANT", "CHANGE", "EFFECT"),
            [(row.server, row.tenant, row.change, row.effect) for row in rows],
            "No servers are configured, and none run.",
        )
    if errors:
        return FAILED
    return USAGE if any(row.change in CHANGED for row in rows) else 0


@click.command(
    "import",
    epilog=examples(
        "leaseway import ~/.cursor/mcp.json --out .minds/mcp.yaml",
        "leaseway import --to kubernetes .minds/mcp.yaml | kubectl apply -f -",
        "leaseway import openapi api.yaml --tag pets --out .minds/mcp.yaml",
    ),
)
@click.argument("words", nargs=-1, required=True, type=click.Path(), metavar="[openapi] FILE")
@click.option(
    "--to",
    "form",
    type=click.Choice(["native", "kubernetes"]),
    default="native",
    show_default=True,
    help="A native file, or MCPServer resources.",
)
@prefix_option
@click.option("--name", metavar="ID", help="openapi: the server's id; else from the title.")
@click.option("--operation", multiple=True, metavar="PATTERN", help="openapi: operation ids.")
@click.option("--tag", multiple=True, metavar="PATTERN", help="openapi: tags of operations.")
@click.option("--path", multiple=True, metavar="PATTERN", help="openapi: paths of operations.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A new file to write to; else stdout.",
)
def import_file(
    words: tuple[str, ...],
    form: str,
    prefix: str,
    name: str | None,
    operation: tuple[str, ...],
    tag: tuple[str, ...],
    path: tuple[str, ...],
    out: Path | None,
) -> int:
    """Write a native file for another format's FILE.

    FILE is another client's, or an OpenAPI document.

    Comments in it say what could not be taken over. Of an OpenAPI document (a file or an address),
    `--operation`, `--tag` and `--path` choose operations by patterns with `*`; else all are taken.
    """
    is_openapi = len(words) == _OPENAPI_WORDS and words[0] == "openapi"
    if is_openapi and form != "native":
        raise click.UsageError("--to kubernetes is for a FILE: write the native one first.")
    if is_openapi:
        return _import_openapi(words[1], name, (operation, tag, path), out)
    if len(words) != 1 or name or operation or tag or path:
        raise click.UsageError("Name one FILE, or `openapi` and a FILE with its options.")
    return _import_client_file(Path(words[0]), form, prefix, out)


def _import_openapi(
    source: str, name: str | None, wanted: tuple[tuple[str, ...], ...], out: Path | None
) -> int:
    from leaseway.control_plane.config.openapi.documents import DOCUMENTS, DocumentUnavailable
    from leaseway.control_plane.config.openapi.operations import Selection
    from leaseway.control_plane.config.openapi.writing import native_server, server_id

    if name is not None and not is_valid_name(name):
        raise click.UsageError("--name takes 1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'.")
    try:
        imported = DOCUMENTS.load(source, Selection(*wanted)).imported
    except DocumentUnavailable as error:
        raise CliFailure(str(error)) from None
    for skipped in imported.skipped:
        say(f"No tool: {skipped.operation}: {skipped.reason}.", err=True)
    if not imported.tools:
        raise CliFailure(f"{source} has no operation, among those chosen, that can be a tool.")
    text = native_server(imported, name or server_id(imported.title), source)
    if out is None:
        say(text, nl=False)
    else:
        _write_new(out, text)
        say(f"{out}: {len(imported.tools)} tools.", err=True)
    return 0


def _import_client_file(file: Path, form: str, prefix: str, out: Path | None) -> int:
    from leaseway.control_plane.config.exporting import kubernetes_text, native_text
    from leaseway.control_plane.config.tree.files import Unreadable, read_config

    try:
        text = read_config(file)
    except FileNotFoundError:
        raise click.UsageError(f"There is no file {file}.") from None
    except Unreadable as error:
        raise CliFailure(f"The file {file} can't be read: {error}") from None
    write = native_text if form == "native" else kubernetes_text
    native, parsed = write(text, str(file), bare=prefix == "none")
    print_issues(parsed.issues, err=True)
    if parsed.broken:
        return FAILED
    if out is None:
        say(native, nl=False)
    else:
        _write_new(out, native)
        say(f"{out}: {_taken_over(parsed)}", err=True)
    return 0


def _write_new(path: Path, text: str) -> None:
    try:
        # Never over what is there: it may be the file that a running system watches.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{path} is there already; name a new file with --out.") from None
    except OSError as error:
        raise CliFailure(f"{path} can't be written: {error.strerror}.") from None


def _taken_over(parsed: ParsedConfig) -> str:
    rejected = len(parsed.rejected)
    left_out = f"; {rejected} with errors are in it as comments" if rejected else ""
    return f"{len(parsed.servers)} enabled servers taken over{left_out}."


def _text(value: Any) -> str:
    value = plain(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _place(value: Any) -> str:
    return f"{value.file}:{value.line}"
