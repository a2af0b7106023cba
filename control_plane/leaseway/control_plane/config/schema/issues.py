"""What is wrong in a configuration file, and where: the parser's log and its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from leaseway.control_plane.config.tree.yaml_tree import START, Position
from leaseway.control_plane.core.problems import Problem, ProblemKey
from leaseway.spec.model import ServerSpec, VariantKey

MAX_ISSUES: Final = 1_000
"""Issues of one file that are listed; the rest are counted."""

_SHOWN: Final = 80


class IssueReason(StrEnum):
    """Why a piece of configuration was refused or warned about."""

    UNREADABLE = "CONFIG_UNREADABLE"
    TOO_LARGE = "CONFIG_TOO_LARGE"
    BAD_YAML = "BAD_YAML"
    BAD_JSON = "BAD_JSON"
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
    UNDECLARED_SERVER = "UNDECLARED_SERVER"
    KEY_NOT_FOR_LAYER = "KEY_NOT_FOR_LAYER"
    KEY_NOT_TAKEN_OVER = "KEY_NOT_TAKEN_OVER"
    CLIENT_INPUT = "CLIENT_INPUT"
    CLIENT_VARIABLE = "CLIENT_VARIABLE"


@dataclass(frozen=True)
class ConfigIssue:
    """One thing that is wrong, or may be, in a configuration file.

    Attributes:
        file: The file, as it was named.
        line: Counted from 1.
        column: Counted from 1, in characters.
        key: The dotted path of the key, such as `servers.time.args[0]`; empty for the file.
        severity: An error refuses the server's entry or the file, a warning refuses nothing.
        reason: An `IssueReason`.
        message: What is wrong and what to do; never a value that may be secret.
        server_id: The entry that it is in, or None.
        tenant: Whose variant of the server it concerns, or empty for all.
    """

    file: str
    line: int
    column: int
    key: str
    severity: Literal["error", "warning"]
    reason: str
    message: str
    server_id: str | None = None
    tenant: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message}"

    @property
    def problem(self) -> Problem:
        """The same, for the table of open problems."""
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
    """Return issues for the table of open problems, which keeps one for each subject.

    Several at one key with one reason, such as an OpenAPI document's operations that can't be
    tools, are numbered from the second on.
    """
    met: Counter[ProblemKey] = Counter()
    problems: list[Problem] = []
    for problem in (issue.problem for issue in issues):
        met[problem.key] += 1
        number = met[problem.key]
        subject = problem.subject if number == 1 else f"{problem.subject} ({number})"
        problems.append(replace(problem, subject=subject))
    return problems


@dataclass(frozen=True)
class ParsedConfig:
    """What a configuration says: one file, or several in layers.

    Attributes:
        servers: The specs of the enabled servers whose entries have no error; a tenant for whom
            a server is disabled has a variant that hides it.
        rejected: Ids of servers whose entry has an error; what they had stays in force.
        issues: Everything that was found, in the order of the files.
        broken: Whether all of it is refused and changes nothing.
        places: Where each key's value is, by dotted path; of the common variants.
        refused: Variants of tenants whose overrides have an error: they stay as they were, and
            the tenant never gets the common variant instead.
        origins: Where each value of a variant is, by its path below the server.
        followed: Other files that it depends on, to be read again when they change.
        declared: The servers and tenants that it names, switched off or not: `servers.ID`,
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
    followed: frozenset[Path] = field(default=frozenset(), compare=False)
    declared: frozenset[str] = field(default=frozenset(), compare=False)


class IssueLog:
    """Collects what the parser finds in one file, or in the layers of several.

    Args:
        file: What an issue is in whose position names no file.
        strict: The files in which a literal credential is an error.
        order: The files in the order in which their issues are listed.
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
        self.followed: set[Path] = set()

    def add(self, issue: ConfigIssue) -> None:
        """Record an issue; its server, if it is an error, counts as rejected."""
        if issue.severity == "error" and issue.server_id is not None:
            self.failed.add(issue.server_id)
        self._list(replace(issue, file=issue.file or self._file))

    def fresh(self) -> IssueLog:
        """Return an empty log with the same rules."""
        return IssueLog(self._file, self._strict, list(self._order))

    def absorb(self, other: IssueLog, tenant: str = "") -> None:
        """List what another log has and this one has not.

        What is wrong with one tenant's variant (`tenant`) is listed only: it refuses no server
        for others. Neither does it break the file.
        """
        for issue in other.issues():
            if issue not in self._seen:
                self._list(replace(issue, tenant=tenant))
        self._seen.update(other.issues())
        self.followed |= other.followed
        if not tenant:
            self.failed |= other.failed
            self.places.update(other.places)

    def file_of(self, at: Position) -> str:
        return at.file or self._file

    def forbids_credentials(self, at: Position) -> bool:
        """Return whether a literal credential at a place is an error; it is a warning otherwise."""
        return self.file_of(at) in self._strict

    def issues(self) -> tuple[ConfigIssue, ...]:
        """Return what was found, in the order of the files."""
        found = sorted(
            self._issues,
            key=lambda issue: (self._order.get(issue.file, 0), issue.line, issue.column, issue.key),
        )
        if self._unlisted:
            message = f"{self._unlisted} more issues are not listed; mend these first."
            reason = IssueReason.TOO_MANY_ISSUES
            found.append(ConfigIssue(self._file, 1, 1, "", "error", reason, message))
        return tuple(found)

    def _list(self, issue: ConfigIssue) -> None:
        if len(self._issues) < MAX_ISSUES:
            self._issues.append(issue)
        else:
            self._unlisted += 1


@dataclass(frozen=True)
class Where:
    """A place in the tree of keys, for a reader to report about.

    Attributes:
        log: Where reports go.
        key: The dotted path of the place.
        server_id: The entry that the place is in, or None.
        transport: The entry's transport where it is a known one, or None.
    """

    log: IssueLog
    key: str = ""
    server_id: str | None = None
    transport: str | None = None

    def child(self, name: str, at: Position) -> Where:
        """Return the place of a key below this one, and note where its value is."""
        safe = name if name.isprintable() else ascii(name)
        return self._below(f"{self.key}.{safe}" if self.key else safe, at)

    def item(self, index: int, at: Position) -> Where:
        """Return the place of a list's item, counted from 0."""
        return self._below(f"{self.key}[{index}]", at)

    def error(self, at: Position, reason: IssueReason, message: str) -> None:
        """Report what refuses the server's entry."""
        self._report(at, "error", reason, message)

    def warning(self, at: Position, reason: IssueReason, message: str) -> None:
        self._report(at, "warning", reason, message)

    def fatal(self, at: Position, reason: IssueReason, message: str) -> None:
        """Report what refuses the whole file."""
        self.log.broken = True
        self._report(at, "error", reason, message)

    def missing(self, at: Position | None, name: str, message: str) -> None:
        place = replace(self, key=f"{self.key}.{name}" if self.key else name)
        place.error(at or START, IssueReason.MISSING_KEY, message)

    def _below(self, key: str, at: Position) -> Where:
        self.log.places[key] = at
        return Where(self.log, key, self.server_id, self.transport)

    def _report(
        self, at: Position, severity: Literal["error", "warning"], reason: str, message: str
    ) -> None:
        issue = ConfigIssue(
            at.file, at.line, at.column, self.key, severity, reason, message, self.server_id
        )
        self.log.add(issue)


def shown(name: str) -> str:
    """Return a name in quotes as a message may carry it: short, on one line, printable."""
    clipped = name if len(name) <= _SHOWN else name[:_SHOWN] + "..."
    return f"'{clipped}'" if clipped.isprintable() else ascii(clipped)
