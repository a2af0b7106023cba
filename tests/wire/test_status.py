from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import BOUND

from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import (
    DOMAIN,
    abort,
    code_of,
    fault_from_rpc_error,
    fault_from_status,
    status_from_fault,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
faults = st.builds(
    Fault,
    reason=st.sampled_from(list(Reason)),
    message=text,
    started=st.sampled_from(["no", "yes", "unknown"]),
    metadata=st.dictionaries(text, text, max_size=5),
    retry_delay=st.none() | st.floats(0, 1e6).map(lambda seconds: round(seconds, 6)),
    violations=st.lists(st.tuples(text, text), max_size=4).map(tuple),
)


@given(faults)
def test_a_fault_survives_the_wire(fault: Fault) -> None:
    wire = status_from_fault(fault).SerializeToString()
    arrived = fault_from_status(Status.FromString(wire))
    delay, arrived.retry_delay = arrived.retry_delay, fault.retry_delay
    assert delay == pytest.approx(fault.retry_delay)
    assert vars(arrived) == vars(fault)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_status_code(reason: Reason) -> None:
    code = code_of(Fault(reason, "No."))
    assert code is not grpc.StatusCode.OK
    assert status_from_fault(Fault(reason, "No.")).code == code.value[0]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("-32602", grpc.StatusCode.INVALID_ARGUMENT),
        ("-32601", grpc.StatusCode.UNIMPLEMENTED),
        ("-32603", grpc.StatusCode.INTERNAL),
        ("-1", grpc.StatusCode.UNKNOWN),
        ("nonsense", grpc.StatusCode.UNKNOWN),
        (None, grpc.StatusCode.UNKNOWN),
    ],
)
def test_a_servers_error_has_the_nearest_status_code(
    code: str | None, expected: grpc.StatusCode
) -> None:
    metadata = {"code": code} if code is not None else {}
    assert code_of(Fault(Reason.SERVER_ERROR, "No.", metadata=metadata)) is expected


def test_a_status_carries_one_error_info_of_our_domain() -> None:
    status = status_from_fault(Fault(Reason.CAPACITY, "Full.", metadata={"worker": "w1"}))
    info = error_details_pb2.ErrorInfo()
    infos = [detail for detail in status.details if detail.Is(info.DESCRIPTOR)]
    assert len(infos) == 1
    infos[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == ("CAPACITY", DOMAIN, {"worker": "w1"})


@pytest.mark.parametrize(("reason", "domain"), [("CAPACITY", "other"), ("NEW_ONE", DOMAIN)])
def test_an_unknown_error_is_internal_with_an_unknown_fate(reason: str, domain: str) -> None:
    status = Status(code=code_pb2.NOT_FOUND, message="Theirs.")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain))
    fault = fault_from_status(status)
    assert (fault.reason, fault.message) == (Reason.INTERNAL, "Theirs.")
    assert fault.started == "unknown"


@pytest.mark.parametrize(
    ("code", "name"), [(code_pb2.NOT_FOUND, "NOT_FOUND"), (0, "UNKNOWN"), (99, "99")]
)
def test_a_status_without_a_message_names_its_code(code: int, name: str) -> None:
    assert name in fault_from_status(Status(code=code)).message


async def _failed_rpc(fault: Fault | None) -> grpc.aio.AioRpcError:
    """Return the error of an RPC that is aborted with a fault, or plainly."""

    async def fail(request: bytes, context: Any) -> bytes:
        if fault is not None:
            await abort(context, fault)
        await context.abort(grpc.StatusCode.ABORTED, "plain")
        return b""

    method: Any = grpc.unary_unary_rpc_method_handler(fail)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("t.T", {"Fail": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            asyncio.timeout(BOUND),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            call: Any = channel.unary_unary("/t.T/Fail")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"")
            return caught.value
    finally:
        await server.stop(None)


async def test_an_aborted_rpc_carries_its_fault() -> None:
    fault = Fault(Reason.LEASE_LOST, "Gone.", metadata={"lease": "l1"}, retry_delay=1.5)
    error = await _failed_rpc(fault)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    arrived = fault_from_rpc_error(error)
    assert arrived is not None
    assert vars(arrived) == vars(fault)


async def test_a_fault_too_long_for_metadata_loses_its_details_and_not_its_reason() -> None:
    fault = Fault(
        Reason.SERVER_LOST, "Died. " * 1000, "yes", {"stderr": "x" * 20_000}, retry_delay=2.0
    )
    arrived = fault_from_rpc_error(await _failed_rpc(fault))
    assert arrived is not None
    assert (arrived.reason, arrived.started) == (Reason.SERVER_LOST, "yes")
    assert arrived.retry_delay == 2.0
    assert arrived.message == fault.message[:1024]


async def test_an_rpc_that_failed_without_our_details_has_no_fault() -> None:
    assert fault_from_rpc_error(await _failed_rpc(None)) is None
