"""The environment variables that Leaseway sets for its own gRPC, unless they are set.

gRPC reads them when it is imported, so this module is imported before it, which sets those of every
program. Servers do not inherit them from a worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

__all__ = ["HAS_FORK_HANDLERS", "OF_COMMANDS", "OF_EVERY_PROGRAM", "set_defaults"]

_FORK_SUPPORT: Final = "GRPC_ENABLE_FORK_SUPPORT"

OF_EVERY_PROGRAM: Final[Mapping[str, str]] = {
    # If streams are open at a fork, gRPC's fork handlers start threads in the child that crash it.
    # Its Python layer turns them off unless this is set, its core turns them on. Without them, a
    # child that uses no client continues, and one that does gets an error
    # (`sdk.blocking.loop_thread`).
    _FORK_SUPPORT: "0"
}
"""What each program needs that imports the SDK."""

OF_COMMANDS: Final[Mapping[str, str]] = {
    # gRPC's core writes lines of its own to stderr, but a command's error is one sentence.
    "GRPC_VERBOSITY": "NONE",
    # Without its event engine gRPC reads a connection in the thread that reports what it has
    # read, in place of two others that wake it (design.md#calls). A later gRPC that does not know
    # these names ignores them.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}
"""What the processes of the command line set in addition: the planes, the front and clients."""


def set_defaults(variables: Mapping[str, str]) -> None:
    """Set those of the variables that this process's environment does not have."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


_OFF: Final = ("0", "f", "false", "n", "no")
_imported_before: Final = "grpc" in sys.modules and _FORK_SUPPORT not in os.environ

set_defaults(OF_EVERY_PROGRAM)

HAS_FORK_HANDLERS: Final = _imported_before or os.environ[_FORK_SUPPORT].lower() not in _OFF
"""Whether gRPC's fork handlers are on in this process: its import came first, or they are set."""
