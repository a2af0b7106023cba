"""`leaseway config`, `diff` and `import`."""

from __future__ import annotations

import json
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leaseway.cli.commands.configuring.check import print_issues
from leaseway.cli.commands.configuring.config_diff import CHANGED, changes_to
from leaseway.cli.errors import FAILED, USAGE, CliFailure
from leaseway.cli.options.common import ConnectionOptions, client_options, examples, json_option
from leaseway.cli.options.config import (
    ConfiguredCommand,
    config_option,
    existing_sources,
    prefix_option,
)
from leaseway.cli.options.connection import with_client
from leaseway.cli.output.tables import plain, print_json, print_table, say
from leaseway.wire.bounds import MAX_CONFIG, MIB
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
    """Print the effective configuration.

    Each value is printed with its layer, file and line. The exit status is 1 if the configuration
    or an entry has an error.
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
                (v.server, v.tenant, v.key, _text(v.value), v.layer, f"{v.file}:{v.line}")
                for v in values
            ],
            "No servers are configured.",
        )
    return FAILED if any(issue.severity == "error" for issue in parsed.issues) else 0


@click.command(epilog=examples("leaseway diff .minds/mcp.yaml"))
@click.argument("config", nargs=-1, required=True, type=click.Path(), metavar="[LAYER=]PATH...")
@prefix_option
@json_option
@client_options
def diff(config: tuple[str, ...], prefix: str, as_json: bool, connection: ConnectionOptions) -> int:
    """Compare a configuration with the running system.

    Prints what would change if the system loaded PATH (several are layers, as for --config). Exit
    status: 0 no change, 2 changes, 3 the system is unreachable, 1 the configuration is missing or
    has errors: servers with an error would stay as they are.
    """
    from leaseway.control_plane.config.loading import load_sources

    try:
        sources = existing_sources(config, prefix)
    except click.UsageError as error:  # whose status here means that something would change
        raise CliFailure(error.message, FAILED) from None
    parsed = load_sources(sources)
    errors = [issue for issue in parsed.issues if issue.severity == "error"]
    print_issues(errors, err=True)
    if parsed.broken:
        raise CliFailure("The configuration is broken: a reload would change nothing.", FAILED)
    running = with_client(replace(connection, tenant=ALL_TENANTS), methodcaller("servers"))
    rows = changes_to(running, parsed)
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("SERVER", "TENANT", "CHANGE", "EFFECT"),
            [(row.server, row.tenant, row.change, row.effect) for row in rows],
            "No servers are configured or running.",
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
    help="Write a native file, or MCPServer resources.",
)
@prefix_option
@click.option("--name", metavar="ID", help="openapi: the server's id; else from the title.")
@click.option("--operation", multiple=True, metavar="PATTERN", help="openapi: operation ids.")
@click.option("--tag", multiple=True, metavar="PATTERN", help="openapi: tags of operations.")
@click.option("--path", multiple=True, metavar="PATTERN", help="openapi: paths of operations.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The new file to write, with its folder; else stdout.",
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
    """Convert a configuration of another format.

    FILE is a configuration of another MCP client, or, after `openapi`, an OpenAPI document (a file
    or a URL). Comments in the new file list what could not be converted. `--operation`, `--tag` and
    `--path` select operations of an OpenAPI document by patterns with `*`; default: all.
    """
    is_openapi = len(words) == _OPENAPI_WORDS and words[0] == "openapi"
    if is_openapi and form != "native":
        raise click.UsageError(
            "--to kubernetes does not read OpenAPI: convert it to a native file first."
        )
    if is_openapi:
        return _import_openapi(words[1], name, (operation, tag, path), out)
    if len(words) != 1 or name or operation or tag or path:
        raise click.UsageError(
            "Name one FILE, or `openapi` and one FILE; only the latter has options to select."
        )
    return _import_client_file(Path(words[0]), form, prefix, out)


def _import_openapi(
    source: str, name: str | None, patterns: tuple[tuple[str, ...], ...], out: Path | None
) -> int:
    from leaseway.control_plane.config.openapi.documents import DOCUMENTS, DocumentUnavailable
    from leaseway.control_plane.config.openapi.operations import OperationSelection
    from leaseway.control_plane.config.openapi.writing import native_server, server_id
    from leaseway.spec.kinds.http_tools import MAX_TOOLS

    if name is not None and not is_valid_name(name):
        raise click.UsageError("--name must have 1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'.")
    try:
        imported = DOCUMENTS.load(source, OperationSelection(*patterns)).imported
    except DocumentUnavailable as error:
        raise CliFailure(str(error)) from None
    for skipped in imported.skipped:
        say(f"Skipped {skipped.operation}: {skipped.reason}.", err=True)
    if not imported.tools:
        raise CliFailure(f"No selected operation of {source} can be a tool.")
    if len(imported.tools) > MAX_TOOLS:
        raise CliFailure(
            f"{source} yields more than {MAX_TOOLS} tools, which is the limit of a server. Select"
            " some with --operation, --tag or --path."
        )
    text = native_server(imported, name or server_id(imported.title), source)
    if len(text.encode()) > MAX_CONFIG:
        raise CliFailure(
            f"{source} yields {len(imported.tools)} tools, for which a configuration file would be"
            f" larger than {MAX_CONFIG // MIB} MiB. Select some with --operation, --tag or --path,"
            " or name the document under 'openapi' of a server."
        )
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
        raise CliFailure(f"Can't read the file {file}: {error}") from None
    write = native_text if form == "native" else kubernetes_text
    native, parsed = write(text, str(file), bare=prefix == "none")
    print_issues(parsed.issues, err=True)
    if parsed.broken:
        return FAILED
    if out is None:
        say(native, nl=False)
    else:
        _write_new(out, native)
        say(f"{out}: {_summary(parsed)}", err=True)
    return 0


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Never overwrite: a running system may watch the file.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{path} already exists; name a new file with --out.") from None
    except OSError as error:
        raise CliFailure(f"{path} can't be written: {error.strerror}.") from None


def _summary(parsed: ParsedConfig) -> str:
    rejected = len(parsed.rejected)
    comments = f"; {rejected} with errors are comments in it" if rejected else ""
    return f"{len(parsed.servers)} enabled servers converted{comments}."


def _text(value: Any) -> str:
    value = plain(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
