"""The `leaseway` command (design.md#command-line): one module for each group of subcommands.

Subcommands that connect to a running system use `leaseway.sdk` only. Subcommands that start a
plane import it when they run, so that the others need none of its dependencies.
"""

from leaseway.wire.grpc_environment import OF_COMMANDS, set_defaults

set_defaults(OF_COMMANDS)  # before gRPC is imported
