"""The console's JSON objects, built from a plane's state.

Lists are searched, sorted and paged here, as there may be 500 servers or 5,000 leases. They contain
no configuration values, which may be secret.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, assert_never

from leaseway.control_plane.console.rows import Json, row
from leaseway.control_plane.core.approvals import ApprovalRecord
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.problems import OpenProblem
from leaseway.control_plane.core.workers.instances import ReportedInstance
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.services import messages
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2
from leaseway.wire.messages.enums import server_state_from_proto
from leaseway.wire.messages.events import KINDS, EventRecord, event_to_proto
from leaseway.wire.messages.states import WORKER_STATES, ServerState, instance_word
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.version import user_agent

_FAILED_SHOWN: Final = 8
_PROBLEMS_SHOWN: Final = 200
_EVENTS_SHOWN: Final = 50
_DEFAULT_LIMIT: Final = 100
_LONG_BUILD: Final = 0.05
"""Seconds of processor time to build the rows, of some thousand servers, after which they stay."""
_STAY: Final = 25
"""For how many times that long: many pages that ask must not keep the control plane busy."""


class ServerRows:
    """The rows of all servers, rebuilt only after an event, and those of thousands only at times.

    Attributes:
        revision: Increases when the rows change.
    """

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._rows: Sequence[Json] = ()
        self._built_from: tuple[object, ...] = ()
        self._stay_until = 0.0
        self.revision = 0

    def all(self) -> Sequence[Json]:
        """Return a row for each server; do not modify them."""
        plane = self._plane
        source = (plane.state, plane.transitions, plane.state.problems.revision)
        if source != self._built_from and time.monotonic() >= self._stay_until:
            self._built_from = source
            began = time.thread_time()
            rows = _server_rows(plane)
            if (took := time.thread_time() - began) > _LONG_BUILD:
                self._stay_until = time.monotonic() + took * _STAY
            if rows != self._rows:
                self._rows = rows
                self.revision += 1
        return self._rows


def overview(plane: Plane, rows: Sequence[Json]) -> Json:
    state = plane.state
    states = Counter(row["state"] for row in rows)
    severities = Counter(entry.problem.severity for entry in state.problems.open())
    fleet = Counter(record.state for record in state.roster.all_workers)
    able = [record for record in state.workers.values() if record.connected]
    reload = plane.events.reload
    return {
        "now": plane.clock().unix,
        "follows": plane.follows,
        "ready": state.ready,
        "settling": not state.settled,
        "registry_version": state.visible.version,
        "config_loaded_at": state.config_loaded_at,
        "package_version": user_agent(),
        "servers": {
            **{state.value: states[state] for state in ServerState},
            "total": len(rows),
            "up": sum(states[state] for state in ServerState if state.is_up),
            "attention": sum(states[state] for state in ServerState if tone(state) == "bad"),
            "states": [
                {
                    "name": state,
                    "count": states[state],
                    "is_up": state.is_up,
                    "meaning": state.meaning,
                    "tone": tone(state),
                }
                for state in ServerState
            ],
        },
        "workers": {name: fleet[name] for name in WORKER_STATES},
        "leases": {
            "held": len(state.placements.leases),
            "capacity": sum(record.hello.capacity for record in able),
            "waiting": len(state.wait_queue),
        },
        "problems": {"error": severities["error"], "warning": severities["warning"]},
        "failed": _not_well(rows)[:_FAILED_SHOWN],
        "event_kinds": KINDS,
        "last_reload": event(reload) if reload is not None else None,
    }


def servers(rows: Sequence[Json], query: Json) -> Json:
    """Return a page of servers, the worst states first."""
    if query.get("state"):
        rows = [row for row in rows if row["state"] == query["state"]]
    rows = _matching(rows, query, ("id", "tenant", "description", "transport"))
    return _page(sorted(rows, key=_rank), query)


def _rank(row: Json) -> int:
    return ServerState(row["state"]).rank


def _not_well(rows: Sequence[Json]) -> list[Json]:
    """Return the servers that need an operator, the worst first."""
    return sorted((row for row in rows if tone(ServerState(row["state"])) == "bad"), key=_rank)


def tone(state: ServerState) -> str:
    """Return how the page shows a state: `bad` asks an operator to act, `warn` passes by itself."""
    match state:
        case ServerState.FAILED | ServerState.FAILING | ServerState.DEGRADED | ServerState.UNKNOWN:
            return "bad"
        case ServerState.NEEDS_LOGIN:
            return "bad"
        case ServerState.PENDING | ServerState.STARTING:
            return "warn"
        case ServerState.READY:
            return "good"
    assert_never(state)


def _server_rows(plane: Plane) -> list[Json]:
    state = plane.state
    errors = messages.errors_by_server(state)
    now = plane.clock()
    instances = messages.instances_by_variant(state)
    return [
        server_row(messages.server(state, key, now, (), errors))
        | {"instances_text": _instances_text(instances.get(key, ()))}
        for key in sorted(state.servers.known)
    ]


def server_row(status: catalog_pb2.ServerStatus) -> Json:
    state = server_state_from_proto(status.state)
    # The time of the next try is computed: rows that held it would change with each reading.
    return row(status, without=("instances", "next_try_at")) | {
        "id": status.server_id,
        "state": state,
        "meaning": state.meaning,
        "tone": tone(state),
        "tools": status.tool_count,
    }


def _instances_text(instances: Iterable[ReportedInstance]) -> str:
    counts = Counter(instance_word(instance.state, instance.role) for instance in instances)
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


def server(plane: Plane, server_id: str, tenant: str) -> Json | None:
    state = plane.state
    key = VariantKey(server_id, tenant)
    if key not in state.servers.known:
        found = state.servers.variants_of(tenant or DEFAULT_TENANT).get(server_id)
        if found is None:
            return None
        key = found
    instances = messages.instances_by_variant(state).get(key, ())
    status = messages.server(state, key, plane.clock(), (), messages.errors_by_server(state))
    named = state.visible.view(tenant or DEFAULT_TENANT).tools
    mine = [(name, target) for name, target in named.items() if target.served.key == key]
    open_problems = state.problems.open()
    spec = (state.servers.desired or {}).get(key)
    return server_row(status) | {
        "next_try_at": row(status)["next_try_at"],
        "login": spec.part.auth.subject if spec is not None and spec.part.auth.logs_in else "",
        "instances": [
            row(messages.instance(instance))
            for instance in sorted(instances, key=attrgetter("worker_id", "id"))
        ],
        "tools": [_tool_row(messages.tool(name, target)) for name, target in sorted(mine)],
        "problems": [_problem(p) for p in open_problems if p.problem.server_id == server_id],
        "events": [
            event(entry)
            for entry in reversed(
                plane.events.history.select(server_id=server_id, last=_EVENTS_SHOWN)
            )
        ],
    }


def tools(plane: Plane, query: Json) -> Json:
    """Return a page of the tools that a tenant sees, sorted by name."""
    named = plane.state.visible.view(query.get("tenant") or DEFAULT_TENANT).tools
    words = str(query.get("q", "")).casefold()
    names = [
        name
        for name, target in named.items()
        if words in name.casefold() or words in target.served.key.server_id.casefold()
    ]
    page = _page(sorted(names), query)
    page["items"] = [_tool_row(messages.tool(name, named[name])) for name in page["items"]]
    return page


def _tool_row(listed: catalog_pb2.Tool) -> Json:
    facts = row(listed, without=("input_schema", "output_schema", "annotations", "extra"))
    return facts | {"description": listed.description[:500]}


def tool(plane: Plane, name: str, tenant: str) -> Json | None:
    """Return listed tool with its schemas, or None if the tenant does not see it."""
    target = plane.state.visible.view(tenant or DEFAULT_TENANT).tools.get(name)
    if target is None:
        return None
    listed = messages.tool(name, target)
    return _tool_row(listed) | {
        "description": listed.description,
        "input_schema": json.loads(listed.input_schema or b"{}"),
        "output_schema": json.loads(listed.output_schema) if listed.output_schema else None,
    }


def leases(plane: Plane, query: Json) -> Json:
    """Return a page of leases, oldest first by default."""
    now = plane.clock().mono
    held = list(plane.state.placements.leases.values())
    words = str(query.get("q", "")).casefold()
    if words:
        held = [lease for lease in held if any(words in text.casefold() for text in _texts(lease))]
    order = _LEASE_ORDERS.get(str(query.get("sort", "")), _LEASE_ORDERS["age"])
    page = _page(sorted(held, key=order), query)
    page["items"] = [row(messages.lease(held, now)) for held in page["items"]]
    page["sessions"] = len({(lease.key.tenant, lease.key.session) for lease in held})
    return page


_LEASE_ORDERS: Final[dict[str, Callable[[HeldLease], Any]]] = {
    "age": attrgetter("granted_at", "id"),
    "session": attrgetter("key.session", "id"),
    "server": attrgetter("key.server_id", "id"),
}


def _texts(lease: HeldLease) -> tuple[str, ...]:
    key = lease.key
    who = lease.agent, lease.user, lease.holder
    return key.session, key.server_id, key.tenant, *who, lease.worker_id, lease.id


def workers(plane: Plane, _query: Json) -> Json:
    """Return all workers."""
    state = plane.state
    records = state.roster.all_workers
    return {"items": [_worker(state, record) for record in records], "total": len(records)}


def _worker(state: Coordinator, record: WorkerRecord) -> Json:
    status = messages.worker(state, record)
    behind = record.subscription.pending is not None
    return row(status.worker) | row(status, without=("worker",)) | {"behind": behind}


def problems(plane: Plane, query: Json) -> Json:
    """Return open problems: errors first, then newest first."""
    found = sorted(
        plane.state.problems.open(), key=lambda entry: (entry.problem.severity, -entry.last_seen)
    )
    words = str(query.get("q", "")).casefold()
    rows = [
        entry
        for entry in found
        if words
        in f"{entry.problem.text} {entry.problem.reason} {entry.problem.server_id}".casefold()
    ]
    return {"items": [_problem(row) for row in rows[:_PROBLEMS_SHOWN]], "total": len(rows)}


def _problem(open_problem: OpenProblem) -> Json:
    return row(messages.problem(open_problem)) | {"key": "\n".join(open_problem.problem.key)}


_MAX_LISTED: Final = 2_000
"""Characters of a call that the list of approvals shows; a longer one has to be opened."""


def approval(record: ApprovalRecord, *, whole: bool) -> Json:
    """Return an approval; in a list, a long call has no arguments, since a part would mislead."""
    request = record.question
    length = len(request.arguments) + len(request.extra)
    facts = row(messages.approval(record)) | {"length": length}
    if not whole and length > _MAX_LISTED:
        facts |= {"arguments": None, "extra": None}
    return facts


def event(entry: EventRecord) -> Json:
    return row(event_to_proto(entry))


def traffic(answer: admin_pb2.GetTrafficResponse) -> Json:
    """Return the call counts since the workers started."""
    return {
        "time": answer.time.ToNanoseconds() / 1e9,
        "silent": list(answer.silent_workers),
        "traffic": [row(counts) for counts in answer.traffic],
    }


def _matching(rows: Sequence[Json], query: Json, keys: Sequence[str]) -> Sequence[Json]:
    words = str(query.get("q", "")).casefold()
    if not words:
        return rows
    return [row for row in rows if any(words in str(row[key]).casefold() for key in keys)]


def _page(rows: Sequence[Any], query: Json) -> Json:
    offset, limit = query.get("offset", 0), query.get("limit", _DEFAULT_LIMIT)
    return {"items": list(rows[offset : offset + limit]), "total": len(rows)}
