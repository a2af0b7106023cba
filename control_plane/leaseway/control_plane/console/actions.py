"""The console's actions on leases, workers, approvals and tools, and its view of server logs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final

import grpc

from leaseway.control_plane.console.rows import Json
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.table import Placement
from leaseway.control_plane.core.queries.place import place_or_wait, workers_for
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.control_plane.operators.commands import CONFIRM_TIMEOUT, OperatorCommands
from leaseway.control_plane.plane import Plane
from leaseway.identity.principal import Principal
from leaseway.sdk import LeasewayError
from leaseway.sdk.relay import PlacedCall, RelayEvents, call_placed
from leaseway.v1 import execution_pb2, execution_pb2_grpc
from leaseway.wire.advice import Reader, advice_for
from leaseway.wire.channels.auth import bearer_credential, bearer_metadata
from leaseway.wire.channels.serving import CHANNEL_OPTIONS
from leaseway.wire.channels.tls import open_channel
from leaseway.wire.errors import Fault
from leaseway.wire.listing.pages import every_page
from leaseway.wire.names import DEFAULT_TENANT, LeaseKey

_MAX_CALL_TIMEOUT: Final = 120.0
_LOG_TIMEOUT: Final = 5.0
_AGENT: Final = "console"
_LOG_LINES: Final = 200


class _TryEvents(RelayEvents):
    """Images and audio of a tried call become artifacts, as the page does not show them."""

    inline_media = False


class ActionRefused(Exception):
    """An action failed; the message is shown to the operator."""


class Actions:
    """Executes operators' actions.

    Args:
        key: The key for calls to workers, or None.
    """

    def __init__(self, plane: Plane, key: str | None) -> None:
        self._plane = plane
        self._key = key
        self._commands = OperatorCommands(plane)
        self._session_key = secrets.token_bytes(32)
        self._sessions: set[str] = set()

    async def revoke(self, lease_id: str, who: Principal) -> Json:
        """Revoke a lease and wait for its end.

        Raises:
            ActionRefused: The lease is unknown, or its worker is not connected.
        """
        try:
            self._commands.revoke(lease_id, who.name)
        except Fault as fault:
            raise ActionRefused(_told(fault)) from None
        ended = await self._commands.wait_for_end(lease_id, CONFIRM_TIMEOUT)
        return {
            "message": "The lease has ended."
            if ended
            else "The worker has not confirmed the end yet."
        }

    def drain(self, worker_id: str, who: Principal) -> Json:
        """Drain a worker.

        Raises:
            ActionRefused: The worker is not connected.
        """
        try:
            self._commands.drain(worker_id, who.name)
        except Fault as fault:
            raise ActionRefused(_told(fault)) from None
        return {"message": "The worker rejects new work and exits."}

    async def decide(self, approval_id: str, who: Principal, *, approve: bool) -> Json:
        """Approve or deny a waiting call.

        Raises:
            ActionRefused: The approval is unknown or no longer waiting, or the store fails.
        """
        try:
            await self._plane.decide_approval(
                approval_id, who.tenant or "", who.name, approve=approve
            )
        except Fault as fault:
            raise ActionRefused(_told(fault)) from None
        return {"message": "The call may run once." if approve else "The call is denied."}

    async def try_tool(
        self,
        server_id: str,
        tool: str,
        tenant: str,
        arguments: Json,
        who: Principal,
        authorization: str | None,
    ) -> Json:
        """Call a tool as the operator and return its result; release a new lease at once.

        The worker gets the operator's own credential: so his grants and limits apply, and the audit
        names him and not the shared key.

        Args:
            tool: The tool's original name.
            tenant: The tenant to call for; empty is the default one.
            authorization: The credential that he sent; None if the console requires none.

        Raises:
            ActionRefused: The call was rejected or failed.
        """
        tenant = tenant or DEFAULT_TENANT
        encoded = json.dumps(arguments)
        with self._session_of(who.name, tenant, server_id, tool, encoded) as session:
            return await self._try(server_id, tool, tenant, session, encoded, who, authorization)

    async def _try(
        self,
        server_id: str,
        tool: str,
        tenant: str,
        session: str,
        encoded: str,
        who: Principal,
        authorization: str | None,
    ) -> Json:
        served = self._plane.state.visible.view(tenant).servers.get(server_id)
        if served is None:
            raise ActionRefused(f"Server '{server_id}' is not available to tenant '{tenant}' now.")
        record = self._worker_for(served, LeaseKey(tenant, session, server_id))
        call = PlacedCall(
            worker=record.id,
            address=record.hello.address.address,
            server=server_id,
            tool=tool,
            tenant=tenant,
            session="" if served.spec.truely_stateless else session,
            agent=_AGENT,
            key=self._key if authorization is None else bearer_credential(authorization),
        )
        self._commands.record_try(server_id, tool, tenant, record.id, who.name)
        timeout = min(served.spec.call_timeout, _MAX_CALL_TIMEOUT)
        began = time.perf_counter()
        try:
            result = await call_placed(call, encoded.encode(), _TryEvents(), timeout)
        except LeasewayError as error:
            raise ActionRefused(f"{error.reason.value}: {_told(error)}") from None
        return {
            "worker": record.id,
            "seconds": time.perf_counter() - began,
            "is_error": result.is_error,
            "result": json.loads(result.payload or b"{}"),
        }

    @contextmanager
    def _session_of(self, *call: str) -> Iterator[str]:
        """Return the session of a try: a later try of the same call has the same one.

        So the call can use the approval that its first try has asked for, which counts in one
        session only if the server is leased. A try beside it has another one: the first to end
        releases the lease of its session.
        """
        said = json.dumps(call).encode()
        digest = hashlib.blake2b(said, digest_size=8, key=self._session_key).hexdigest()
        session = f"console-{digest}"
        if session in self._sessions:
            session = f"console-{secrets.token_hex(8)}"
        self._sessions.add(session)
        try:
            yield session
        finally:
            self._sessions.discard(session)

    async def logs(self, server_id: str, tenant: str) -> Json:
        """Return the last stderr lines of a server's instances on all workers.

        Raises:
            ActionRefused: The server is unknown.
        """
        tenant = tenant or DEFAULT_TENANT
        if server_id not in self._plane.state.servers.variants_of(tenant):
            raise ActionRefused(f"There is no server '{server_id}'.")
        records = [record for record in self._plane.state.workers.values() if record.connected]
        answers = await asyncio.gather(
            *(self._log_of(record, server_id, tenant) for record in records)
        )
        return {"instances": [instance for answer in answers for instance in answer]}

    async def _log_of(self, record: WorkerRecord, server_id: str, tenant: str) -> list[Json]:
        async with _channel(record) as channel:
            stub: Any = execution_pb2_grpc.ExecutionServiceStub(channel)

            async def read(token: str) -> execution_pb2.ReadLogsResponse:
                request = execution_pb2.ReadLogsRequest(
                    server_id=server_id, tenant=tenant, lines=_LOG_LINES, page_token=token
                )
                page: execution_pb2.ReadLogsResponse = await stub.ReadLogs(
                    request, metadata=bearer_metadata(self._key), timeout=_LOG_TIMEOUT
                )
                return page

            try:
                logs = [log async for page in every_page(read) for log in page.instances]
            except grpc.aio.AioRpcError:
                return []
        return [
            {"worker": record.id, "instance": log.instance_id, "lines": list(log.lines)}
            for log in logs
        ]

    def _worker_for(self, served: Served, key: LeaseKey) -> WorkerRecord:
        state = self._plane.state
        if served.spec.truely_stateless:
            able = [record for record in workers_for(state, served) if record.accepts_work]
            if not able:
                raise ActionRefused(f"No worker serves '{key.server_id}' now.")
            return able[0]
        with self._plane.transition() as (state, now):
            outcome = place_or_wait(state, key, frozenset(), now, wait=False)
        if isinstance(outcome, Placement):
            return state.workers[outcome.worker_id]
        raise ActionRefused(
            _told(outcome) if isinstance(outcome, Denial) else "It is still starting."
        )


def _told(failure: Fault | Denial | LeasewayError) -> str:
    """Return what an operator reads of a failure."""
    return f"{failure.message}{advice_for(Reader.TERMINAL, failure.metadata)}"


def _channel(record: WorkerRecord) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    return open_channel(record.hello.address.address, CHANNEL_OPTIONS)
