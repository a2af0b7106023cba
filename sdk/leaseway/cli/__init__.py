"""The `leaseway` command (DESIGN §12): one module for each group of subcommands.

Subcommands for a running system use `leaseway.sdk` only. Those that start a plane import it when
they run, so that the others do not need its dependencies.
"""

import os

import leaseway.wire.forking  # noqa: F401 - has to come before gRPC is loaded

# gRPC's core writes its own lines to stderr, where the command owes people one sentence. It reads
# this when it is imported, so it is set before anything here imports it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
