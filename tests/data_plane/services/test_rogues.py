"""An authenticated but malicious caller against every RPC of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.calls import call_message
from tests.data_plane.artifact_calls import PNG, result
from tests.data_plane.conftest import WAIT, Bench, worker_bench
from tests.data_plane.doubles.servers import MemoryAsk, MemoryCall
from tests.hostile import TEXTS, calling, hostile, methods_of, request_of

from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.interceptor import IdentityInterceptor
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.identity.rules import RULES
from leaseway.v1 import execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT
from leaseway.wire.status import fault_from_rpc_error, fault_from_status

SERVICES = [
    execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"],
    leases_pb2.DESCRIPTOR.services_by_name["LeaseService"],
]
METHODS = methods_of(SERVICES)
SECRET = "what-only-acme-knows"
CALL = call_message
ANSWER = execution_pb2.Answer(call_id=1, ask_id=1, result=b"{}")
ECHO: Mapping[str, Any] = {"server_id": "open", "tool": "echo", "arguments": {"text": "hi"}}


@dataclass
class Loot:
    """The neighbour's ids, as the rogue has overheard them."""

    lease: str
    ended: str
    session: str
    artifact: str
    state: str
    used_state: str


@dataclass
class House:
    """A worker with a neighbour that uses all of it, and a rogue with a key of its own."""

    bench: Bench
    keys: dict[str, str]
    loot: Loot
    stream: Any
    question: MemoryAsk
    in_flight: MemoryCall
    expires_at: float

    async def ask(self, who: str, full: str, request: Any) -> tuple[list[Fault], list[Any]]:
        """Send a request; return the errors in its answers, and the answers."""
        return await said(self.bench, self.keys[who], full, request)

    async def holds(self) -> None:
        """Check that the neighbour has lost nothing and its calls still work."""
        lease = self.bench.worker.leases.get(self.loot.lease)
        assert lease is not None, "the lease is gone"
        assert lease.expires_at == self.expires_at, "somebody else renewed the lease"
        assert not self.question.reply.done(), "somebody else answered"
        assert not self.in_flight.cancelled
        listed = leases_pb2.ListLeasesRequest()
        faults, (page,) = await self.ask("acme", path("ListLeases"), listed)
        assert (faults, [each_lease.id for each_lease in page.leases]) == ([], [self.loot.lease])
        wanted = execution_pb2.ReadArtifactRequest(
            session=self.loot.session, ref=self.loot.artifact
        )
        faults, parts = await self.ask("acme", path("ReadArtifact"), wanted)
        assert (faults, b"".join(part.data for part in parts)) == ([], PNG)
        going_on = execution_pb2.CallToolRequest(request_state=self.loot.state)
        faults, (reply,) = await self.ask("acme", path("CallTool"), going_on)
        assert [question.method for question in reply.input_required] == [ELICIT]
        self.in_flight.answer(b'{"content":[]}')
        async with asyncio.timeout(WAIT):
            answer = await self.stream.read()
            while not answer.results:
                answer = await self.stream.read()
        assert not answer.results[0].HasField("status")
        called = execution_pb2.CallToolRequest(**_call("lease")(self.loot))
        faults, (response,) = await self.ask("acme", path("CallTool"), called)
        assert (faults, response.content[0].text) == ([], '{"text":"hi"}')


def path(name: str) -> str:
    """Return the path of an RPC."""
    (found,) = [full for full in METHODS if full.endswith(f"/{name}")]
    return found


async def said(bench: Bench, key: str, full: str, request: Any) -> tuple[list[Fault], list[Any]]:
    """Send a request with a key; return the errors in its answers, and the answers.

    What ends the RPC has to be an error of ours. The end of an exchange may miss its caller where
    it races with what that one writes.
    """
    method = METHODS[full]
    metadata = bearer_metadata(key)
    call = calling(bench.channel, full, method, request, metadata=metadata, timeout=WAIT)
    faults: list[Fault] = []
    answers: list[Any] = []
    try:
        if method.server_streaming:
            answers.extend([question async for question in call])
        else:
            answers.append(await call)
    except grpc.aio.AioRpcError as error:
        fault = fault_from_rpc_error(error)
        if fault is not None:
            faults.append(fault)
        elif not method.client_streaming:
            raise
    for answer in answers:
        parts = [*getattr(answer, "results", ())]
        renewing = answer.keep_alive if hasattr(answer, "keep_alive") else answer
        wrong = [part.status for part in parts if part.HasField("status")]
        wrong += [
            question.error
            for question in getattr(renewing, "renewals", ())
            if question.HasField("error")
        ]
        faults.extend(map(fault_from_status, wrong))
    assert all(each_fault.reason is not Reason.INTERNAL for each_fault in faults), faults
    return faults, answers


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A worker on which the neighbour has a lease, an artifact, and calls that wait."""
    keys = {}
    for tenant in ("acme", "rival"):
        keys[tenant], record = make_key(roles=[Role.CALLER], tenant=tenant, agent=None, now=0.0)
        add_key(tmp_path / "keys.json", record)
    known = authenticator_for(None, keys=tmp_path / "keys.json")
    async with worker_bench(interceptors=(IdentityInterceptor(known),)) as bench:
        for server in ("open", "asks"):
            await bench.serve(server)
        await bench.serve("db", shared=False)
        yield await _moved_in(bench, keys)


async def _moved_in(bench: Bench, keys: dict[str, str]) -> House:
    session = SECRET

    async def ask(name: str, request: Any) -> Any:
        faults, answers = await said(bench, keys["acme"], path(name), request)
        assert not faults
        return answers[0]

    acquiring = leases_pb2.AcquireLeaseRequest(session=session, server_id="db")
    ended = (await ask("AcquireLease", acquiring)).lease.id
    await ask("ReleaseLease", leases_pb2.ReleaseLeaseRequest(lease_id=ended, session=session))
    lease = (await ask("AcquireLease", acquiring)).lease.id
    bench.servers.holds = True
    about: dict[str, Any] = {
        "server_id": "asks",
        "tool": "echo",
        "session": session,
        "answers": [ELICIT],
    }
    about_it: dict[str, Any] = {**about, "arguments": {"text": SECRET}}
    request = execution_pb2.CallToolRequest(**about_it)

    async def begun(count: int) -> list[MemoryCall]:
        def calls() -> list[MemoryCall]:
            return [call for server in bench.servers.opened for call in server.calls]

        await bench.until(lambda: len(calls()) == count)
        return calls()

    pictured = asyncio.ensure_future(ask("CallTool", request))
    (await begun(1))[0].answer(result(PNG))
    artifact = (await pictured).content[0].image.artifact
    parking = asyncio.ensure_future(ask("CallTool", request))
    (await begun(1))[0].ask(ELICIT)
    used = (await parking).request_state
    state = (await ask("CallTool", execution_pb2.CallToolRequest(request_state=used))).request_state
    stub: Any = bench.execution
    stream = stub.Exchange(metadata=bearer_metadata(keys["acme"]))
    call = CALL(id=1, **about, arguments=b'{"text": "hi"}')
    await stream.write(execution_pb2.ExchangeRequest(calls=[call]))
    in_flight = (await begun(2))[-1]
    question = in_flight.ask(ELICIT)
    bench.servers.holds = False
    held = bench.worker.leases.get(lease)
    assert held is not None
    loot = Loot(
        lease=lease, ended=ended, session=session, artifact=artifact, state=state, used_state=used
    )
    return House(
        bench=bench,
        keys=keys,
        loot=loot,
        stream=stream,
        question=question,
        in_flight=in_flight,
        expires_at=held.expires_at,
    )


Theft = Callable[[Loot], Mapping[str, Any]]


def _call(of: str) -> Theft:
    """Return a call on a lease of the loot."""
    return lambda loot: {
        **ECHO,
        "server_id": "db",
        "session": loot.session,
        "lease_id": getattr(loot, of),
    }


def _frame(of: str) -> Theft:
    """Return the same call as a frame of an exchange."""
    return lambda loot: {
        "calls": [CALL(id=7, **{**_call(of)(loot), "arguments": b'{"text": "hi"}'})]
    }


def _lease(of: str, **fields: str) -> Theft:
    """Return a request about a lease of the loot."""
    return lambda loot: {"lease_id": getattr(loot, of), "session": loot.session, **fields}


_GUESSED_CALLS: list[tuple[Theft, Reason | None]] = [
    (_call("lease"), Reason.LEASE_LOST),
    (_call("ended"), Reason.LEASE_LOST),
    (lambda loot: {"request_state": loot.state}, Reason.INVALID_REQUEST),
    (lambda loot: {"request_state": loot.used_state}, Reason.INVALID_REQUEST),
    (lambda loot: {"request_state": loot.state[:-4] + "AAAA"}, Reason.INVALID_REQUEST),
]


def _renewal(loot: Loot) -> Mapping[str, Any]:
    """Return a renewal that names the session as its holder does."""
    return {"lease_ids": [loot.lease], "sessions": [loot.session]}


THEFTS: Mapping[str, list[tuple[Theft, Reason | None]]] = {
    path("CallTool"): _GUESSED_CALLS,
    path("CallToolStreaming"): [
        (lambda loot, theft=theft: {"call": theft(loot)}, reason)  # type: ignore[misc]
        for theft, reason in _GUESSED_CALLS
    ],
    path("Exchange"): [
        (_frame("lease"), Reason.LEASE_LOST),
        (_frame("ended"), Reason.LEASE_LOST),
        (lambda loot: {"cancels": [execution_pb2.Cancel(call_id=1)]}, None),
        (lambda loot: {"answers": [ANSWER]}, None),
        (lambda loot: {"keep_alive": {"lease_ids": [loot.lease, loot.ended]}}, Reason.LEASE_LOST),
        (lambda loot: {"keep_alive": _renewal(loot)}, Reason.LEASE_LOST),
    ],
    path("ReadArtifact"): [
        (lambda loot: {"ref": loot.artifact, "session": loot.session}, Reason.ARTIFACT_LOST),
        (lambda loot: {"ref": loot.artifact}, Reason.ARTIFACT_LOST),
    ],
    path("ReadLogs"): [(lambda loot: {"server_id": "db"}, Reason.PERMISSION_DENIED)],
    path("AcquireLease"): [
        (lambda loot: {"session": loot.session, "server_id": "db", "acquirer": loot.lease}, None)
    ],
    path("ReleaseLease"): [(_lease(word), Reason.LEASE_LOST) for word in ("lease", "ended")],
    path("KeepAlive"): [(lambda loot: {"lease_ids": [loot.lease, loot.ended]}, Reason.LEASE_LOST)],
    path("ResolveLeased"): [
        (_lease(word, name="db:echo"), Reason.LEASE_LOST) for word in ("lease", "ended")
    ],
    path("ListLeaseTools"): [(_lease(word), Reason.LEASE_LOST) for word in ("lease", "ended")],
    path("ListLeases"): [(lambda loot: {"page_size": 1000}, None)],
}
"""Requests with ids of the neighbour, and the expected error, if any."""


def test_every_rpc_of_a_worker_has_its_rogue() -> None:
    assert set(THEFTS) == set(FLOODS) == set(METHODS)


@pytest.mark.parametrize("full", sorted(THEFTS))
async def test_a_rogue_gains_nothing_from_ids_and_requests_of_a_neighbour(
    house: House, full: str
) -> None:
    method = METHODS[full]
    for theft, reason in THEFTS[full]:
        request = type(request_of(method))(**theft(house.loot))
        echoed = request.SerializeToString()
        faults, answers = await house.ask("rival", full, request)
        assert {each_fault.reason for each_fault in faults} == (
            {reason} if reason is not None else set()
        )
        for answer in answers:
            told = answer.SerializeToString()
            for secret in vars(house.loot).values():
                assert secret.encode() not in told or secret.encode() in echoed
        for fault in faults:
            assert "released" not in fault.message, "how a neighbour's lease ended was told"
        target = getattr(request, "call", request)
        if "tenant" in target.DESCRIPTOR.fields_by_name:
            target.tenant = "acme"  # the very request of the neighbour
            ((fault,), answers) = await house.ask("rival", full, request)
            assert (fault.reason, answers) == (Reason.PERMISSION_DENIED, [])
    await house.holds()


@pytest.mark.parametrize("full", sorted(METHODS))
async def test_hostile_requests_get_proper_errors(house: House, full: str) -> None:
    method = METHODS[full]
    largest = "x" * ((bounds.MAX_GRPC_RECEIVED - bounds.MIB) // 20)  # no request has more texts
    requests = [
        hostile(method, text, **known)
        for known in ({}, {"server_id": "db", "tool": "echo", "tenant": ""})
        for text in (*TEXTS, largest)
    ]
    await asyncio.gather(*(house.ask("rival", full, request) for request in requests))
    await house.holds()


@pytest.mark.parametrize("full", sorted(METHODS))
async def test_an_oversize_request_is_refused(house: House, full: str) -> None:
    method = METHODS[full]
    metadata = bearer_metadata(house.keys["rival"])
    text = "x" * (bounds.MAX_GRPC_RECEIVED + 1)
    request = hostile(method, "", **{_a_text(request_of(method).DESCRIPTOR): text})
    call = calling(house.bench.channel, full, method, request, metadata=metadata, timeout=WAIT)
    with suppress(grpc.aio.AioRpcError):
        await (call.read() if method.server_streaming else call)
    # What the credential may not send at all is refused before it is read.
    may_send = Role.CALLER in RULES[full].roles
    refused = grpc.StatusCode.RESOURCE_EXHAUSTED if may_send else grpc.StatusCode.PERMISSION_DENIED
    assert await call.code() is refused
    await house.holds()


Flood = tuple[int, Callable[[int], Mapping[str, Any]], Reason | None]
_MANY = 200


def _guess(count: int) -> str:
    return f"w1-run-{count}"


FLOODS: Mapping[str, Flood] = {
    path("CallTool"): (_MANY, lambda n: ECHO, None),
    path("CallToolStreaming"): (_MANY, lambda n: {"call": ECHO}, None),
    path("Exchange"): (
        3,
        lambda n: {
            "calls": [
                CALL(id=number, server_id="open", tool="echo", arguments=b'{"text": ""}')
                for number in range(1, bounds.MAX_CALLS_IN_FLIGHT + 3)
            ]
        },
        Reason.OVERLOADED,
    ),
    path("ReadArtifact"): (_MANY, lambda n: {"ref": _guess(n)}, Reason.ARTIFACT_LOST),
    path("ReadLogs"): (_MANY, lambda n: {"server_id": "db"}, Reason.PERMISSION_DENIED),
    path("AcquireLease"): (
        _MANY,
        lambda n: {"session": f"s{n}", "server_id": "db"},
        Reason.CAPACITY,
    ),
    path("ReleaseLease"): (
        _MANY,
        lambda n: {"lease_id": _guess(n), "session": "s"},
        Reason.LEASE_LOST,
    ),
    path("KeepAlive"): (
        10,
        lambda n: {"lease_ids": [_guess(number) for number in range(2 * 1024)]},
        Reason.INVALID_REQUEST,
    ),
    path("ResolveLeased"): (
        _MANY,
        lambda n: {"lease_id": _guess(n), "session": "s", "name": "db:echo"},
        Reason.LEASE_LOST,
    ),
    path("ListLeaseTools"): (
        _MANY,
        lambda n: {"lease_id": _guess(n), "session": "s"},
        Reason.LEASE_LOST,
    ),
    path("ListLeases"): (_MANY, lambda n: {"page_size": 2**32 - 1}, None),
}
"""How many requests to send at once, and the expected error, if any."""


@pytest.mark.parametrize("full", sorted(FLOODS))
async def test_a_flood_is_limited_and_the_neighbour_is_served(house: House, full: str) -> None:
    count, make, reason = FLOODS[full]
    kind = type(request_of(METHODS[full]))
    floods = [house.ask("rival", full, kind(**make(n))) for n in range(count)]
    outcomes = await asyncio.gather(*floods)
    met = {fault.reason for faults, _ in outcomes for fault in faults}
    assert reason in met if reason is not None else not met
    await house.holds()


def _a_text(descriptor: Any) -> str:
    """Return the name of a text field of a request, or of a message in it."""
    for field in descriptor.fields:
        if field.cpp_type == field.CPPTYPE_STRING:
            return str(field.name)
    parts = [
        each_field
        for each_field in descriptor.fields
        if each_field.name != "client" and each_field.message_type
    ]
    return _a_text(parts[0].message_type)
