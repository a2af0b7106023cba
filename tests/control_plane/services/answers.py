"""What RPCs of the control plane answer."""

from __future__ import annotations

import grpc
import pytest

from leaseway.v1 import catalog_pb2
from leaseway.wire.errors import Fault
from leaseway.wire.status import fault_from_rpc_error


async def heard(watch: object) -> catalog_pb2.WatchToolsResponse:
    message = await watch.read()  # type: ignore[attr-defined]
    assert isinstance(message, catalog_pb2.WatchToolsResponse)
    return message


async def fault_of(call: object) -> Fault:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    fault = fault_from_rpc_error(caught.value)
    assert fault is not None
    return fault
