"""Sets gRPC up so that a forked child lives; to be imported before gRPC.

Where streams are open at a fork, gRPC's handlers start threads in the child that crash it. The
Python layer of gRPC leaves them off unless GRPC_ENABLE_FORK_SUPPORT says otherwise, its core has
them on. This makes the core follow, so that a child that never uses a client goes on as it
should, and one that does is told what is wrong (see `sdk.blocking.loop_thread`). A program
that sets the variable keeps its choice.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
