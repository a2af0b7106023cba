"""The tables of bounds in docs/design.md and docs/security.md say what `wire/bounds.py` does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leaseway.wire import bounds

DOCS = Path(__file__).parents[2] / "docs"
TABLES = {"design.md": "## Bounds and defaults\n", "security.md": "## What one caller may take\n"}
ROWS = [
    row
    for page, title in TABLES.items()
    for row in re.findall(
        r"^\| (.+?) \| (.+?) \|",
        (DOCS / page).read_text().partition(title)[2].partition("\n## ")[0],
        re.MULTILINE,
    )
]


def seconds(value: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if value >= 2 * size and not value % size:
            return f"{value / size:g} {unit}"
    return f"{value:g} s"


def size(value: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        whole = {"GiB": 1 << 30, "MiB": bounds.MIB, "KiB": bounds.KIB}[unit]
        if not value % whole:
            return f"{value // whole} {unit}"
    return f"{value:,}"


def text(value: int) -> str:
    """Return a number of characters, for which the table has Ki."""
    return size(value).replace("iB", "i")


def count(value: int) -> str:
    return f"{value:,}"


B = bounds
TOLD = [
    ("start-up; call", seconds(B.STARTUP_TIMEOUT), seconds(B.CALL_TIMEOUT)),
    ("start-up; call", seconds(B.LEASE_DRAIN_TIMEOUT), seconds(B.SHUTDOWN_TIMEOUT)),
    ("processes of servers that start", f"{B.STARTS_PER_CORE} for", seconds(B.START_PLACE)),
    ("servers of a configuration file", count(B.MAX_SERVERS)),
    (
        "instances of a server on",
        count(B.MAX_INSTANCES),
        count(B.MAX_LEASES),
        count(B.MAX_TENANT_LEASES),
    ),
    ("instances of a worker that", count(B.MAX_REPORTED_INSTANCES)),
    ("arguments; result", size(B.MAX_ARGUMENTS), size(B.MAX_RESULT), size(B.MAX_LINE)),
    ("listings of single tenants", count(B.MAX_SUBJECT_LISTINGS), size(B.MAX_SUBJECT_BYTES)),
    (
        "OAuth: response",
        size(B.MAX_OAUTH_DOCUMENT),
        text(B.MAX_OAUTH_TOKEN),
        text(B.MAX_OAUTH_NONCE),
        count(B.MAX_OAUTH_GRANTS),
    ),
    ("idle lease", seconds(B.LEASE_IDLE)),
    ("lease that its clients have left", seconds(B.MAX_LEASE_TTL)),
    ("workers to which", count(B.WORKERS_PER_CLIENT)),
    ("sessions with leases", count(B.SESSIONS_PER_CLIENT)),
    (
        "tools, prompts, resources and templates that a lease",
        count(B.MAX_LEASE_TOOLS),
        size(B.MAX_LEASE_TOOL_BYTES),
        size(B.MAX_OWN_TOOL_BYTES),
    ),
    ("a request waits for other tools", seconds(B.MAX_LIST_WAIT), count(B.MAX_WAITING_LISTS)),
    (
        "leased instances that a worker lists",
        count(B.MAX_RELISTS),
        count(B.MAX_SERVER_RELISTS),
        seconds(B.RELIST_WAIT),
    ),
    ("a call that needs approval", size(B.MAX_APPROVAL)),
    ("record of the store", size(B.MAX_STORED)),
    ("input schema", size(B.MAX_PATTERN)),
    ("exchange batch", size(B.BATCH_SIZE), size(B.MAX_MESSAGE), count(B.MAX_CALLS_IN_FLIGHT)),
    ("head of a call", size(B.MAX_CALL_HEAD), count(B.MAX_KNOWN_HEADS)),
    ("message of any other RPC", size(B.MAX_GRPC_MESSAGE), size(B.MAX_GRPC_RECEIVED)),
    ("request that is decoded", size(B.MAX_MESSAGE), count(B.MAX_FIELDS), count(B.MAX_CALL_FIELDS)),
    (
        "request without a credential",
        size(B.MAX_OPEN_MESSAGE),
        count(B.MAX_OPEN_READS),
        seconds(B.OPEN_READ_TIMEOUT),
        count(B.MAX_OPEN_WATCHES),
    ),
    ("headers of an RPC", size(B.MAX_HEADERS)),
    ("open RPCs of a connection", count(B.MAX_RPCS)),
    ("budgets of limits", count(B.MAX_BUDGETS)),
    ("clients of a front whose lists differ", count(B.MAX_ABSENT)),
    ("stderr kept", f"{B.STDERR_LINES} lines of {size(B.STDERR_LINE_BYTES)}"),
    ("ping of an idle", seconds(B.HEALTH_INTERVAL), seconds(B.HEALTH_PATIENCE)),
    ("messages in a batch", count(B.MAX_JSON_RPC_BATCH)),
    ("one header of a server", size(B.MAX_RESPONSE_HEADER)),
    ("state of a session", size(B.MAX_SESSION_STATE)),
    ("open server requests of a call", count(B.MAX_ASKS), size(B.MAX_ASK)),
    ("suspended unary calls", count(B.MAX_PARKED)),
    (
        "tools, prompts, resources, templates of a server",
        count(B.MAX_LISTED),
        size(B.MAX_DEFINITION),
        count(B.MAX_NESTING),
        count(B.MAX_URI),
    ),
    ("instructions of a server", count(B.MAX_INSTRUCTIONS), count(B.MAX_EXTENSIONS)),
    ("resource subscriptions of a stream", count(B.MAX_SUBSCRIPTIONS)),
    ("runs whose audits", count(B.MAX_AUDIT_ANCHORS)),
    ("a worker's audit files", size(B.AUDIT_SPACE)),
    (
        "artifacts: one",
        size(B.MAX_ARTIFACT),
        count(B.MAX_ARTIFACTS_PER_RESULT),
        count(B.MAX_ARTIFACTS),
        seconds(B.ARTIFACT_AGE),
        size(B.ARTIFACT_SPACE),
        count(B.ARTIFACT_READERS),
    ),
    ("exchange streams to a worker", count(B.MAX_STREAMS), count(B.MAX_TENANT_STREAMS)),
    ("calls in flight on one stream", count(B.MAX_CALLS_IN_FLIGHT)),
    ("calls in flight on a worker", count(B.MAX_CLIENT_CALLS)),
    (
        "unary calls suspended",
        count(B.MAX_CONNECTION_PARKED),
        count(B.MAX_TENANT_PARKED),
        count(B.MAX_PARKED),
    ),
    ("incomplete chunked arguments on one", count(B.MAX_CHUNKED)),
    ("incomplete chunked arguments to a", count(B.MAX_CLIENT_CHUNKED)),
    ("resource subscriptions of one stream", count(B.MAX_SUBSCRIPTIONS)),
    ("unread results and arguments", size(B.MAX_CLIENT_HELD), size(B.MAX_HELD)),
    ("concurrent artifact downloads", count(B.TENANT_ARTIFACT_READERS), count(B.ARTIFACT_READERS)),
    ("watches of tools, of events", count(B.MAX_WATCHERS), count(B.MAX_TENANT_WATCHERS)),
    (
        "pending requests to a control plane",
        count(B.MAX_PLACEMENTS),
        count(B.MAX_TENANT_PLACEMENTS),
    ),
    ("pending requests to a worker", count(B.MAX_PLACEMENTS), count(B.MAX_TENANT_PLACEMENTS)),
    ("leases of a tenant", count(B.MAX_TENANT_LEASES)),
    ("requests that wait for lease capacity", count(B.MAX_WAITING)),
]


@pytest.mark.parametrize("told", TOLD, ids=[told[0] for told in TOLD])
def test_the_tables_of_bounds_say_what_the_code_does(told: tuple[str, ...]) -> None:
    what, *values = told
    [value] = [value for row, value in ROWS if row.startswith(what)]
    at = 0
    for expected in values:
        found = re.compile(rf"(?<![\d,]){re.escape(expected)}(?![\d,]*\d)").search(value, at)
        assert found, f"{what}: {expected} is not in {value!r}"
        at = found.end()
