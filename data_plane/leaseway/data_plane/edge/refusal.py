"""Ending an RPC with a fault, in a form that type checkers follow."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from leaseway.wire.fault import Fault, abort

__all__ = ["refuse"]


async def refuse(context: grpc.aio.ServicerContext[Any, Any], fault: Fault) -> NoReturn:
    """End an RPC with a fault."""
    await abort(context, fault)
