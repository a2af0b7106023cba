"""Bounds and defaults that more than one part of the system relies on.

Sizes are in bytes, times in seconds. A bound that a server's entry or a command's option names
(timeouts, `max_instances`, a worker's `--capacity`, a lease's ttl) is only a default here. The
others cannot be configured, so that all parts of a system agree on them.

See design.md#bounds-and-defaults.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

STARTUP_TIMEOUT: Final = 30.0
"""From the start of an instance until its tools are listed; default of `startup_timeout`."""
STARTS_PER_CORE: Final = 2
"""Processes of servers that start on a worker at the same time, for each processor that it may use;
default of `--concurrent-starts`."""
START_PLACE: Final = 10.0
"""How long a start keeps others from starting. Not configurable."""
CALL_TIMEOUT: Final = 60.0
"""One call including its retries; default of `call_timeout`."""
MAX_CALL_TIMEOUT: Final = 24 * 3600.0
"""The longest timeout of a call."""
LEASE_DRAIN_TIMEOUT: Final = 15 * 60.0
"""Leases of an old generation; default of `lease_drain_timeout`."""
SHUTDOWN_TIMEOUT: Final = 30.0
"""Calls in flight on a worker that shuts down. Not configurable."""
SESSIONS_PER_CLIENT: Final = 16
"""Sessions with leases of one MCP client of one principal at a front; default of
`--sessions-per-client`."""
WORKERS_PER_CLIENT: Final = 16
"""Workers to which one client sends the shared calls of a tool. Not configurable."""

HEALTH_INTERVAL: Final = 30.0
"""How long an idle instance may be silent before it is pinged. Not configurable."""
HEALTH_PATIENCE: Final = 10.0
"""How long a pinged instance may take to answer before it counts as disconnected. Not
configurable."""

MAX_INSTANCES: Final = 256
"""Instances of one server on one worker."""
MAX_LEASES: Final = 512
"""Leases on one worker."""
MAX_REPORTED_INSTANCES: Final = 16_384
"""Instances that a control plane keeps of one worker; further ones are ignored."""
MAX_TENANT_LEASES: Final = 1024
"""Leases of one tenant, on all workers together."""
MAX_BUDGETS: Final = 10_000
"""Budgets of limits that a control plane or a worker keeps; those that count nothing go first."""
MAX_WAITING: Final = 1024
"""Requests that wait for lease capacity, on a control plane and on a worker."""
MAX_PLACEMENTS: Final = 2048
"""Requests of one connection to place a lease or resolve names that are in progress; on a control
plane and on a worker."""
MAX_TENANT_PLACEMENTS: Final = 4096
"""The same of one tenant."""
MAX_FRONT_CALLERS: Final = 256
"""Credentials that one MCP front serves. Each has an SDK client, and gRPC lets all clients of a
process share a connection, so what a connection may have suffices for a front."""
MAX_WATCHERS: Final = 2 * MAX_FRONT_CALLERS
"""Watches of tools, of events and of ends of sessions, each kind by one connection to a control
plane."""
MAX_TENANT_WATCHERS: Final = 2048
"""The same of one tenant."""

MAX_ARGUMENTS: Final = 4 * MIB
MAX_VALUES: Final = 100_000
"""Values and keys of JSON that is parsed in one step, which blocks everything else."""
MAX_APPROVAL: Final = 64 * KIB
"""A call that needs approval, as a person sees it; a longer one is refused."""
MAX_STORED: Final = 1 * MIB
"""A record in the control plane's store."""
MAX_RESULT: Final = 16 * MIB
MAX_LINE: Final = 32 * MIB
"""One line of a stdio server."""

MAX_PATTERN: Final = 2 * MIB
"""One compiled regular expression of a schema; one that takes more is not checked."""
MAX_ARTIFACT: Final = 64 * MIB
"""One image or sound that a worker stores."""
MAX_ARTIFACTS_PER_RESULT: Final = 256
"""Images and sounds of one result that become artifacts; further ones stay in the result."""
MAX_ARTIFACTS: Final = 100_000
"""Artifacts that one worker stores; the oldest are deleted first."""
ARTIFACT_AGE: Final = 24 * 3600.0
"""How long a worker stores an artifact; default of `--artifact-age`."""
ARTIFACT_SPACE: Final = 2048 * MIB
"""Total size of a worker's artifacts; default of `--artifact-space`."""
AUDIT_SPACE: Final = 1024 * MIB
"""Total size of a worker's audit files that wait for a sink; default of `--audit-space`."""
MAX_AUDIT_ANCHORS: Final = 10_000
"""Runs of workers whose audits a control plane anchors; the oldest are forgotten first."""
AUDIT_ANCHOR_INTERVAL: Final = 60.0
"""Seconds between two heads of a worker's audit."""
ARTIFACT_READERS: Final = 64
"""Artifacts that one worker sends at the same time, by RPC and by HTTP."""
TENANT_ARTIFACT_READERS: Final = 48
"""Of these, the artifacts of one tenant."""

MAX_LISTED: Final = 10_000
"""Prompts that one server may list; also the limit for resources and for templates."""
MAX_DEFINITION: Final = 1 * MIB
"""The definition of one of them, as JSON."""
MAX_NESTING: Final = 128
"""Levels of objects and lists in a definition; official clients read 200 in a whole message."""
MAX_INSTRUCTIONS: Final = 16 * KIB
"""Characters of a server's instructions for models."""
MAX_EXTENSIONS: Final = 64
"""MCP extensions that one server supports."""
MAX_URI: Final = 8192
"""Characters of a resource's URI."""
MAX_SUBSCRIPTIONS: Final = 256
"""Resources to which one exchange stream subscribes."""

MAX_HELD: Final = 512 * MIB
"""Bytes of unread results and of arguments that a worker holds for all its streams."""
MAX_CLIENT_HELD: Final = 384 * MIB
"""Of these, the bytes of one tenant; without a credential, of one connection."""
MAX_STREAMS: Final = 2 * MAX_FRONT_CALLERS
"""Exchange streams of one connection."""
MAX_TENANT_STREAMS: Final = 2048
"""Exchange streams of one tenant to a worker."""
BATCH_SIZE: Final = 256 * KIB
"""A batch of exchange frames is closed at this size; also the size of one chunk."""
MAX_MESSAGE: Final = 1 * MIB
MAX_CALL_HEAD: Final = 64 * KIB
"""What a call asks for, and for whom, without its arguments."""
MAX_KNOWN_HEADS: Final = 256
"""Heads of calls of one stream that a worker knows again, each of at most 1 KiB."""
MAX_CALLS_IN_FLIGHT: Final = 1024
"""Calls in flight on one exchange stream."""
MAX_CLIENT_CALLS: Final = 4096
"""Calls in flight on all streams of one tenant; without a credential, of one connection."""
MAX_CHUNKED: Final = 32
"""Chunked arguments that are being received on one stream."""
MAX_CLIENT_CHUNKED: Final = 256
"""The same on all streams of one tenant; without a credential, of one connection."""
MAX_PARKED: Final = 64
"""Calls without a stream that wait for their callers' answers on a worker."""
MAX_CONNECTION_PARKED: Final = 32
"""Of these, the calls of one connection."""
MAX_TENANT_PARKED: Final = 32
"""Of these, the calls of one tenant."""
MAX_SESSION_STATE: Final = 16 * KIB
"""What a front needs to continue a session: log level and subscriptions."""
MAX_RESPONSE_HEADER: Final = 64 * KIB
"""Bytes of one header of a server over HTTP, its name and value together."""

MAX_JSON_RPC_BATCH: Final = 64
"""Messages in one batch of an MCP client or server (2025-03-26)."""
MAX_ASKS: Final = 16
"""Server requests of one call that wait for answers."""
MAX_ASK: Final = BATCH_SIZE
"""The params of a server request, and its answer: each is one frame."""

MAX_ABSENT: Final = 1000
"""Tools that a leased server does not list to its MCP client; others stay listed. So for prompts,
resources and templates."""
MAX_ABSENT_BYTES: Final = 32 * KIB
"""Their names or URIs as JSON, for each of these lists."""

MAX_LEASE_TOOLS: Final = 1000
"""Tools that the instance of a lease adds or defines otherwise; later ones are skipped."""
MAX_LEASE_TOOL_BYTES: Final = 1 * MIB
"""Their definitions; so that a response of `ListLeaseTools` is one message."""
MAX_OWN_TOOL_BYTES: Final = 64 * MIB
"""Those of all leases of a worker, equal ones once; a further lease has the common tools."""
MAX_RELISTS: Final = 16
"""Leased instances of a worker that are listed again at the same time."""
MAX_SERVER_RELISTS: Final = 4
"""Those of one server."""
RELIST_WAIT: Final = 2.0
"""How long a call of an unknown tool, and a list of a lease's tools, wait for a reported change."""

MAX_LIST_WAIT: Final = 60.0
"""How long a request waits for a lease to list other tools."""
MAX_WAITING_LISTS: Final = 4096
"""Such requests of a worker; further ones are answered at once."""

MAX_META: Final = 16 * 1024
"""The caller's part of a call's `_meta`."""
MAX_CLIENT: Final = 2 * 1024
"""What an MCP client declares about itself; session ids of a front contain it."""

STDERR_LINES: Final = 100
STDERR_LINE_BYTES: Final = 4 * KIB

LEASE_TTL: Final = 60.0
MIN_LEASE_TTL: Final = 1.0
MAX_LEASE_TTL: Final = 24 * 3600.0
MAX_PLACEMENT_WAIT: Final = 24 * 3600.0
"""Seconds that a request for a lease waits for capacity."""
SESSION_AGE: Final = 7 * 24 * 3600.0
"""Seconds for which the id of a front's session is valid, and its end remembered."""
MAX_PAST_CALLS: Final = 200
"""Recorded calls of a worker, and of all workers, in one answer."""
LEASE_IDLE: Final = 600.0
"""How long without a call until a client releases a lease; default of `idle`."""
LEASE_MEMORY: Final = 600.0
"""How long a worker remembers why a lease ended."""
MAX_KNOWN_ENDS: Final = 8
"""Ended leases of one session and server that a client names as known."""

BEHIND_WAIT: Final = 2.0
"""How long a worker that is behind waits for the registry version of a call."""
WORKER_LOST_AFTER: Final = 10.0
RESERVATION: Final = 10.0
"""How long a placement counts against a worker that has not reported the lease."""
SETTLING: Final = 3.0
"""How long a new control plane waits for workers to report their leases."""
MAX_PROBES: Final = 16
"""Probes that run on one worker at the same time."""
COMMIT_WINDOW: Final = 0.05
"""Changes within this time share a registry version, in a large fleet within more."""

MAX_GRPC_MESSAGE: Final = 5 * MIB
"""One sent message: unary arguments of 4 MiB with their envelope."""
MAX_GRPC_RECEIVED: Final = 16 * MIB
"""One received message. It exceeds the other bounds, so that their errors are returned instead of
gRPC's own RESOURCE_EXHAUSTED, which has no reason."""
MAX_FIELDS: Final = 32_768
"""Fields of one received message, on all levels; more are not decoded."""
MAX_CALL_FIELDS: Final = 5 * MAX_VALUES
"""The same of a unary call, whose arguments are typed: a value takes up to five fields."""
MAX_OPEN_MESSAGE: Final = 4 * KIB
"""One message of an RPC that needs no credential."""
MAX_OPEN_READS: Final = 8
"""Messages that a server receives at the same time from callers without a credential."""
MAX_OPEN_WATCHES: Final = 1024
"""Streams of responses of a server to callers without a credential: watches of its health."""
OPEN_READ_TIMEOUT: Final = 5.0
"""How long one of them may take."""
MAX_HEADERS: Final = 20 * KIB
"""Headers of one RPC, with a token of 16 KiB."""
MAX_RPCS: Final = 5_000
"""Open RPCs of one connection: more than the limits with an error of their own allow."""
MAX_RPC_HELD: Final = 256 * MIB
"""Bytes of requests, and of responses that are not read yet, of the unary RPCs of one tenant; of a
connection if its caller has none."""
MAX_RPC_READS: Final = 32
"""Requests of unary RPCs of one tenant that are received at the same time; so of a connection."""
RPC_READ_TIMEOUT: Final = 30.0
"""How long one of them may take."""

MAX_OAUTH_DOCUMENT: Final = 256 * KIB
"""Bytes of one response of an authorization server, or of a server's OAuth metadata."""
MAX_OAUTH_TOKEN: Final = 16 * KIB
"""Characters of a token that is sent to a server."""
MAX_OAUTH_NONCE: Final = 4 * KIB
"""Characters of a nonce for proofs of possession (DPoP)."""
MAX_OAUTH_GRANTS: Final = 4_096
"""Clients and subjects whose tokens a worker remembers."""
MAX_SUBJECT_LISTINGS: Final = 4_096
"""Tenants and users of servers whose own listings a control plane remembers."""
MAX_SUBJECT_BYTES: Final = 64 * MIB
"""Bytes of the definitions in them; equal listings are counted once."""

MAX_CONFIG: Final = 4 * MIB
"""Bytes of a configuration file."""

MAX_SERVERS: Final = 10_000
