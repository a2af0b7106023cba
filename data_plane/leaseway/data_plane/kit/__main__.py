"""`python -m leaseway.data_plane.kit --tool NAME …`."""

from __future__ import annotations

import argparse
import sys

from leaseway.data_plane.kit.server import Kit, Options, toolbox
from leaseway.spec.builtin import BUILTIN_TOOLS


def main() -> int:
    """Serve over stdio until standard input ends."""
    parser = argparse.ArgumentParser(
        prog="python -m leaseway.data_plane.kit",
        description="An MCP server over stdio. Each tool is off until it is named. A folder alone"
        " names current_time, read_file and list_files; nothing at all names current_time.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", nargs="?", help="a folder to read and list")
    for name, metavar, words in (
        ("--tool", "NAME", f"one of {', '.join(BUILTIN_TOOLS)}"),
        ("--root", "FOLDER", "a folder for the file tools, and where commands run"),
        ("--command", "'WORDS'", "for execute_command, as 'git status', or 'git log *'"),
        ("--host", "HOST", "for http_get: a name, *.name, an address or a network"),
    ):
        parser.add_argument(name, metavar=metavar, help=words, action="append", default=[])
    given = parser.parse_args()
    names = list(given.tool)
    if not names:
        names = ["current_time", *(("read_file", "list_files") if given.folder else ())]
    roots = [*([given.folder] if given.folder else []), *given.root]
    options = Options(names, roots, given.command, given.host)
    try:
        tools = toolbox(options)
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    from leaseway.server.running import run  # what it loads takes a second

    return run(lambda notifier: Kit(tools, notifier), "leaseway-kit")


if __name__ == "__main__":
    sys.exit(main())
