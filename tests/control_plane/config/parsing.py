"""Parses configurations for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.layers.sources import parse_sources
from leaseway.control_plane.config.loading import load_sources
from leaseway.control_plane.config.schema.issues import ConfigIssue, ParsedConfig
from leaseway.spec.model import ServerSpec, VariantKey

PATH = "mcp.yaml"


def entry(body: str, head: str = "transport: stdio, command: x, ") -> str:
    """Return a file whose third line is `  s: {…}` with the body at its end."""
    return f"version: 1\nservers:\n  s: {{{head}{body}}}\n"


def parse(text: str, path: str = PATH) -> ParsedConfig:
    return parse_text(text, path)


def parse_server(body: str) -> ParsedConfig:
    """Parse a file with one server, `s`, on its third line."""
    return parse(entry(body, ""))


def load(*words: str | Path, **options: Any) -> ParsedConfig:
    """Load the files of `--config` options."""
    return load_sources(parse_sources([str(word) for word in words], **options))


def spec_of(parsed: ParsedConfig) -> ServerSpec:
    """Return the spec of the server `s` of a configuration without issues."""
    assert not parsed.issues, "\n".join(map(str, parsed.issues))
    return parsed.servers[VariantKey("s")]


def only_issue(parsed: ParsedConfig) -> ConfigIssue:
    assert len(parsed.issues) == 1, "\n".join(map(str, parsed.issues))
    return parsed.issues[0]
