"""The `leaseway` command (design.md#command-line): one module for each group of subcommands.

Subcommands that connect to a running system use `leaseway.sdk` only. Subcommands that start a
plane import it when they run, so that the others need none of its dependencies.
"""

import os

import leaseway.wire.forking  # noqa: F401 - must be imported before gRPC

# gRPC's core writes lines of its own to stderr, but a command's error is one sentence. gRPC reads
# this variable when it is imported, so it is set before that.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
