"""Every bound and default that more than one part of the system relies on (DESIGN §10).

Sizes are in bytes, times in seconds. What a server's entry or an option of a command names (its
timeouts, `max_instances`, a worker's `--capacity`, a lease's ttl) is a default here; the rest is
the same everywhere, so that all parts of a system agree on it, and cannot be configured.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

STARTUP_TIMEOUT: Final = 30.0
"""From the start of an instance until its tools are listed; `startup_timeout` says otherwise."""
CALL_TIMEOUT: Final = 60.0
"""One call, its retries included; `call_timeout` or the caller says otherwise."""
MAX_CALL_TIMEOUT: Final = 24 * 3600.0
"""The longest that a call may be given."""
LEASE_DRAIN_TIMEOUT: Final = 15 * 60.0
"""Leases of an old generation; `lease_drain_timeout` says otherwise."""
SHUTDOWN_TIMEOUT: Final = 30.0
"""Calls in flight on a worker that ends. Not configurable."""

HEALTH_INTERVAL: Final = 30.0
"""How long an idle instance may be silent before it is asked for a sign of life. Not
configurable, like the next."""
HEALTH_PATIENCE: Final = 10.0
"""How long it may be silent then, before it counts as disconnected."""

MAX_INSTANCES: Final = 256
"""Instances of one server on one worker."""
MAX_LEASES: Final = 512
"""Leases on one worker."""
MAX_TENANT_LEASES: Final = 1024
"""Leases of one tenant, on all workers together."""
MAX_WAITING: Final = 1024
"""Requests that wait for room for a lease, on a control plane and on a worker."""
MAX_PLACEMENTS: Final = 2048
"""Requests for a lease, or for where names lead, of one connection that have no answer yet; on a
control plane and on a worker."""
MAX_TENANT_PLACEMENTS: Final = 4096
"""The same of one tenant."""
MAX_WATCHERS: Final = 256
"""Watches of tools and events by one connection to a control plane."""
MAX_TENANT_WATCHERS: Final = 2048
"""The same of one tenant."""

MAX_ARGUMENTS: Final = 4 * MIB
MAX_VALUES: Final = 100_000
"""Values and keys of JSON that is parsed at once: what comes after it waits for that."""
MAX_RESULT: Final = 16 * MIB
MAX_LINE: Final = 32 * MIB
"""One line of a stdio server."""

MAX_ARTIFACT: Final = 64 * MIB
"""One image or sound that a worker keeps."""
MAX_ARTIFACTS_PER_RESULT: Final = 256
"""Images and sounds of one result that become artifacts; those after them stay in place."""
MAX_ARTIFACTS: Final = 100_000
"""Artifacts that one worker keeps; the oldest go first."""
ARTIFACT_AGE: Final = 24 * 3600.0
"""How long a worker keeps an artifact; `--artifact-age` says otherwise."""
ARTIFACT_SPACE: Final = 2048 * MIB
"""What all artifacts of a worker may have together; `--artifact-space` says otherwise."""
ARTIFACT_READERS: Final = 64
"""Artifacts that one worker sends at the same time, by RPC and by HTTP."""
TENANT_ARTIFACT_READERS: Final = 48
"""Of these, the artifacts of one tenant."""

MAX_LISTED: Final = 10_000
"""Prompts that one server may list; resources and templates of them likewise."""
MAX_DEFINITION: Final = 1 * MIB
"""The definition of one of them, as JSON."""
MAX_URI: Final = 8192
"""Characters of a resource's URI."""
MAX_SUBSCRIPTIONS: Final = 256
"""Resources that one exchange stream follows at once."""

MAX_HELD: Final = 512 * MIB
"""Bytes of unread results and arguments (of calls under way, too) that a worker holds for all its
streams."""
MAX_CLIENT_HELD: Final = 384 * MIB
"""Of these, what the streams of one tenant hold; without a credential, of a connection."""
MAX_STREAMS: Final = 64
"""Exchange streams of one connection."""
MAX_TENANT_STREAMS: Final = 2048
"""Exchange streams of one tenant to a worker."""
BATCH_SIZE: Final = 256 * KIB
"""A batch of exchange frames is closed at this size; also the size of one chunk."""
MAX_MESSAGE: Final = 1 * MIB
MAX_CALLS_IN_FLIGHT: Final = 1024
"""Calls in flight on one exchange stream."""
MAX_CLIENT_CALLS: Final = 4096
"""Calls in flight on all exchange streams of one tenant; without a credential, of a connection."""
MAX_CHUNKED: Final = 32
"""Arguments in chunks that may be under way on one stream."""
MAX_CLIENT_CHUNKED: Final = 256
"""On all streams of one tenant to a worker; without a credential, of a connection."""
MAX_PARKED: Final = 64
"""Calls without a stream that may wait for their callers' answers on a worker."""
MAX_CONNECTION_PARKED: Final = 32
"""Of these, the calls of one connection."""
MAX_TENANT_PARKED: Final = 32
"""Of these, the calls of one tenant."""
MAX_ASKS: Final = 16
"""Questions of one call's server that may wait for answers."""
MAX_ASK: Final = BATCH_SIZE
"""A question's params, and its answer: each is one frame."""

MAX_META: Final = 16 * 1024
"""What a caller puts into the `_meta` of a call."""

STDERR_LINES: Final = 100
STDERR_LINE_BYTES: Final = 4 * KIB

LEASE_TTL: Final = 60.0
MIN_LEASE_TTL: Final = 1.0
MAX_LEASE_TTL: Final = 24 * 3600.0
LEASE_IDLE: Final = 600.0
"""After how long without a call a client gives a lease back, unless it says otherwise."""
LEASE_MEMORY: Final = 600.0
"""How long a worker remembers how a lease ended."""

BEHIND_WAIT: Final = 2.0
"""How long a worker that is behind waits for the registry version that a call names."""
WORKER_LOST_AFTER: Final = 10.0
RESERVATION: Final = 10.0
"""How long a placement counts against a worker that has not reported the lease."""
SETTLING: Final = 3.0
"""How long a new control plane waits for workers to say what they hold."""
MAX_PROBES: Final = 16
"""Probes that run on one worker at the same time."""
COMMIT_WINDOW: Final = 0.05
"""Results within this time share a registry version."""

MAX_GRPC_MESSAGE: Final = 5 * MIB
"""What Leaseway sends in one message: unary arguments of 4 MiB with their envelope."""
MAX_GRPC_RECEIVED: Final = 16 * MIB
"""What its servers read of one: what is beyond a bound is answered with that bound and not with
gRPC's own RESOURCE_EXHAUSTED, which carries no reason."""

MAX_CONFIG: Final = 4 * MIB
"""Bytes of a configuration file."""

MAX_SERVERS: Final = 2_000
