"""Commands of Python servers that run as forks of a process that has imported what they import."""

from __future__ import annotations

import atexit
import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SERVERS: Final = Path(__file__).parent / "servers"
_MODULES: Final = ("leaseway.server.running", "mcp.server.lowlevel", "mcp.server.stdio")


def forked(*command: str) -> list[str]:
    """Return a command that does what `python COMMAND...` does.

    The first starts a process that stays to the end of the tests, so tests of leaks cannot use it.
    """
    return [sys.executable, "-I", "-S", str(SERVERS / "fork_client.py"), _socket(), *command]


@functools.cache
def _socket() -> str:
    path = Path(tempfile.mkdtemp(prefix="forks-")) / "socket"
    command = [sys.executable, str(SERVERS / "fork_server.py"), str(path), *_MODULES]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.communicate)
    assert server.stdout is not None
    assert server.stdout.readline() == b"listening\n"
    return str(path)
