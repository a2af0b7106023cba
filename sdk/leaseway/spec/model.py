"""A server's definition as typed data, references unresolved (DESIGN §§1–2).

The control plane parses configuration into `ServerSpec`; a worker gets the same type back from
Sync, less what only exposure needs (filters, transforms). Pure: no protobuf here, see
`spec_wire` for the two conversions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from leaseway.spec.http_tools import HttpTool
from leaseway.spec.name_filters import NO_FILTER, NameFilter
from leaseway.spec.permissions import EVERYTHING
from leaseway.spec.policy import NO_POLICY, ServerPolicy
from leaseway.wire import bounds
from leaseway.wire.timing.backoff import Backoff

TRANSPORTS: Final = (
    "stdio",
    "streamable_http",
    "sse",
    "websocket",
    "http_api",
    "python",
    "builtin",
)
"""What `transport:` may say, besides what packages register; see `transports`."""

PROCESSES: Final = frozenset({"stdio", "python", "builtin"})
"""Those whose servers are processes of the worker, spoken to over pipes."""

InheritEnv = Literal["safe", "all", "none"]
Start = Literal["eager", "lazy"]


@dataclass(frozen=True, order=True)
class VariantKey:
    """What travels and is held: a server id and the tenant whose overrides it has, or none."""

    server_id: str
    tenant: str = ""

    def __str__(self) -> str:
        return f"{self.server_id} (tenant {self.tenant})" if self.tenant else self.server_id


@dataclass(frozen=True)
class Value:
    """A configured string, or a reference that the worker resolves when an instance starts.

    Attributes:
        kind: `literal` (may hold `${NAME}` and `${NAME:-default}`), `env`, `secret` or `file`.
        text: The literal, the variable's or secret's name, or the file's path.
    """

    kind: Literal["literal", "env", "secret", "file"]
    text: str


CredentialKind = Literal["bearer", "basic", "header", "query", "cookie"]
CREDENTIAL_KINDS: Final[tuple[CredentialKind, ...]] = (
    "bearer", "basic", "header", "query", "cookie",
)  # fmt: skip


@dataclass(frozen=True)
class Credential:
    """What every request of an `http_api` server carries to say who asks.

    Attributes:
        kind: Where it goes and how: `Authorization: Bearer …`, `Authorization: Basic …`, a header,
            a pair of the query, or a cookie.
        name: Of the header, pair or cookie; of `basic` the user, or empty where the value says it.
        value: The token, password or key.
    """

    kind: CredentialKind
    name: str
    value: Value

    @property
    def header(self) -> str:
        """The header that it goes into, or an empty text."""
        named = {"header": self.name, "query": "", "cookie": "Cookie"}
        return named.get(self.kind, "Authorization")


@dataclass(frozen=True)
class Limits:
    """Bounds on one instance's processes; None is unbounded. Bytes, cores, counts."""

    memory_bytes: int | None = None
    cpu_cores: float | None = None
    open_files: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class Sandbox:
    """What a sandboxed instance may reach; `strict` is the stronger level of two."""

    enabled: bool = False
    network: bool = False
    writable_paths: tuple[str, ...] = ()
    strict: bool = False

    def launch_part(self) -> dict[str, object]:
        """Return what a launch hash is made of: what came later, only where it is set."""
        part = asdict(self)
        if not self.strict:
            del part["strict"]
        return part


@dataclass(frozen=True)
class InstancePolicy:
    """How long instances live and how many there are. Times in seconds, None for never."""

    start: Start | None = None
    warm: int = 0
    max_instances: int = bounds.MAX_INSTANCES
    idle_timeout: float | None = None
    max_age: float | None = None
    restart: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True)
class Builtin:
    """What is switched on of the server that comes with Leaseway (`transport: builtin`).

    Attributes:
        tools: The names of its tools that are on.
        roots: The folders that its file tools may reach.
        commands: The command lines that it may execute.
        hosts: The hosts that it may ask; none means any public one.
    """

    tools: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


NOTHING_BUILTIN: Final = Builtin()


@dataclass(frozen=True)
class Transform:
    """One step from an original to an exposed name (DESIGN §2).

    Attributes:
        kind: `prefix` or `suffix`.
        add: What is put in front or behind.
        remove: A leading text that is taken away first where it is there; prefix only.
    """

    kind: Literal["prefix", "suffix"]
    add: str
    remove: str = ""


_LATER: Final = ("module", "class_name", "config", "image", "pod_template", "cwd", "env_file")
"""Fields that came later: a server without them keeps the launch hash that it had before."""


@dataclass(frozen=True)
class ServerSpec:
    """One MCP server, as configured.

    The launch part needs a new process or connection when it changes, the exposure part does
    not; `launch_hash` and `exposure_hash` tell them apart.
    """

    key: VariantKey
    transport: str
    truely_stateless: bool = False
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, Value] = field(default_factory=dict)
    headers: Mapping[str, Value] = field(default_factory=dict)
    session_id: str = ""
    protocol: str = "auto"
    inherit_env: InheritEnv = "safe"
    limits: Limits = Limits()
    sandbox: Sandbox = Sandbox()
    http_tools: tuple[HttpTool, ...] = ()
    security: Mapping[str, Credential] = field(default_factory=dict)
    follow_redirects: bool = False
    retries: int = 0
    module: str = ""
    class_name: str = ""
    config: str = ""
    builtin: Builtin = NOTHING_BUILTIN
    image: str = ""
    pod_template: str = ""
    cwd: str = ""
    env_file: str = ""

    instances: InstancePolicy = InstancePolicy()
    startup_timeout: float = bounds.STARTUP_TIMEOUT
    call_timeout: float = bounds.CALL_TIMEOUT
    max_calls: int | None = None
    lease_drain_timeout: float = bounds.LEASE_DRAIN_TIMEOUT
    description: str = ""
    tools: NameFilter = NO_FILTER
    prompts: NameFilter = NO_FILTER
    resources: NameFilter = NO_FILTER
    transforms: tuple[Transform, ...] = ()
    policy: ServerPolicy = NO_POLICY
    worker_labels: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def launch_hash(self) -> str:
        """Of what needs a new process or connection when it changes."""
        return _digest(
            {
                "transport": self.transport,
                "truely_stateless": self.truely_stateless,
                "command": self.command,
                "args": self.args,
                "url": self.url,
                "env": {name: asdict(value) for name, value in self.env.items()},
                "headers": {name: asdict(value) for name, value in self.headers.items()},
                "session_id": self.session_id,
                "protocol": self.protocol,
                "inherit_env": self.inherit_env,
                "limits": asdict(self.limits),
                "sandbox": self.sandbox.launch_part(),
                # Only where it is set, as below.
                **self._http_part(),
                **{name: text for name in _LATER if (text := getattr(self, name))},
                **({"builtin": asdict(self.builtin)} if self.builtin != NOTHING_BUILTIN else {}),
                **self._permitted_part(),
            }
        )

    def _permitted_part(self) -> dict[str, object]:
        """Return the permissions, where the server is told of them or its sandbox has them."""
        permissions = self.policy.permissions
        mounted = self.sandbox.enabled and permissions != EVERYTHING
        if permissions.allowed_paths is None and not mounted:
            return {}
        return {"permissions": asdict(permissions)}

    def _http_part(self) -> dict[str, object]:
        if self.transport != "http_api":
            return {}
        return {
            "http_tools": [asdict(tool) for tool in self.http_tools],
            "follow_redirects": self.follow_redirects,
            "retries": self.retries,
            **({"security": self._security_part()} if self.security else {}),
        }

    def _security_part(self) -> dict[str, object]:
        return {name: asdict(credential) for name, credential in self.security.items()}

    @cached_property
    def exposure_hash(self) -> str:
        """Of what does not."""
        return _digest(
            {
                "instances": asdict(self.instances),
                "startup_timeout": self.startup_timeout,
                "call_timeout": self.call_timeout,
                "lease_drain_timeout": self.lease_drain_timeout,
                "description": self.description,
                "tools": self.tools.as_data(),
                "transforms": [asdict(transform) for transform in self.transforms],
                # Only where they are set: a server without them keeps the hash that it had
                # before there were any, so that an upgrade sends nothing again.
                **{name: rules.as_data() for name, rules in self._other_filters() if rules},
                **({"policy": asdict(self.policy)} if self.policy else {}),
                **({"worker_labels": dict(self.worker_labels)} if self.worker_labels else {}),
                **({"max_calls": self.max_calls} if self.max_calls else {}),
            }
        )

    def _other_filters(self) -> tuple[tuple[str, NameFilter], ...]:
        return ("prompts", self.prompts), ("resources", self.resources)

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """Every configured value that a worker resolves by itself, by the path of its key."""
        return {
            **{f"env.{name}": value for name, value in self.env.items()},
            **{f"headers.{name}": value for name, value in self.headers.items()},
            **{f"security.{name}": one.value for name, one in self.security.items()},
            **{f"config{path}": value for path, value in config_values(self.config).items()},
            **({"env_file": Value("file", self.env_file)} if self.env_file else {}),
        }

    @property
    def is_process(self) -> bool:
        """Whether its instances are processes of the worker, spoken to over pipes."""
        return self.transport in PROCESSES

    @property
    def starts_eagerly(self) -> bool:
        """Whether an instance starts before it is needed: by default where it is shared."""
        start = self.instances.start
        return self.truely_stateless if start is None else start == "eager"

    @property
    def outlives_probe(self) -> bool:
        """Whether a probe's instance is kept for use; one of many lazy servers is not."""
        wants_spares = self.instances.warm > 0 and not self.truely_stateless
        return self.instances.start != "lazy" or wants_spares

    @property
    def hidden(self) -> bool:
        """Whether it stands for a server that its tenant does not have; see `hidden_spec`."""
        return self.transport == "stdio" and not self.command and not self.image


def config_values(config: str) -> dict[str, Value]:
    """Return the texts and references of a `ServerSpec.config`, by their paths: `.db.hosts[0]`."""
    found: dict[str, Value] = {}
    walk_config(json.loads(config) if config else {}, found.__setitem__)
    return found


def walk_config(node: Any, text_of: Callable[[str, Value], Any], path: str = "") -> Any:
    """Return a parsed config with each text and reference replaced by what a function says.

    A mapping of exactly one key `env`, `secret` or `file` with a text is a reference.
    """
    match node:
        case str():
            return text_of(path, Value("literal", node))
        case {"env": str(name)} | {"secret": str(name)} | {"file": str(name)} if len(node) == 1:
            return text_of(path, Value(next(iter(node)), name))
        case dict():
            return {
                key: walk_config(value, text_of, f"{path}.{key}") for key, value in node.items()
            }
        case list():
            return [walk_config(each, text_of, f"{path}[{i}]") for i, each in enumerate(node)]
        case _:
            return node


def hidden_spec(key: VariantKey) -> ServerSpec:
    """Return the variant of a tenant for whom a server is disabled that others have.

    It takes the place of the common variant and has no tools. It is shared and lazy, so that
    nothing is ever started for it.
    """
    return ServerSpec(
        key,
        "stdio",
        truely_stateless=True,
        instances=InstancePolicy(start="lazy"),
        description="Disabled for this tenant.",
    )


def _digest(content: object) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]
