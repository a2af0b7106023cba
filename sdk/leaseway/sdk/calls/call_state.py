"""What one call is about, from its first try to its last."""

from __future__ import annotations

from opentelemetry.trace import Span

from leaseway.sdk.calls.release_routing import Release
from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.catalog.targets import NameOrItem, Target
from leaseway.sdk.leases.book import ClientLease
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.workers import WorkerLink, WorkerRun
from leaseway.wire.errors import Fault


class CallState:
    """What one call is about, kept from try to try.

    Args:
        session: The session that it is made in.
        name: What is called, or asked for.
        events: Takes what its server says on the way, or None.
    """

    # Set where they differ: most calls end at the first try, outside any trace.
    request: McpRequest | None = None
    target: Target | None = None
    link: WorkerLink | None = None
    held: ClientLease | None = None
    release: Release | None = None
    known: Fault | None = None
    cached = True
    open_ended = False
    repeated = False
    acquirer = ""
    span: Span | None = None
    tries = 0
    avoid: frozenset[WorkerRun] = frozenset()
    slow: frozenset[WorkerRun] = frozenset()  # those of them that did not say "full"
    payload = b""
    deadline = 0.0

    def __init__(self, session: str, name: NameOrItem, events: CallEvents | None) -> None:
        self.session = session
        self.name = name
        self.events = events
        self.trace = ("", "")
