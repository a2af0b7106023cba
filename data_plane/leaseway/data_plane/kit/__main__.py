"""`python -m leaseway.data_plane.kit [ROOT]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import anyio
from mcp.server.stdio import stdio_server

from leaseway.data_plane.kit.server import make_server, toolbox
from leaseway.wire.telemetry import configure_telemetry


async def _serve(root: Path) -> None:
    server = make_server(toolbox(root))
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


def main() -> int:
    """Serve over stdio until standard input ends."""
    parser = argparse.ArgumentParser(
        prog="python -m leaseway.data_plane.kit",
        description="An MCP server over stdio: the time, and the files below a folder.",
    )
    parser.add_argument("root", nargs="?", default=".", help="the folder (default: this one)")
    root = Path(parser.parse_args().root).resolve()
    if not root.is_dir():
        print(f"The folder {root} does not exist; give one that does.", file=sys.stderr)  # noqa: T201
        return 2
    telemetry = configure_telemetry("leaseway-kit")
    try:
        anyio.run(_serve, root)
    except KeyboardInterrupt:
        return 130
    finally:
        telemetry.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
