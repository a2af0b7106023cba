"""Connections of one client to workers: one channel and at most one exchange stream each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from heapq import nsmallest
from typing import Any, Final, NamedTuple

import grpc

from leaseway.sdk.transport.exchange import (
    Exchange,
    GrpcExchange,
    OnLeaseEnd,
    OnNotification,
    ignore_lease_end,
    ignore_notification,
)
from leaseway.sdk.transport.faults import (
    client_closed,
    fault_of_request,
    fault_of_worker,
    silent_worker,
)
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.local_exchange import LocalExchange
from leaseway.v1 import (
    catalog_pb2,
    execution_pb2,
    execution_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
)
from leaseway.wire.bounds import WORKERS_PER_CLIENT
from leaseway.wire.channels.endpoint import parse_endpoint
from leaseway.wire.channels.local import LocalWorker
from leaseway.wire.channels.serving import CHANNEL_OPTIONS
from leaseway.wire.channels.tls import open_channel
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.signals import Signal
from leaseway.wire.timing.running_tasks import is_cancelled

_FEW: Final = 4
"""Workers of which each pick looks at all: that takes no longer than drawing two."""


class WorkerRun(NamedTuple):
    """A run of a worker, and its address."""

    id: str
    incarnation: str
    address: str


def worker_from_proto(worker: catalog_pb2.WorkerRef) -> WorkerRun:
    """Convert a worker of the catalog."""
    return WorkerRun(worker.id, worker.incarnation, worker.address)


class WorkerLink:
    """The connection to one run of a worker; its stream opens when a call needs it.

    Args:
        on_notification: As for `Exchange`.
        on_lease_end: As for `Exchange`.
        local: The worker itself, if it runs in this process; its stream then needs no connection.

    Attributes:
        requests: Number of requests in flight, including artifact reads.
        leases: Stub that acquires and releases leases.
        execution: Stub that carries calls and reads logs.
    """

    def __init__(
        self,
        worker: WorkerRun,
        identity: ClientIdentity,
        on_notification: OnNotification = ignore_notification,
        on_lease_end: OnLeaseEnd = ignore_lease_end,
        local: LocalWorker | None = None,
    ) -> None:
        self.worker = worker
        self._local = local
        self._on_notification = on_notification
        self._on_lease_end = on_lease_end
        self._identity = identity
        self._draining = False
        self.is_closed = False
        self._suspect = False
        self.requests = 0
        self._exchange: Exchange | None = None
        self._replaced: set[Exchange] = set()
        address = worker.address if local is None else local.address
        name = parse_endpoint(worker.address).host if local is not None else ""
        self._channel = open_channel(address, CHANNEL_OPTIONS, identity.tls, name)
        self.execution = execution_pb2_grpc.ExecutionServiceStub(self._channel)
        self.leases = leases_pb2_grpc.LeaseServiceStub(self._channel)

    @property
    def draining(self) -> bool:
        """Whether the worker announced that it accepts no new calls, which is final."""
        exchange = self._exchange
        return self._draining or (exchange is not None and exchange.going_away)

    @property
    def suspect(self) -> bool:
        """Whether the worker may be stalled: a call failed, and no message has arrived since."""
        exchange = self._exchange
        return exchange.suspect if exchange is not None else self._suspect

    @property
    def load(self) -> int:
        """Number of calls in flight, also on replaced streams."""
        load = self._exchange.load if self._exchange is not None else 0
        for exchange in self._replaced:
            load += exchange.load
        return load

    @property
    def idle(self) -> bool:
        """Whether there is neither an open stream nor a request in flight."""
        return self._exchange is None and not self._replaced and not self.requests

    @property
    def exchange(self) -> Exchange:
        """The stream, opened if necessary."""
        return self._exchange or self._open()

    def ensure_stream(self) -> None:
        """Open a stream, on which the worker can announce that it is shutting down."""
        if self._exchange is None and not self._draining:
            self._open()

    def replace_stream(self) -> None:
        """Open a stream with the credential of now; the calls on the old one go on there."""
        if self._exchange is None or self.draining:
            return
        self._suspect = self.suspect  # what is known of the worker holds for the new stream
        self._replaced.add(self._exchange)
        self._open()

    def end_replaced(self) -> None:
        """End the replaced streams on which nothing is left in flight."""
        for exchange in [exchange for exchange in self._replaced if exchange.idle]:
            self._replaced.discard(exchange)
            exchange.abort()

    def _open(self) -> Exchange:
        if self.is_closed:
            raise client_closed(sent=False)
        exchange = self._exchange = self._new_exchange()
        exchange.suspect = self._suspect
        return exchange

    def _new_exchange(self) -> Exchange:
        on_end, hello = self._on_stream_ended, self._identity.client_info
        if self._local is not None:
            authorization = self._identity.authorization
            return LocalExchange(
                self._local,
                authorization,
                hello,
                on_end,
                self._on_notification,
                self._on_lease_end,
            )
        return GrpcExchange(
            self._channel,
            self._identity.metadata,
            hello,
            self.worker.id,
            on_end,
            self._on_notification,
            self._on_lease_end,
        )

    async def request(self, rpc: Any, request: Any, timeout: float) -> Any:
        """Send a request to the worker and return its response.

        Args:
            rpc: A method of one of the stubs.
            timeout: Seconds to wait for the response.

        Raises:
            Fault: The worker rejected the request, or could not be reached.
        """
        self.requests += 1
        try:
            return await rpc(request, timeout=timeout, metadata=self._identity.metadata)
        except grpc.aio.AioRpcError as error:
            raise fault_of_request(error, self.worker.id) from None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise client_closed(sent=True) from None  # gRPC cancels what is left on its channel
        finally:
            self.requests -= 1

    @contextmanager
    def stream(
        self, rpc: Any, request: Any
    ) -> Iterator[Callable[[float], Coroutine[Any, Any, Any]]]:
        """Send a request with a streamed response; the stream closes with the block.

        Args:
            rpc: A method of one of the stubs.

        Yields:
            A function that waits a number of seconds for the next message and returns it, or None
            after the last one. It raises a Fault if the worker rejects the request, sends nothing
            for that long, or cannot be reached.
        """
        self.requests += 1
        call = rpc(request, metadata=self._identity.metadata)

        async def next_message(timeout: float) -> Any:
            try:
                async with asyncio.timeout(timeout):
                    message = await call.read()
            except TimeoutError:
                raise silent_worker(self.worker.id, timeout) from None
            except grpc.aio.AioRpcError as error:
                raise fault_of_worker(error, self.worker.id) from None
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                raise client_closed(sent=True) from None
            return None if message is grpc.aio.EOF else message

        try:
            yield next_message
        finally:
            self.requests -= 1
            call.cancel()

    def abort(self) -> None:
        """Start closing the stream, without waiting."""
        for exchange in self._exchanges():
            exchange.abort()

    async def close(self) -> None:
        """Close the streams and the channel."""
        for exchange in self._exchanges():
            await exchange.close()
        await self._channel.close()

    def _exchanges(self) -> list[Exchange]:
        return [*self._replaced, *([] if self._exchange is None else [self._exchange])]

    def _on_stream_ended(self, exchange: Exchange) -> None:
        self._draining = self._draining or exchange.going_away
        self._replaced.discard(exchange)
        if self._exchange is exchange:
            self._suspect = exchange.suspect
            self._exchange = None


def rendezvous(
    workers: Sequence[WorkerRun], client: int, count: int = WORKERS_PER_CLIENT
) -> tuple[WorkerRun, ...]:
    """Return the workers that a client uses, by rendezvous hashing (Thaler and Ravishankar, 1998).

    Clients with different numbers use different workers, so that all are used. A worker that joins
    or leaves changes at most one of the chosen, and a new run of a worker takes the place of the
    last one.

    Args:
        workers: All workers that could be used.
        client: The client's random number.
        count: How many are chosen.
    """

    def rank(worker: WorkerRun) -> int:
        # It differs between processes, but a client lives in one. Hashes of pairs spread less well.
        return hash(f"{client} {worker.id}")

    return tuple(nsmallest(count, workers, key=rank))


class ServingWorkers(tuple[WorkerRun, ...]):  # noqa: SLOT001 - it keeps its choice
    """The workers that serve a tool, and those of them that a client uses.

    A resolved name has one and belongs to one client, so that the choice is made once and goes with
    the name.
    """

    _near: tuple[WorkerRun, ...] | None = None

    def near(self, client: int) -> tuple[WorkerRun, ...]:
        """Return the workers that a client uses; see `rendezvous`."""
        if len(self) <= WORKERS_PER_CLIENT:
            return self
        if self._near is None:
            self._near = rendezvous(self, client)
        return self._near


class WorkerPool:
    """The connections of one client to its workers.

    Shared calls use at most `WORKERS_PER_CLIENT` workers of those that serve a tool, so that the
    streams of a client do not grow with the fleet. If one of them runs in this process, it is used
    as long as it accepts calls.

    Args:
        local: The worker of this process, or None.

    Attributes:
        hearers: Called with the notifications of leased servers that belong to no call, by session.
    """

    def __init__(self, identity: ClientIdentity, local: LocalWorker | None = None) -> None:
        is_used = local is not None and local.admits(identity.authorization)
        self._local = local if is_used else None
        self.hearers: dict[str, OnNotification] = {}
        self.lease_ended = Signal[leases_pb2.LeaseRenewal]()
        self._identity = identity
        self._links: dict[WorkerRun, WorkerLink] = {}
        self._turn = 0
        self._random = random.Random()  # noqa: S311 - it spreads load and guards nothing
        self._number = self._random.getrandbits(64)
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def local_id(self) -> str:
        """The id of the worker of this process; empty without one."""
        return self._local.id if self._local is not None else ""

    @property
    def workers(self) -> Collection[WorkerRun]:
        """The runs of workers to which connections are open."""
        return self._links.keys()

    def link(self, worker: WorkerRun) -> WorkerLink:
        """Return the connection to a worker."""
        link = self._links.get(worker)
        if link is None:
            if self._closed:  # a call that had not been sent when the client was closed
                raise client_closed(sent=False)
            # Workers restart: each new run is a chance to close idle connections to old ones.
            self._close_idle()
            link = self._links[worker] = WorkerLink(
                worker,
                self._identity,
                self._hear,
                self.lease_ended.emit,
                self._local if self._is_local(worker) else None,
            )
        return link

    def _is_local(self, worker: WorkerRun) -> bool:
        local = self._local
        return (
            local is not None and worker.id == local.id and worker.incarnation == local.incarnation
        )

    def _hear(self, notification: execution_pb2.ServerNotification) -> None:
        hearer = self.hearers.get(notification.session)
        if hearer is not None:
            hearer(notification)

    def pick(self, workers: ServingWorkers, avoid: Collection[WorkerRun] = ()) -> WorkerLink:
        """Return a worker for a shared call, with few calls in flight.

        Of a few workers it is the one with the fewest, in rotation among equals; of more, the
        better of two that are drawn, which is nearly as even at any number (Mitzenmacher, 2001).
        Draining workers are never picked. Suspect workers and those to avoid are picked only if
        there is no other.

        Raises:
            Fault: No worker is available.
        """
        if len(workers) == 1 and not avoid:
            only = self._links.get(workers[0])
            if only is not None and not only.draining:
                return only
        if self._local is not None:
            local = self._local_of(workers, avoid)
            if local is not None:
                return local
        near = workers.near(self._number)
        best: WorkerRun | None = None
        if len(near) > _FEW and not avoid:
            best = self._better_of_two(near)
        if best is None:
            best = self._least_loaded(near, avoid)
        if best is None and near is not workers:
            best = self._least_loaded(workers, avoid)
        if best is None and avoid:
            best = self._least_loaded(workers, ())
        if best is None:
            raise Fault(
                Reason.WORKER_LOST,
                "No worker that serves the tool accepts calls at the moment.",
            )
        return self.link(best)

    def _local_of(
        self, workers: Sequence[WorkerRun], avoid: Collection[WorkerRun]
    ) -> WorkerLink | None:
        """Return this process's worker if it is one of some and accepts calls."""
        for worker in workers:
            if self._is_local(worker) and worker not in avoid:
                link = self.link(worker)
                return None if link.draining else link
        return None

    def has_others(self, workers: Sequence[WorkerRun], avoid: Collection[WorkerRun]) -> bool:
        """Return whether a worker is available besides those to avoid."""
        return self._least_loaded(workers, avoid) is not None

    def replace_streams(self) -> None:
        """Use the credential of now for calls to come."""
        for link in self._links.values():
            link.replace_stream()

    def end_replaced_streams(self) -> None:
        """End the replaced streams on which nothing is left in flight."""
        for link in self._links.values():
            link.end_replaced()

    def abort(self) -> None:
        """Start closing all streams, without waiting."""
        for link in self._links.values():
            link.abort()

    async def close(self) -> None:
        """Close all streams and channels."""
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            link.is_closed = True
        await asyncio.gather(*(link.close() for link in links.values()), *self._closing)

    def _close_idle(self) -> None:
        for worker in [worker for worker, link in self._links.items() if link.idle]:
            link = self._links.pop(worker)
            task = asyncio.get_running_loop().create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _better_of_two(self, workers: Sequence[WorkerRun]) -> WorkerRun | None:
        """Return one of two drawn workers, or None if one of them needs a closer look."""
        count, draw = len(workers), self._random.random
        first, second = int(draw() * count), int(draw() * (count - 1))
        one, other = workers[first], workers[second + (second >= first)]
        link, other_link = self._links.get(one), self._links.get(other)
        if link is not None and (link.draining or link.suspect):
            return None
        if other_link is None:
            return one if link is None or not link.load else other
        if other_link.draining or other_link.suspect:
            return None
        return one if link is None or link.load <= other_link.load else other

    def _least_loaded(
        self, workers: Sequence[WorkerRun], avoid: Collection[WorkerRun]
    ) -> WorkerRun | None:
        best: WorkerRun | None = None
        least = 0
        best_suspect = True
        count = len(workers)
        self._turn = turn = self._turn + 1
        for index in range(count):
            worker = workers[(turn + index) % count]
            if worker in avoid:
                continue
            link = self._links.get(worker)
            load = link.load if link is not None else 0
            suspect = False
            if link is not None:
                if link.draining:
                    continue
                suspect = link.suspect
                if suspect:
                    link.ensure_stream()  # its first message clears the flag
            if best is None or (suspect, load) < (best_suspect, least):
                best, least, best_suspect = worker, load, suspect
        return best
