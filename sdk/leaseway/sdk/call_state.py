"""What one call is about, from its first try to its last."""

from __future__ import annotations

from opentelemetry.trace import Span

from leaseway.sdk.events import CallEvents
from leaseway.sdk.lease_book import Held, Worker
from leaseway.sdk.releases import Release
from leaseway.sdk.requests import OfferRequest
from leaseway.sdk.targets import Asked, Target
from leaseway.sdk.workers import WorkerLink
from leaseway.wire.fault import Fault

__all__ = ["CallState"]


class CallState:
    """What one call is about, kept from try to try.

    Args:
        session: The session that it is made in.
        name: What is called, or asked for.
        events: Takes what its server says on the way, or None.
    """

    # Set where they differ: most calls end at the first try, outside any trace.
    request: OfferRequest | None = None
    target: Target | None = None
    link: WorkerLink | None = None
    held: Held | None = None
    release: Release | None = None
    known: Fault | None = None
    cached = True
    open_ended = False
    repeated = False
    acquirer = ""
    span: Span | None = None
    tries = 0
    avoid: frozenset[Worker] = frozenset()
    payload = b""
    deadline = 0.0

    def __init__(self, session: str, name: Asked, events: CallEvents | None) -> None:
        self.session = session
        self.name = name
        self.events = events
        self.trace = ("", "")
