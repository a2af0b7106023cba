"""Configures gRPC so that forked child processes survive; must be imported before gRPC.

If streams are open at a fork, gRPC's fork handlers start threads in the child that crash it. gRPC's
Python layer turns them off unless GRPC_ENABLE_FORK_SUPPORT is set; its core turns them on. This
turns them off in the core too, so that a child that uses no client continues, and a child that uses
one gets an error (see `sdk.blocking.loop_thread`). A program's own setting is kept.
"""

from leaseway.wire.grpc_environment import OF_EVERY_PROGRAM, set_defaults

set_defaults(OF_EVERY_PROGRAM)
