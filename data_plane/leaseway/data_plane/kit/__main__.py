"""`python -m leaseway.data_plane.kit --tool NAME …`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from leaseway.data_plane.kit.server import Kit, KitOptions, build_tools
from leaseway.server.imports import uncollected
from leaseway.spec.kinds.kit import BUILTIN_TOOLS
from leaseway.telemetry.exporters import ignore_missing_plugins


def main() -> int:
    """Serve over stdio until standard input ends."""
    try:
        tools = build_tools(parse_options(sys.argv[1:]))
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    ignore_missing_plugins()
    with uncollected():
        from leaseway.server.running import run  # importing it takes a second

    return run(partial(Kit, tools), "leaseway-kit")


def parse_options(arguments: Sequence[str]) -> KitOptions:
    parser = argparse.ArgumentParser(
        prog="python -m leaseway.data_plane.kit",
        description="An MCP server over stdio. Each tool is off unless it is named. The default is"
        " current_time, with a folder also read_file and list_files.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", nargs="?", help="a folder to read and list")
    for name, metavar, description in (
        ("--tool", "NAME", f"one of {', '.join(BUILTIN_TOOLS)}"),
        ("--root", "FOLDER", "a folder for the file tools and commands"),
        ("--command", "'WORDS'", "for execute_command, such as 'git status' or 'git log *'"),
        ("--host", "HOST", "for http_get: a name, *.name, an address or a network"),
    ):
        parser.add_argument(name, metavar=metavar, help=description, action="append", default=[])
    parser.add_argument(
        "--confined",
        action="store_true",
        help="this process is in a strict sandbox, so that commands may run what file tools write",
    )
    options = parser.parse_args(arguments)
    folders = [options.folder] if options.folder else []
    defaults = ["current_time", *(("read_file", "list_files") if folders else ())]
    return KitOptions(
        tools=options.tool or defaults,
        roots=[*folders, *options.root],
        commands=options.command,
        hosts=options.host,
        confined=options.confined,
    )


if __name__ == "__main__":
    sys.exit(main())
