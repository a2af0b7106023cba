"""The instances made from one launch hash of one variant (DESIGN §§3, 9).

A generation of a shared server keeps one instance up and starts it again when it fails. One of
a leased server makes an instance for each lease, and holds spares. A generation that was
replaced drains: what runs on it finishes, nothing new begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from leaseway.data_plane.core.holdings import HeldVariant
from leaseway.data_plane.core.problems import Problem
from leaseway.data_plane.core.toolset import describe_differences
from leaseway.data_plane.edge.live import Live
from leaseway.data_plane.edge.surroundings import Surroundings
from leaseway.data_plane.mcp.resolve import Resolved
from leaseway.wire.fault import Fault, Reason
from leaseway.wire.spec import VariantKey

__all__ = ["Generation"]

_STEADY: Final = 10.0
"""An instance that was up this long, in seconds, did not fail because of its start."""


class Generation:
    """All instances of one launch hash of one variant.

    Attributes:
        variant: What is exposed now; its launch hash never changes.
        shared: The instance that shared calls use, or None while there is none.
        draining: Whether a newer generation has taken over.
        starts: Starts so far.
        retry_at: When the shared instance is started again, on the loop's clock.
        last_id: The id of the newest instance; empty before the first.
        reading: What the references stood for when the first instance read them; the instances
            that follow get the same.

    """

    def __init__(self, variant: HeldVariant, around: Surroundings) -> None:
        self.variant = variant
        self.launch_hash = variant.launch_hash
        self.shared: Live | None = None
        self.draining = False
        self.starts = 0
        self.retry_at = 0.0
        self.last_id = ""
        self.reading: Resolved | None = None
        self._around = around
        self._lives: dict[str, Live] = {}
        self._spares: deque[Live] = deque()
        self._adopted: Live | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[None] | None = None
        self._down: Fault | None = None
        self._was_ready = False
        self._reported: set[str] = set()
        self._start_problems: set[str] = set()

    @property
    def key(self) -> VariantKey:
        """The variant's key."""
        return self.variant.key

    @property
    def is_shared(self) -> bool:
        """Whether calls of different sessions share one instance."""
        return self.variant.spec.truely_stateless

    @property
    def lives(self) -> Iterable[Live]:
        """All instances that have not ended."""
        return self._lives.values()

    @property
    def is_backing_off(self) -> bool:
        """Whether the shared instance is down and waits to be started again."""
        return self._keeper is not None and not self._lives and not self.draining

    @property
    def is_empty(self) -> bool:
        """Whether no instance is left."""
        return not self._lives

    def adopt(self, live: Live) -> None:
        """Take an instance that a probe started: as the shared one or as a spare."""
        live.owner = self
        self.reading = self.reading or live.instance.reading
        self._lives[live.instance.id] = live
        self.last_id = live.instance.id
        self.starts += 1
        self._check_contract(live)
        if self.is_shared:
            self._adopted = live
            self.ensure_started()
        else:
            self._spares.append(live)
        self._around.reports.instances_changed()

    def adopt_spare(self, live: Live) -> None:
        """Take an instance of this launch hash where there is none yet, else close it."""
        if self._lives:
            self._around.background.spawn(live.close(), f"close a second instance of {self.key}")
        else:
            self.adopt(live)

    def outdates(self, live: Live) -> bool:
        """Say whether an instance was started with other values than the newest ones are."""
        return self.reading is not None and self.reading.differs(live.instance.reading)

    def lags(self, reading: Resolved) -> bool:
        """Say whether anything here has other values than these."""
        held = [self.reading, *(live.instance.reading for live in self._lives.values())]
        return any(reading.differs(each) for each in held)

    def begin(self) -> None:
        """Start what is to be up before it is needed."""
        if self.variant.spec.starts_eagerly and self.is_shared:
            self.ensure_started()

    def expose(self, variant: HeldVariant) -> None:
        """Take over new tools and settings for the instances that there are."""
        self.variant = variant
        for live in self._lives.values():
            if not live.is_ready:
                continue
            live.compare(variant.toolset)
            if live.differing:  # another worker's instance may have changed its list first
                self._around.background.spawn(
                    self._relist_differing(live), f"list the tools of {live.instance.id} again"
                )
            else:
                self._check_contract(live)

    async def _relist_differing(self, live: Live) -> None:
        try:
            await self.relist(live)
        except Fault as fault:
            self._report(fault)

    async def relist(self, live: Live) -> Mapping[str, bytes]:
        """List the tools of an instance again.

        Raises:
            Fault: It could not.

        """
        tools = await live.relist()
        self._report_differences(live)
        return tools

    def ensure_started(self) -> None:
        """See to it that somebody keeps the shared instance up."""
        if self._keeper is None and not self.draining:
            self._attempt = asyncio.get_running_loop().create_future()
            self._keeper = self._around.background.spawn(
                self._keep_up(), f"keep server {self.key} up"
            )

    async def wait_shared(self) -> Live:
        """Return the shared instance, waiting for a start that is under way.

        Raises:
            Fault: SERVER_NOT_READY or SERVER_LOST: it is down, and when it is tried again.

        """
        self.ensure_started()
        if self.shared is None and self._attempt is not None:
            try:
                async with asyncio.timeout(self.variant.spec.startup_timeout):
                    await asyncio.shield(self._attempt)
            except TimeoutError:
                pass  # said below, with what is known of the server
        if self.shared is None:
            raise self._down_fault()
        return self.shared

    def _down_fault(self) -> Fault:
        down = self._down
        if self.draining:
            return Fault(
                Reason.SERVER_NOT_READY,
                f"Server {self.key} was replaced on worker {self._around.worker_id}; try again.",
                retry_delay=0.1,
            )
        if down is None:
            return Fault(
                Reason.SERVER_NOT_READY,
                f"Server {self.key} is still starting on worker {self._around.worker_id}; "
                "try again later.",
                retry_delay=1.0,
            )
        wait = max(0.0, self.retry_at - asyncio.get_running_loop().time())
        what = "is down" if self._was_ready else "has not come up"
        return Fault(
            Reason.SERVER_LOST if self._was_ready else Reason.SERVER_NOT_READY,
            f"Server {self.key} {what} on worker {self._around.worker_id} and is started again "
            f"in {wait:.1f} s: {down.message}",
            metadata=down.metadata,
            retry_delay=wait,
        )

    async def _keep_up(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self.draining:
            if self._attempt is None:
                self._attempt = loop.create_future()
            try:
                live = await self._next_shared()
            except Fault as fault:
                self._note_down(fault)
            else:
                began = loop.time()
                self.shared = live
                self._was_ready = True
                self._end_attempt()
                await live.closed.wait()
                if loop.time() - began > _STEADY:
                    failures = 0
            await self._pause(failures)
            failures += 1

    async def _pause(self, failures: int) -> None:
        if not self.draining:
            delay = self.variant.spec.instances.restart.delay(failures)
            self.retry_at = asyncio.get_running_loop().time() + delay
            self._end_attempt()
            await asyncio.sleep(delay)

    def _ended_by_itself(self) -> Fault:
        return Fault(Reason.SERVER_LOST, f"Server {self.key} ended without saying why.")

    def _end_attempt(self) -> None:
        if self._attempt is not None:
            if not self._attempt.done():
                self._attempt.set_result(None)
            self._attempt = None

    async def _next_shared(self) -> Live:
        live, self._adopted = self._adopted, None
        if live is not None and live.is_ready:
            return live
        return await self.start_one()

    async def start_one(self, lease_id: str = "") -> Live:
        """Start an instance of this generation, for a lease or none.

        Raises:
            Fault: It did not come up, and why; nothing of it is left.

        """
        known = self.variant.toolset.protocol_version
        live = Live(self._around.open_instance, self.variant.spec, self, known, self.reading)
        live.lease_id = lease_id
        self._lives[live.instance.id] = live
        self.last_id = live.instance.id
        self.starts += 1
        self._around.reports.instances_changed()
        try:
            await live.start()
        except BaseException as error:
            self._forget(live, "did not come up")
            if isinstance(error, Fault):
                self._report(error)
            raise
        finally:
            self.reading = self.reading or live.instance.reading
        self._check_contract(live)
        self.mend(*self._start_problems)
        self._start_problems.clear()
        self._around.reports.instances_changed()
        return live

    async def take_for_lease(self, lease_id: str) -> Live:
        """Return an instance of its own for a lease: a spare, else a new one.

        Raises:
            Fault: It did not come up, and why.

        """
        while self._spares:
            live = self._spares.popleft()
            if live.is_ready:
                break
        else:
            return await self.start_one(lease_id)
        live.lease_id = lease_id
        self._around.reports.instances_changed()
        return live

    def drain(self) -> None:
        """Begin nothing new: spares end now, the shared instance with its last call."""
        self.draining = True
        if self._keeper is not None and self.shared is None:
            self._keeper.cancel()
        self.shared = None
        self._end_attempt()
        for live in tuple(self._lives.values()):
            if live.lease_id:
                continue
            live.draining = True
            if not live.calls:
                self.discard(live)
        self._spares.clear()
        self.mend(*tuple(self._reported))

    def discard(self, live: Live, grace: float = 0) -> asyncio.Task[None]:
        """Close an instance in the background and forget it."""
        live.owner = None
        self._forget(live, "closed")
        return self._around.background.spawn(
            live.close(grace), f"close instance {live.instance.id} of server {self.key}"
        )

    async def close(self) -> None:
        """End every instance."""
        self.draining = True
        if self._keeper is not None:
            self._keeper.cancel()
        self._end_attempt()
        closing = [self.discard(live) for live in tuple(self._lives.values())]
        if closing:
            await asyncio.wait(closing)

    def live_ended(self, live: Live, fault: Fault | None) -> None:
        """Forget an instance that ended by itself, and say whose lease is lost."""
        self._forget(live, "ended" if fault is None else fault.message)
        if live in self._spares:
            self._spares.remove(live)
        if live is self.shared:
            self.shared = None
            self._note_down(fault or self._ended_by_itself())
        if live.lease_id:
            if fault is not None:
                self._report(fault)
            self._around.hooks.leased_ended(live, fault)

    def live_idle(self, live: Live) -> None:
        """Close a draining instance whose last call has ended."""
        self.discard(live)

    def live_tools_changed(self, live: Live) -> None:
        """Pass on that the tools changed."""
        self._around.hooks.tools_changed(self, live)

    def _forget(self, live: Live, how: str) -> None:
        self._lives.pop(live.instance.id, None)
        self._around.logs.keep(self.key, live.instance, how)
        self._around.reports.instances_changed()

    def _check_contract(self, live: Live) -> None:
        live.compare(self.variant.toolset)
        self._report_differences(live)

    def _report_differences(self, live: Live) -> None:
        if live.differing:
            differences = describe_differences(live.differing, live.instance.tools)
            self.report(
                "TOOL_DIFFERS",
                f"On worker {self._around.worker_id}, server {self.key} has other tools than were "
                f"listed: {differences}. Calls of them are refused there. Make the workers' "
                "installations of the server equal.",
            )
        elif not any(other.differing for other in self._lives.values()):
            self.mend("TOOL_DIFFERS")

    def _note_down(self, fault: Fault) -> None:
        self._down = fault
        self._report(fault)
        self._around.reports.instances_changed()

    def _report(self, fault: Fault) -> None:
        self._start_problems.add(fault.metadata.get("problem", fault.reason.value))
        self.report(fault.metadata.get("problem", fault.reason.value), fault.message)

    def report(
        self, reason: str, message: str, severity: Literal["error", "warning"] = "error"
    ) -> None:
        """Tell operators of a problem of this server, until it is mended or replaced."""
        self._reported.add(reason)
        self._around.reports.see(Problem("server", reason, message, self.key, severity))

    def mend(self, *reasons: str) -> None:
        """Tell operators that problems are over; those that were not reported are not touched."""
        for reason in reasons:
            if reason in self._reported:
                self._reported.discard(reason)
                self._around.reports.clear(Problem("server", reason, "", self.key))
