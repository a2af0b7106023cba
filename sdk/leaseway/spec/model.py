"""A server's definition as typed data with unresolved references (design.md).

The control plane parses configuration into `ServerSpec`; workers receive it through Sync without
filters and transforms. Pure; `codec` converts it to the bytes that travel.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final, Literal, NamedTuple, TypeVar, assert_never, get_args

from leaseway.spec.auth import NO_AUTH, Auth
from leaseway.spec.canonical import canonical_bytes, digest, plain_fields
from leaseway.spec.filters.names import FILTER_KEYS, NO_FILTER, NameFilter
from leaseway.spec.keys import (
    DAY,
    INSTANT,
    YEAR,
    Choice,
    Duration,
    Flag,
    Key,
    ListOf,
    Need,
    Number,
    OwnReader,
    Text,
    Whole,
    declared,
    keys_of,
    setting,
)
from leaseway.spec.lease_names import SESSION, TENANT, names_in
from leaseway.spec.policy import EVERYTHING, NO_POLICY, ServerPolicy
from leaseway.spec.references import Value
from leaseway.spec.replaced import Replaced, replaced_in
from leaseway.wire import bounds
from leaseway.wire.messages.mcp import SESSION_RULES
from leaseway.wire.timing.backoff import RESTART, Backoff

MAX_SPARES: Final = 4_096
"""The highest `warm` and `max_instances`."""

InheritEnv = Literal["safe", "all", "none"]
INHERIT_ENV: Final[tuple[InheritEnv, ...]] = get_args(InheritEnv)
Start = Literal["eager", "lazy"]
TransformKind = Literal["prefix", "suffix", "replace"]


class VariantKey(NamedTuple):
    """Identifies a variant of a server: its id and the tenant whose overrides it has, if any.

    A tuple, as it is the key of most tables: it is hashed and compared in C.

    Attributes:
        user: On a worker, the tenant's user whose connections it has, if any.
    """

    server_id: str
    tenant: str = ""
    user: str = ""

    def __str__(self) -> str:
        whose = f"tenant {self.tenant}" if self.tenant else ""
        if self.user:
            whose += f", user {self.user}"
        return f"{self.server_id} ({whose})" if whose else self.server_id


RESTART_KEYS: Final = (
    Key(Duration(INSTANT, DAY), "The longest first delay.", "initial"),
    Key(Duration(INSTANT, DAY), "The longest delay of all.", "max", path="maximum"),
    Key(Number(1, 100), "How many times as long each longest delay is as the last.", "multiplier"),
)
"""The keys inside `restart`; `Backoff` itself knows nothing of files."""


@dataclass(frozen=True)
class InstancePolicy:
    """Number and lifetime of instances. Times in seconds; None means never."""

    start: Start | None = setting(
        None,
        Key(
            Choice(("eager", "lazy")),
            "`eager` starts an instance before the first call, `lazy` with it.",
            default="`eager` if shared",
        ),
    )
    warm: int = setting(
        0,
        Key(Whole(0, MAX_SPARES), "Warm spares of a leased server on each worker."),
    )
    max_instances: int = setting(
        bounds.MAX_INSTANCES,
        Key(Whole(1, MAX_SPARES), "Clients of the server on one worker, including spares."),
    )
    idle_timeout: float | None = setting(
        None,
        Key(Duration(INSTANT, YEAR), "When an idle client is stopped.", default="never"),
    )
    max_age: float | None = setting(
        None,
        Key(Duration(INSTANT, YEAR), "When an old client is replaced.", default="never"),
    )
    restart: Backoff = setting(
        RESTART,
        Key(
            OwnReader(),
            "`initial`, `max` and `multiplier` of the backoff between failed starts.",
            default="0.2 s, 30 s, 2",
            inside=RESTART_KEYS,
        ),
    )


@dataclass(frozen=True)
class Transform:
    """One step from an original to an exposed name (design.md#configuration).

    Attributes:
        kind: `prefix`, `suffix` or `replace`.
        add: The prefix, the suffix, or what stands in place of the removed text.
        remove: What is removed first: with `prefix` a leading text, if present; with `replace`
            each occurrence of a text, never empty.
    """

    kind: TransformKind
    add: str = field(
        metadata=declared(
            Key(OwnReader(), "What stands in its place; `{server}` is the server's id.", default="")
        )
    )
    remove: str = setting("", Key(OwnReader(), "The text that is removed.", required=True))


_REPLACEMENT: Final = tuple(keys_of(Transform))
TRANSFORM_KEYS: Final = (
    Key(OwnReader(), "A text at the end of each name; `{server}` is the server's id.", "suffix"),
    Key(
        OwnReader(),
        "A text in front of each name, or what replaces a text that some have in front.",
        "prefix",
        inside=_REPLACEMENT,
    ),
    Key(OwnReader(), "What replaces each occurrence of a text.", "replace", inside=_REPLACEMENT),
)
"""The keys of a step in `transform`, each of which has exactly one."""


@dataclass(frozen=True)
class Part:
    """What the entry of one kind of server says, beside what every entry can say.

    Each kind has a subclass in `spec.kinds`, with a field for each setting. What the rest of the
    product asks of every kind is here, with the answer of a kind that has nothing to say about it.

    Attributes:
        transports: The values of `transport:` that mean this kind.
        uses_pipes: Whether its instances are connected by pipes, as child processes of the worker
            are, and not over a network.
        on_worker: Whether its instances are processes that see the worker's files.
        reads_artifacts: Whether arguments of its tools can be references to artifacts.
        has_code: Whether it consists of files that people edit, so that workers watch them.
        enables_tools: Whether `tools` of its entries turns on tools that are off without it, so
            that each entry needs it.
        synonyms: Names of its transports in other formats, each with ours.
        implied_by: Keys that mean this kind in other formats, whose entries may name no transport.
        worker: The module that workers import: it has `values_of(part, resolver)` and
            `open_instance(spec, host, opening)`. Empty for kinds whose instances share more than
            the worker has for all: `data_plane.kinds.openers` has these.
        readers: The module that the control plane imports: its `READERS` has a reader for each key
            of the part that no shape describes. That of a built-in kind may also have `complete`
            and `tools`; see `config.schema.kinds`.
        entry_keys: Keys of its entries that are no settings of the part: the control plane makes
            other settings of them.
    """

    transports: ClassVar[tuple[str, ...]] = ()
    uses_pipes: ClassVar[bool] = False
    on_worker: ClassVar[bool] = False
    reads_artifacts: ClassVar[bool] = False
    has_code: ClassVar[bool] = False
    enables_tools: ClassVar[bool] = False
    synonyms: ClassVar[Mapping[str, str]] = {}
    implied_by: ClassVar[tuple[str, ...]] = ()
    worker: ClassVar[str] = ""
    readers: ClassVar[str] = ""
    entry_keys: ClassVar[tuple[Key, ...]] = ()

    @classmethod
    def is_meant(cls, settings: Container[str]) -> bool:
        """Return whether an entry with one of `transports` and these settings is of this kind."""
        return True

    @classmethod
    def implied_transport(cls, text: str) -> str:
        """Return which of `transports` an entry means that has `text` for a key of `implied_by`."""
        return cls.transports[0]

    @classmethod
    def schemes(cls, transport: str) -> tuple[str, ...]:
        """Return the schemes of its addresses with one of `transports`; none means any."""
        return ()

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        """The tools that its entry turns on, of a kind with `enables_tools`."""
        return ()

    @property
    def needs(self) -> Iterable[Need]:
        """What a machine needs to start it, beside `values` and `texts`."""
        return ()

    def faults(self) -> Iterable[str]:
        """Return what is wrong with its settings together, as sentences for the control plane."""
        return ()

    @property
    def replaced(self) -> Replaced:
        """What a worker resolves and replaces in its settings, as its keys declare."""
        return replaced_in(self)

    @property
    def values(self) -> Mapping[str, Value]:
        """The configured values that a worker resolves, by the path of their key."""
        return self.replaced.values

    @property
    def texts(self) -> Iterable[tuple[str, str]]:
        """Other keys in which a worker replaces `${NAME}`, with their texts."""
        return self.replaced.texts

    @property
    def lease_texts(self) -> Iterable[str]:
        """The texts in which a worker fills in the names of a lease."""
        return self.replaced.lease_texts

    @property
    def named_folders(self) -> tuple[str, ...]:
        """The folders that the entry names as the server's own."""
        return ()

    @property
    def cwd(self) -> str:
        """The configured working folder of its processes; may be empty."""
        return ""

    @property
    def has_confined_process(self) -> bool:
        """Whether a sandbox enforces the permissions of its tools."""
        return False

    @property
    def protocol(self) -> str:
        """The version of MCP that it is spoken to in, or how that is found out."""
        return "auto"

    @property
    def auth(self) -> Auth:
        """How a worker obtains its OAuth tokens."""
        return NO_AUTH


_P = TypeVar("_P", bound=Part)


@dataclass(frozen=True)
class Launch:
    """The settings whose change needs a new process or connection, and so ends leases.

    The fields of the part are among them.

    Attributes:
        confined_files: The file references that a tenant's own layer added, each with the patterns
            of paths that are granted to it; the opened file must match one.
        hidden: Whether it hides a common server from one tenant; see `hidden_spec`.
    """

    transport: str = field(
        metadata=declared(
            Key(
                OwnReader(),
                "What the server is: {transports}, or a registered [kind](kinds.md).",
                required=True,
                domain="never_set",
            )
        )
    )
    part: Part
    truely_stateless: bool = setting(
        False,
        Key(
            Flag(),
            "`true`: all calls share one client; `false`: each session leases its own.",
            name="truely-stateless",
        ),
    )
    confined_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hidden: bool = False


@dataclass(frozen=True)
class Exposure:
    """The settings that workers change without a new process or connection."""

    description: str = setting("", Key(Text(4_096), "A sentence that lists show."))
    instances: InstancePolicy = InstancePolicy()
    startup_timeout: float = setting(
        bounds.STARTUP_TIMEOUT, Key(Duration(INSTANT, DAY), "The limit for a start.")
    )
    call_timeout: float = setting(
        bounds.CALL_TIMEOUT,
        Key(Duration(INSTANT, DAY), "The limit for a call that sets no timeout."),
    )
    max_calls: int | None = setting(
        None,
        Key(
            Whole(1, 4_096),
            "Concurrent calls per client of the server; others wait, and tenants share by"
            " `weight`.",
            default="unlimited",
        ),
    )
    lease_drain_timeout: float = setting(
        bounds.LEASE_DRAIN_TIMEOUT,
        Key(
            Duration(0, 7 * DAY),
            "How long a lease may keep an outdated client after a configuration change.",
        ),
    )
    policy: ServerPolicy = NO_POLICY
    worker_labels: Mapping[str, str] = setting(
        {},
        Key(
            OwnReader(),
            "Labels that a worker must have to run the server, such as `{pool: gpu}`: see"
            " [pools](operating.md#worker-pools).",
            # All variants of a server are on the same workers: a worker without a tenant's own
            # variant would serve the common one to the tenant.
            domain="never_set",
        ),
    )
    sessions_from: tuple[str, ...] = setting(
        (),
        Key(
            ListOf(Choice(SESSION_RULES), len(SESSION_RULES)),
            "What tells [MCP fronts](mcp.md#sessions-and-leases) to which session a call belongs,"
            " in order: `[principal]` gives each principal one session.",
            default="the front's",
        ),
    )


@dataclass(frozen=True)
class Naming:
    """The settings that the control plane applies; workers get the resulting names instead."""

    tools: NameFilter = setting(
        NO_FILTER,
        Key(
            OwnReader(),
            "The exposed tools: a `whitelist` and a `blacklist` of original names, in which `*`"
            " matches any characters; of servers whose tools are off otherwise, [a list](kit.md).",
            domain="set",
            inside=FILTER_KEYS,
        ),
    )
    prompts: NameFilter = setting(
        NO_FILTER,
        Key(OwnReader(), "The exposed prompts, like `tools`.", domain="set", inside=FILTER_KEYS),
    )
    resources: NameFilter = setting(
        NO_FILTER,
        Key(
            OwnReader(),
            "The exposed resources, by URI, like `tools`.",
            domain="set",
            inside=FILTER_KEYS,
        ),
    )
    transforms: tuple[Transform, ...] = setting(
        (),
        Key(
            OwnReader(),
            "`prefix`, `suffix`, `prefix: {remove, add}` and `replace: {remove, add}`, applied in"
            " order to the names of tools and prompts.",
            name="transform",
            default="that of `defaults`",
            inside=TRANSFORM_KEYS,
        ),
    )


@dataclass(frozen=True)
class NameRules:
    """Which of a server's tools and prompts are exposed, and by which names.

    A part of `Naming` for workers.

    Attributes:
        tools: The filter of the original names of tools.
        transforms: The steps from an original to an exposed name.
        prompts: The filter of the original names of prompts; None if it is unknown, and then none
            that only a lease has is exposed.
    """

    tools: NameFilter = NO_FILTER
    transforms: tuple[Transform, ...] = ()
    prompts: NameFilter | None = None


def transformed(name: str, transforms: Sequence[Transform]) -> str:
    """Apply all transforms to an original name, in order."""
    for step in transforms:
        match step.kind:
            case "prefix":
                name = step.add + name.removeprefix(step.remove)
            case "replace":
                name = name.replace(step.remove, step.add)
            case "suffix":
                name += step.add
            case _:
                assert_never(step.kind)
    return name


@dataclass(frozen=True)
class Controls:
    """The settings that are in no spec: the control plane applies them while it reads an entry."""

    enabled: bool = setting(True, Key(Flag(), "`false` removes the server.", domain="set"))
    domain_may: tuple[str, ...] = setting(
        (),
        Key(
            OwnReader(),
            "Further keys that domain [layers](#layers) may set for this server, such as"
            " `call_timeout`; `env.NAME` opens one variable.",
            domain="never_set",
        ),
    )


@dataclass(frozen=True)
class Keyed:
    """What identifies a variant, and is part of no hash."""

    key: VariantKey


@dataclass(frozen=True)
class ServerSpec(Naming, Exposure, Launch, Keyed):
    """One MCP server, as configured.

    The class that declares a field says what its change does: a field of `Launch` is part of the
    `launch_hash`, one of `Exposure` or `Naming` of the `exposure_hash`. A field with its default is
    part of neither, so that a field added later leaves the hashes of other servers as they are.
    """

    @cached_property
    def launch_part(self) -> bytes:
        """The canonical bytes of `Launch`."""
        common = plain_fields(self, Launch, without="part")
        return canonical_bytes(common | plain_fields(self.part, type(self.part)))

    @cached_property
    def exposure_part(self) -> bytes:
        """The canonical bytes of `Exposure`."""
        return canonical_bytes(plain_fields(self, Exposure))

    @cached_property
    def launch_hash(self) -> str:
        """The hash of the fields that need a new process or connection when they change."""
        permissions = self.policy.permissions
        mounted = self.part.has_confined_process and permissions != EVERYTHING
        if permissions.allowed_paths is None and not mounted:
            return digest(self.launch_part)
        # The process is told its allowed paths, and a sandbox enforces the permissions.
        return digest(self.launch_part, canonical_bytes(permissions))

    def drop_parts(self) -> None:
        """Drop the canonical bytes, which for an API are megabytes, once the launch hash is known.

        They are made again if they are needed again.
        """
        _ = self.launch_hash
        for part in ("launch_part", "exposure_part"):
            self.__dict__.pop(part, None)

    @cached_property
    def exposure_hash(self) -> str:
        """The hash of the other fields."""
        return digest(self.exposure_part, canonical_bytes(plain_fields(self, Naming)))

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """All configured values that a worker resolves, by the path of their key."""
        return self.part.values

    @cached_property
    def lease_names(self) -> frozenset[str]:
        """Which of `${lease}`, `${session}` and `${tenant}` it uses."""
        return names_in(self.part.lease_texts)

    @property
    def needs_holder(self) -> bool:
        """Whether an instance can serve only the session that it was started for: no spares."""
        return bool(self.lease_names & {SESSION, TENANT})

    @property
    def stands_for_all(self) -> bool:
        """Whether it is for nobody in particular, though the server acts for tenants or users."""
        auth = self.part.auth
        return auth.is_of_people and not (self.key.user if auth.acts_for_users else self.key.tenant)

    @cached_property
    def named_folders(self) -> tuple[str, ...]:
        """The folders that its entry names as its own, as they are written.

        These are those of its part, and its allowed paths.
        """
        allowed = self.policy.permissions.allowed_paths or ()
        named = (*self.part.named_folders, *allowed)
        return tuple(dict.fromkeys(path for path in named if path))

    def part_as(self, kind: type[_P]) -> _P:
        """Return its part, for code that belongs to one kind."""
        assert isinstance(self.part, kind), f"{self.key} is no {kind.__name__}."
        return self.part

    @property
    def starts_eagerly(self) -> bool:
        """Whether an instance starts before it is needed; the default for shared servers."""
        start = self.instances.start
        return self.truely_stateless if start is None else start == "eager"

    @property
    def outlives_probe(self) -> bool:
        """Whether the instance of a probe is kept for calls."""
        wants_spares = self.instances.warm > 0 and not self.truely_stateless
        return (self.instances.start != "lazy" or wants_spares) and not self.needs_holder
