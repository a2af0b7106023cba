"""How much of its limits each tenant uses, and how often it was refused for them (DESIGN §11).

Labels are the tenants that the configuration names. All others share the name `*`: of what they
use, that of the one that uses most counts, since the limits of `*` hold for each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from leaseway.spec.policy import OTHERS, TenantLimits
from leaseway.telemetry.metrics import Meter
from leaseway.wire.span_attributes import Attr

Quota = Literal["calls", "concurrent", "external", "leases", "artifact_bytes"]
Amounts = Mapping[str, float]
"""By tenant."""
_Series = Iterator[tuple[tuple[str, str], float]]
_HELD: Final[tuple[Quota, ...]] = ("concurrent", "leases", "artifact_bytes")


@dataclass(frozen=True)
class QuotaReaders:
    """Readers that the owners of a worker's state hand in; each answers at once.

    Attributes:
        limits: The limits of each server's policy; they are the same wherever a tenant is named.
        used: What tenants hold at present, by quota.
        refused: (tenant, quota, how often) since the worker's start.
    """

    limits: Callable[[], Iterable[Mapping[str, TenantLimits]]]
    used: Mapping[Quota, Callable[[], Amounts]]
    refused: Callable[[], Iterable[tuple[str, Quota, int]]]


class QuotaMeters:
    """Reads what tenants use whenever somebody asks for a worker's metrics.

    Args:
        meter: Where the instruments are registered.
        readers: What is read.
    """

    def __init__(self, meter: Meter, readers: QuotaReaders) -> None:
        self._readers = readers
        labels = Attr.TENANT, Attr.QUOTA
        meter.observe(
            "leaseway.tenant.limit",
            "1",
            "What a tenant may use of this worker; of `calls`, so many in a second.",
            self._limits,
            *labels,
        )
        meter.observe(
            "leaseway.tenant.used", "1", "What a tenant uses of that.", self._used, *labels
        )
        meter.observe(
            "leaseway.tenant.refused",
            "{request}",
            "Calls and leases that a tenant was refused because of its limits.",
            self._refused,
            *labels,
            kind="counter",
        )

    def _configured(self) -> Mapping[str, TenantLimits]:
        found: dict[str, TenantLimits] = {}
        for limits in self._readers.limits():
            found.update(limits)
        return found

    def _limits(self) -> _Series:
        for tenant, limits in self._configured().items():
            if limits.calls is not None:
                yield (tenant, "calls"), limits.calls.calls / limits.calls.seconds
            for quota in _HELD:
                most = getattr(limits, quota)
                if most is not None:
                    yield (tenant, quota), float(most)

    def _used(self) -> _Series:
        configured = self._configured()
        for quota, read in self._readers.used.items():
            amounts = read()
            for tenant, limits in configured.items():
                if getattr(limits, quota) is None:
                    continue
                if tenant == OTHERS:
                    others = (many for name, many in amounts.items() if name not in configured)
                    yield (tenant, quota), float(max(others, default=0))
                else:
                    yield (tenant, quota), float(amounts.get(tenant, 0))

    def _refused(self) -> _Series:
        configured = self._configured()
        for tenant, quota, count in self._readers.refused():
            yield (tenant if tenant in configured else OTHERS, quota), float(count)
