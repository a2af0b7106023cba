"""What a test has happen in a fake: errors, delays, ends of leases, time that passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from leaseway.data_plane.core.leases.table import LeaseOutcome
from leaseway.sdk.errors import LeasewayError
from leaseway.sdk.leases.book import Lease
from leaseway.sdk.operators.views import LeaseInfo
from leaseway.sdk.testing.behaviour import Hold
from leaseway.sdk.testing.faults import fault_of
from leaseway.sdk.testing.instance import FunctionServers
from leaseway.sdk.testing.planes import Planes
from leaseway.sdk.testing.registry import FakeRegistry

WorkT = TypeVar("WorkT")


class Steering(ABC):
    """The part of a fake that tests steer it by; in plain and in async tests alike."""

    _registry: FakeRegistry
    _servers: FunctionServers
    _planes: Planes | None

    @abstractmethod
    def _running(self) -> Planes:
        """Return the planes.

        Raises:
            RuntimeError: There are none: it does not run.
        """

    @abstractmethod
    def _do(self, work: Callable[[], WorkT]) -> WorkT:
        """Do something where the fake lives; its state has that one writer."""

    def fail_next(self, tool: str, error: LeasewayError, times: int = 1) -> None:
        """Fail the next calls of a tool instead of running it.

        Clients try again what is safe to repeat, as ever: an error that says that nothing was
        started, such as `Draining`, is met by the second try unless `times` outlasts them all.
        `ServerLost` on a server that is leased ends the lease.

        Args:
            tool: The tool's exposed name.
            error: What the call fails with.
            times: How many calls fail, 1 or more.

        Raises:
            ValueError: There is no such tool.
            TypeError: The error is none that clients raise.
        """
        if not isinstance(error, LeasewayError):
            raise TypeError(
                "error is what clients raise, such as ServerLost('It died.'), and not of type "
                f"{type(error).__name__}. A tool that fails by itself raises in its own function."
            )
        name = self._registry.known(tool).name
        fault = fault_of(error)
        self._do(lambda: self._servers.behaviour.fail(name, fault, times))

    def delay_next(self, tool: str, seconds: float, times: int = 1) -> None:
        """Delay the next calls of a tool.

        Args:
            tool: The tool's exposed name.
            seconds: How much later.
            times: How many calls are late, 1 or more.

        Raises:
            ValueError: There is no such tool.
        """
        name = self._registry.known(tool).name
        self._do(lambda: self._servers.behaviour.delay(name, seconds, times))

    def hold(self, tool: str) -> Hold:
        """Hold calls of a tool until a `with` block ends, without any sleeping.

        with fake.hold("build") as held:
            pending = threads.submit(client.call_tool, "build")
            held.wait()  # the call has arrived

        Args:
            tool: The tool's exposed name.

        Raises:
            ValueError: There is no such tool, or its calls are held already.
        """
        name = self._registry.known(tool).name
        hold = Hold(lambda: self._do(lambda: self._servers.behaviour.let_go(name)))
        self._do(lambda: self._servers.behaviour.hold(name, hold))
        return hold

    def advance(self, seconds: float) -> None:
        """Put the clock of leases forward: those that were not renewed since then expire.

        A lease on which a call is running does not.
        """
        planes = self._running()
        self._do(lambda: planes.advance(seconds))

    def expire_lease(self, lease: Lease | LeaseInfo | str) -> None:
        """End a lease as if it had not been renewed in time; calls on it fail.

        Args:
            lease: The lease, or its id. One that is not held is left as it ended.
        """
        self._end(lease, "expired")

    def revoke_lease(self, lease: Lease | LeaseInfo | str, reason: str = "a test did it") -> None:
        """End a lease as an operator would; calls on it fail.

        Args:
            lease: The lease, or its id. One that is not held is left as it ended.
            reason: Why, for its holder.
        """
        self._end(lease, "revoked", reason)

    def lose_lease(self, lease: Lease | LeaseInfo | str) -> None:
        """End a lease as if its worker had gone or its server had died; calls on it fail.

        Args:
            lease: The lease, or its id. One that is not held is left as it ended.
        """
        self._end(lease, "lost", "its instance ended")

    def _end(self, lease: Lease | LeaseInfo | str, how: LeaseOutcome, why: str = "") -> None:
        lease_id = lease if isinstance(lease, str) else lease.id
        planes = self._running()
        self._do(lambda: planes.worker.leases.end(lease_id, how, why))
