"""The workers that one client talks to: a channel and at most one exchange stream each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from leaseway.sdk.transport.exchange import Exchange
from leaseway.sdk.transport.grpc_errors import fault_of_request, fault_of_worker, silent_worker
from leaseway.sdk.transport.identity import Identity, channel_options
from leaseway.v1 import catalog_pb2, execution_pb2_grpc, leases_pb2_grpc
from leaseway.wire.channels.tls import open_channel
from leaseway.wire.errors import Fault, Reason


class WorkerRun(NamedTuple):
    """One run of a worker and where it is reached."""

    id: str
    incarnation: str
    address: str


def worker_from_wire(worker: catalog_pb2.WorkerRef) -> WorkerRun:
    """Return a worker of the catalog."""
    return WorkerRun(worker.id, worker.incarnation, worker.address)


class WorkerLink:
    """The connection to one run of a worker; opens its stream when a call needs it.

    Attributes:
        worker: Which worker.
        asking: Requests that wait for an answer, and artifacts that are being read.
        leases: Grants and ends leases.
        execution: Carries calls and reads logs.
    """

    def __init__(self, worker: WorkerRun, identity: Identity) -> None:
        self.worker = worker
        self._identity = identity
        self._draining = False
        self._suspect = False
        self.asking = 0
        self._exchange: Exchange | None = None
        self._channel = open_channel(worker.address, channel_options(worker.address))
        self.execution = execution_pb2_grpc.ExecutionServiceStub(self._channel)
        self.leases = leases_pb2_grpc.LeaseServiceStub(self._channel)

    @property
    def draining(self) -> bool:
        """Whether the worker said that it takes no more calls; it never takes that back."""
        exchange = self._exchange
        return self._draining or (exchange is not None and exchange.going_away)

    @property
    def suspect(self) -> bool:
        """Whether the worker may stand still: it was called in vain and not heard since."""
        exchange = self._exchange
        return exchange.suspect if exchange is not None else self._suspect

    @property
    def load(self) -> int:
        """Calls in flight."""
        return self._exchange.load if self._exchange is not None else 0

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, not even an open stream."""
        return self._exchange is None and not self.asking

    @property
    def exchange(self) -> Exchange:
        """The stream, opened anew where there is none."""
        return self._exchange or self._open()

    def ensure_stream(self) -> None:
        """Open a stream, on which the worker will say that it goes."""
        if self._exchange is None and not self._draining:
            self._open()

    def _open(self) -> Exchange:
        exchange = self._exchange = Exchange(
            self._channel,
            self._identity.metadata,
            self._identity.client_info,
            self.worker.id,
            self._forget,
        )
        exchange.suspect = self._suspect
        return exchange

    async def ask(self, rpc: Any, request: Any, timeout: float) -> Any:
        """Send a request to one of the worker's services and return the answer.

        Args:
            rpc: A method of one of the stubs.
            request: Its request.
            timeout: Seconds until the request is given up.

        Raises:
            Fault: The worker refused, or could not be reached.
        """
        self.asking += 1
        try:
            return await rpc(request, timeout=timeout, metadata=self._identity.metadata)
        except grpc.aio.AioRpcError as error:
            raise fault_of_request(error, self.worker.id) from None
        finally:
            self.asking -= 1

    @contextmanager
    def stream(
        self, rpc: Any, request: Any
    ) -> Iterator[Callable[[float], Coroutine[Any, Any, Any]]]:
        """Send a request whose answer is a stream, which ends with the block.

        Args:
            rpc: A method of one of the stubs.
            request: Its request.

        Yields:
            What waits a number of seconds for the next message, None after the last one. It
            raises a Fault: the worker refused, was silent for that long, or cannot be reached.
        """
        self.asking += 1
        call = rpc(request, metadata=self._identity.metadata)

        async def next_message(timeout: float) -> Any:
            try:
                async with asyncio.timeout(timeout):
                    message = await call.read()
            except TimeoutError:
                raise silent_worker(self.worker.id, timeout) from None
            except grpc.aio.AioRpcError as error:
                raise fault_of_worker(error, self.worker.id) from None
            return None if message is grpc.aio.EOF else message

        try:
            yield next_message
        finally:
            self.asking -= 1
            call.cancel()

    def abort(self) -> None:
        """Begin to end the stream, without waiting."""
        if self._exchange is not None:
            self._exchange.abort()

    async def close(self) -> None:
        """End the stream and the channel."""
        if self._exchange is not None:
            await self._exchange.close()
        await self._channel.close()

    def _forget(self, exchange: Exchange) -> None:
        self._draining = self._draining or exchange.going_away
        self._suspect = exchange.suspect
        if self._exchange is exchange:
            self._exchange = None


class WorkerPool:
    """All workers that a client has met."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._links: dict[WorkerRun, WorkerLink] = {}
        self._turn = 0
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> Collection[WorkerRun]:
        """The runs of workers that there is a connection to."""
        return self._links.keys()

    def link(self, worker: WorkerRun) -> WorkerLink:
        """Return the connection to a worker."""
        link = self._links.get(worker)
        if link is None:
            # Runs of workers come and go: each new one is the moment to let idle ones go.
            self._prune()
            link = self._links[worker] = WorkerLink(worker, self._identity)
        return link

    def pick(self, workers: Sequence[WorkerRun], avoid: Collection[WorkerRun] = ()) -> WorkerLink:
        """Return the worker with the fewest calls in flight; equals take turns.

        Workers that leave are not picked; suspect ones and those to avoid only where there is no
        other.

        Raises:
            Fault: No worker is left.
        """
        if len(workers) == 1 and not avoid:
            only = self._links.get(workers[0])
            if only is not None and not only.draining:
                return only
        best = self._least_loaded(workers, avoid)
        if best is None and avoid:
            best = self._least_loaded(workers, ())
        if best is None:
            raise Fault(
                Reason.WORKER_LOST,
                "No worker that serves the tool takes calls at this moment.",
            )
        return self.link(best)

    def others(self, workers: Sequence[WorkerRun], avoid: Collection[WorkerRun]) -> bool:
        """Return whether a worker is left beside those to avoid."""
        return self._least_loaded(workers, avoid) is not None

    def abort(self) -> None:
        """Begin to end all streams, without waiting."""
        for link in self._links.values():
            link.abort()

    async def close(self) -> None:
        """End all streams and channels."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()), *self._closing)

    def _prune(self) -> None:
        for worker in [worker for worker, link in self._links.items() if link.idle]:
            link = self._links.pop(worker)
            task = asyncio.get_running_loop().create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _least_loaded(
        self, workers: Sequence[WorkerRun], avoid: Collection[WorkerRun]
    ) -> WorkerRun | None:
        best: WorkerRun | None = None
        least = 0
        doubted = True
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
                    link.ensure_stream()  # its first word clears it
            if best is None or (suspect, load) < (doubted, least):
                best, least, doubted = worker, load, suspect
        return best
