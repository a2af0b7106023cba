"""Settings that several kinds of servers have: MCP, processes of the worker, requests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from leaseway.spec.lease_names import shared_part
from leaseway.spec.model import (
    NO_AUTH,
    NO_LIMITS,
    NO_SANDBOX,
    Auth,
    InheritEnv,
    Limits,
    Part,
    Sandbox,
    Value,
)


def keyed(key: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values of a mapping by the path of their key."""
    return {f"{key}.{name}": value for name, value in values.items()}


def literals(values: Mapping[str, Value]) -> Iterable[str]:
    """Return the texts of a mapping that are no references."""
    return (value.text for value in values.values() if value.kind == "literal")


@dataclass(frozen=True)
class McpPart(Part):
    """A server that speaks MCP."""

    protocol: str = "auto"


@dataclass(frozen=True)
class ChildPart(McpPart):
    """A server whose instances are child processes of the worker, connected by pipes."""

    uses_pipes: ClassVar[bool] = True
    on_worker: ClassVar[bool] = True

    env: Mapping[str, Value] = field(default_factory=dict)
    inherit_env: InheritEnv = "safe"
    limits: Limits = NO_LIMITS
    sandbox: Sandbox = NO_SANDBOX

    @property
    def values(self) -> Mapping[str, Value]:
        return keyed("env", self.env)

    @property
    def lease_texts(self) -> Iterable[str]:
        return literals(self.env)

    @property
    def named_folders(self) -> tuple[str, ...]:
        return self.sandbox.writable_paths

    @property
    def has_confined_process(self) -> bool:
        return self.sandbox.enabled


@dataclass(frozen=True)
class CommandPart(ChildPart):
    """A server whose entry has a command, or the arguments of an image's own.

    Attributes:
        pod_template: The PodTemplateSpec, as JSON, that pods are based on; it has no effect without
            an image.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    cwd: str = ""
    env_file: str = ""
    pod_template: str = ""

    @property
    def values(self) -> Mapping[str, Value]:
        file = {"env_file": Value("file", self.env_file)} if self.env_file else {}
        return {**super().values, **file}

    @property
    def texts(self) -> Iterable[tuple[str, str]]:
        return (("command", self.command), *indexed("args", self.args))

    @property
    def lease_texts(self) -> Iterable[str]:
        return (*self.args, self.cwd, *super().lease_texts)

    @property
    def named_folders(self) -> tuple[str, ...]:
        """The working folder (without the part for one lease) and the sandbox's writable paths."""
        return (shared_part(self.cwd), *super().named_folders)


@dataclass(frozen=True)
class RequestPart(Part):
    """A server that is reached by HTTP requests.

    Attributes:
        proxy: `url` (or the literal `none`), `username` and `password`; empty means the
            environment's.
    """

    url: str = ""
    headers: Mapping[str, Value] = field(default_factory=dict)
    proxy: Mapping[str, Value] = field(default_factory=dict)
    auth: Auth = NO_AUTH

    @property
    def values(self) -> Mapping[str, Value]:
        return {
            **keyed("headers", self.headers),
            **keyed("proxy", self.proxy),
            **keyed("auth", self.auth.values),
        }

    @property
    def texts(self) -> Iterable[tuple[str, str]]:
        return (("url", self.url),)


def indexed(key: str, texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Return the texts of a list by the path of their key."""
    return ((f"{key}[{index}]", text) for index, text in enumerate(texts))
