"""The mistakes in a configuration file with their places, and the parser's result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from leaseway.control_plane.config.tree.yaml_tree import Position, TableEntry
from leaseway.control_plane.core.problems import Problem, ProblemKey
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.file_stamp import FileStamp
from leaseway.wire.messages.states import Severity

MAX_ISSUES: Final = 1_000
"""Listed issues of one file; the others are counted."""

_MAX_QUOTED: Final = 80


class IssueReason(StrEnum):
    """Why a piece of configuration is rejected, or has a warning."""

    UNREADABLE = "CONFIG_UNREADABLE"
    TOO_LARGE = "CONFIG_TOO_LARGE"
    BAD_YAML = "BAD_YAML"
    BAD_JSON = "BAD_JSON"
    BAD_TOML = "BAD_TOML"
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    MISSING_KEY = "MISSING_KEY"
    UNKNOWN_KEY = "UNKNOWN_KEY"
    DUPLICATE_KEY = "DUPLICATE_KEY"
    DUPLICATE_SERVER = "DUPLICATE_SERVER"
    INVALID_SERVER_ID = "INVALID_SERVER_ID"
    SERVER_RENAMED = "SERVER_RENAMED"
    WRONG_TYPE = "WRONG_TYPE"
    BAD_VALUE = "BAD_VALUE"
    BAD_PATTERN = "BAD_PATTERN"
    BAD_TRANSFORM = "BAD_TRANSFORM"
    REFERENCE_NOT_ALLOWED = "REFERENCE_NOT_ALLOWED"
    MALFORMED_REFERENCE = "MALFORMED_REFERENCE"
    UNSUPPORTED_TRANSPORT = "UNSUPPORTED_TRANSPORT"
    KEY_NOT_FOR_TRANSPORT = "KEY_NOT_FOR_TRANSPORT"
    KEY_WITHOUT_EFFECT = "KEY_WITHOUT_EFFECT"
    BAD_HTTP_TOOL = "BAD_HTTP_TOOL"
    BAD_TEMPLATE = "BAD_TEMPLATE"
    OPENAPI_UNREADABLE = "OPENAPI_UNREADABLE"
    OPERATION_SKIPPED = "OPERATION_SKIPPED"
    OPERATION_IN_PART = "OPERATION_IN_PART"
    CREDENTIAL_MISSING = "CREDENTIAL_MISSING"
    DEFAULTS_REFUSED = "DEFAULTS_REFUSED"
    LITERAL_CREDENTIAL = "LITERAL_CREDENTIAL"
    SECRET_IN_ARGUMENTS = "SECRET_IN_ARGUMENTS"  # noqa: S105 - a reason, not a password
    TOO_MANY_ISSUES = "TOO_MANY_ISSUES"
    UNSET_VARIABLE = "UNSET_VARIABLE"
    VAULT_UNREADABLE = "VAULT_UNREADABLE"
    UNKNOWN_SECRET = "UNKNOWN_SECRET"  # noqa: S105 - a reason, not a password
    MISSING_FILE = "MISSING_FILE"
    COMMAND_NOT_FOUND = "COMMAND_NOT_FOUND"
    MISSING_CONFIG = "CONFIG_MISSING"
    CONFIG_GONE = "CONFIG_GONE"
    UNDECLARED_SERVER = "UNDECLARED_SERVER"
    KEY_NOT_FOR_LAYER = "KEY_NOT_FOR_LAYER"
    KEY_NOT_TAKEN_OVER = "KEY_NOT_TAKEN_OVER"
    RESTRICTION_NOT_TAKEN_OVER = "RESTRICTION_NOT_TAKEN_OVER"
    OWN_ENTRY_SKIPPED = "OWN_ENTRY_SKIPPED"
    CLIENT_SERVER_SKIPPED = "CLIENT_SERVER_SKIPPED"
    CLIENT_INPUT = "CLIENT_INPUT"
    CLIENT_VARIABLE = "CLIENT_VARIABLE"


@dataclass(frozen=True)
class ConfigIssue:
    """A mistake, or a likely one, in a configuration file.

    Attributes:
        file: The file, as it was named.
        line: Counted from 1.
        column: Counted from 1, in characters.
        key: The dotted path of the key, such as `servers.time.args[0]`; empty for the file.
        severity: An error rejects the server's entry or the file, a warning rejects nothing.
        reason: An `IssueReason`.
        message: The mistake and advice; never contains a value that may be secret.
        server_id: The server's entry that contains it, or None.
        tenant: The tenant whose variant of the server it is about, or empty for all.
    """

    file: str
    line: int
    column: int
    key: str
    severity: Severity
    reason: str
    message: str
    server_id: str | None = None
    tenant: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message}"

    @property
    def problem(self) -> Problem:
        """The issue as a row of the table of open problems."""
        return Problem(
            scope="workspace" if self.server_id is None else "server",
            reason=self.reason,
            message=f"{self.file}:{self.line}:{self.column}: {self.message}",
            server_id=self.server_id or "",
            tenant=self.tenant,
            severity=self.severity,
            subject=self.key,
        )


def problems_of(issues: Iterable[ConfigIssue]) -> list[Problem]:
    """Return issues for the table of open problems, which keeps one problem for each subject.

    If issues share a key and a reason, as skipped operations of one OpenAPI document do, the
    subjects are numbered from the second on.
    """
    counts: Counter[ProblemKey] = Counter()
    problems: list[Problem] = []
    for problem in (issue.problem for issue in issues):
        counts[problem.key] += 1
        number = counts[problem.key]
        subject = problem.subject if number == 1 else f"{problem.subject} ({number})"
        problems.append(replace(problem, subject=subject))
    return problems


Narrowings = dict[str, tuple[Position, ...]]
"""Positions of the filters that narrow the one below each, from the lowest on, by their key."""


@dataclass(frozen=True)
class ParsedConfig:
    """A parsed configuration: one file, or several in layers.

    Attributes:
        servers: The specs of the enabled servers whose entries have no error. If a tenant's
            domain disables a server, the tenant has a variant that hides it.
        rejected: Ids of servers whose entry has an error; their previous specs stay in force.
        issues: All issues, in the order of the files.
        broken: Whether the whole configuration is rejected and changes nothing.
        places: Position of each key's value in the common variants, by dotted path.
        refused: Tenants' variants whose overrides have an error. They stay unchanged; the tenant
            never gets the common variant instead.
        origins: Position of each value of a variant, by its path below the server.
        narrowings: Likewise of its filters that narrow those of a lower layer.
        followed: Other files that the configuration depends on, as they were read; a change of
            one reloads it.
        declared: The servers and tenants that it names, enabled or not: `servers.ID`,
            `tenants.NAME`.
    """

    servers: Mapping[VariantKey, ServerSpec]
    rejected: frozenset[str]
    issues: tuple[ConfigIssue, ...]
    broken: bool
    places: Mapping[str, Position] = field(default_factory=dict, compare=False, repr=False)
    refused: frozenset[VariantKey] = frozenset()
    origins: Mapping[VariantKey, Mapping[str, Position]] = field(
        default_factory=dict, compare=False, repr=False
    )
    narrowings: Mapping[VariantKey, Narrowings] = field(
        default_factory=dict, compare=False, repr=False
    )
    followed: Mapping[Path, FileStamp] = field(default_factory=dict, compare=False)
    declared: frozenset[str] = field(default=frozenset(), compare=False)


class IssueLog:
    """Collects the issues of one file, or of several in layers.

    Args:
        file: The file of issues whose position names none.
        strict: The files in which a literal credential is an error.
        order: The files, in the order of their issues in `issues()`.
    """

    def __init__(
        self, file: str, strict: frozenset[str] = frozenset(), order: Sequence[str] = ()
    ) -> None:
        self._file = file
        self._strict = strict
        self._order = {name: number for number, name in enumerate(order)}
        self._issues: list[ConfigIssue] = []
        self._seen: set[ConfigIssue] = set()
        self._unlisted = 0
        self.broken = False
        self.failed: set[str] = set()
        self.places: dict[str, Position] = {}
        self.followed: dict[Path, FileStamp] = {}

    @property
    def count(self) -> int:
        """How many issues were reported."""
        return len(self._issues) + self._unlisted

    def add(self, issue: ConfigIssue) -> None:
        """Record an issue; an error marks its server as failed."""
        if issue.severity == "error" and issue.server_id is not None:
            self.failed.add(issue.server_id)
        self._list(replace(issue, file=issue.file or self._file))

    def follow(self, files: Mapping[Path, FileStamp]) -> None:
        """Record other files that were read; of one that was read twice, how it was at first."""
        self.followed = {**files, **self.followed}

    def fresh(self) -> IssueLog:
        """Return an empty log with the same rules."""
        return IssueLog(self._file, self._strict, list(self._order))

    def absorb(self, other: IssueLog, tenant: str = "") -> None:
        """Add another log's issues that this one lacks.

        Issues of one tenant's variant (`tenant`) are only listed: they fail no server for other
        tenants and do not break the file.
        """
        for issue in other.issues():
            if issue not in self._seen:
                self._list(replace(issue, tenant=tenant))
        self._seen.update(other.issues())
        self.follow(other.followed)
        if not tenant:
            self.failed |= other.failed
            self.places.update(other.places)

    def file_of(self, at: Position) -> str:
        return at.file or self._file

    def forbids_credentials(self, at: Position) -> bool:
        """Return whether a literal credential at a position is an error, not just a warning."""
        return self.file_of(at) in self._strict

    def issues(self) -> tuple[ConfigIssue, ...]:
        """Return all issues, in the order of the files."""
        issues = sorted(
            self._issues,
            key=lambda issue: (self._order.get(issue.file, 0), issue.line, issue.column, issue.key),
        )
        if self._unlisted:
            message = f"{self._unlisted} more issues are not listed; fix these first."
            reason = IssueReason.TOO_MANY_ISSUES
            issues.append(
                ConfigIssue(
                    file=self._file,
                    line=1,
                    column=1,
                    key="",
                    severity="error",
                    reason=reason,
                    message=message,
                )
            )
        return tuple(issues)

    def _list(self, issue: ConfigIssue) -> None:
        if len(self._issues) < MAX_ISSUES:
            self._issues.append(issue)
        else:
            self._unlisted += 1


@dataclass(frozen=True)
class Where:
    """A place in the tree of keys. Readers report issues through it.

    Attributes:
        log: Collects the issues.
        key: The dotted path of the place.
        server_id: The server's entry that contains the place, or None.
        transport: The entry's transport, or None if it is unknown.
    """

    log: IssueLog
    key: str = ""
    server_id: str | None = None
    transport: str | None = None

    def child(self, entry: TableEntry) -> Where:
        """Return the place of an entry below this one, and record its value's position."""
        return self.at_key(entry.name, entry.value.at)

    def at_key(self, name: str, at: Position) -> Where:
        """Return the place of a key below this one, and record its value's position."""
        return self._below(self._path(name if name.isprintable() else ascii(name)), at)

    def item(self, index: int, at: Position) -> Where:
        """Return the place of a list's item, counted from 0, and record its position."""
        return self._below(f"{self.key}[{index}]", at)

    def find(self, name: str, default: Position) -> tuple[Where, Position]:
        """Return the place of a key that was read already, and its value's position.

        If the key is missing, the position is the default.
        """
        place = replace(self, key=self._path(name))
        return place, self.log.places.get(place.key, default)

    def error(self, at: Position, reason: IssueReason, message: str) -> None:
        """Report a mistake that rejects the server's entry."""
        self._report(at, "error", reason, message)

    def warning(self, at: Position, reason: IssueReason, message: str) -> None:
        self._report(at, "warning", reason, message)

    def fatal(self, at: Position, reason: IssueReason, message: str) -> None:
        """Report a mistake that rejects the whole file."""
        self.log.broken = True
        self._report(at, "error", reason, message)

    def missing(self, at: Position, name: str, message: str) -> None:
        """Report a missing key below this place."""
        replace(self, key=self._path(name)).error(at, IssueReason.MISSING_KEY, message)

    def _below(self, key: str, at: Position) -> Where:
        self.log.places[key] = at
        return Where(self.log, key, self.server_id, self.transport)

    def _path(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name

    def _report(self, at: Position, severity: Severity, reason: str, message: str) -> None:
        issue = ConfigIssue(
            file=at.file,
            line=at.line,
            column=at.column,
            key=self.key,
            severity=severity,
            reason=reason,
            message=message,
            server_id=self.server_id,
        )
        self.log.add(issue)


def quoted(name: str) -> str:
    """Return a name in quotes for a message: short, on one line, printable."""
    clipped = name if len(name) <= _MAX_QUOTED else name[:_MAX_QUOTED] + "..."
    return f"'{clipped}'" if clipped.isprintable() else ascii(clipped)
