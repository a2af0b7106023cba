"""Options that a child process gets from its parent: each as it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner

from leaseway.cli.options.artifacts import artifact_options
from leaseway.cli.options.audit import audit_options
from leaseway.cli.options.config import config_options
from leaseway.cli.options.console import console_options
from leaseway.cli.options.front import front_options
from leaseway.cli.options.identity import identity_options
from leaseway.cli.options.store import store_options

FRONT = (
    "--allow-origin=https://a.example --allow-origin=https://b.example --allow-host=a.example "
    "--public-url=https://mcp.example --tools=search --media=links --no-handles "
    "--sessions-from=principal,cookie --session-argument=thread --conversation-key=a/b "
    "--conversation-key=c --sessions-per-client=7 --drain-timeout=1234567.5"
)
STORED = "--artifacts=/a --artifact-age=1234567 --artifact-space=5"
CONFIGURED = "--config=a.yaml --config=domain=acme:b.yaml --prefix=none"
GROUPS = [
    (front_options, FRONT, ""),
    (artifact_options, STORED, "--artifacts-http"),
    (audit_options, "--audit=/a --audit-sink=s3://b/f --audit-policy=drop --audit-space=5", ""),
    (config_options, CONFIGURED, ""),
    (console_options, "--console-url=https://c.example", "--console"),
    (identity_options, f"--keys=/k --identity={__file__}", ""),
    (store_options, "--data=/d", "--store"),
    (store_options, "--store=env:DSN", "--data"),
]


def parse(decorate: Callable[[Any], Any], words: list[str]) -> tuple[Any, set[str]]:
    """Return the value of a group of options, and their names."""
    values: list[Any] = []

    @click.command()
    @decorate
    def command(**group: Any) -> None:
        values.extend(group.values())

    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    return values[0], {str(option.opts[0]) for option in command.params}


@pytest.mark.parametrize(("decorate", "given", "own"), GROUPS)
def test_a_child_process_gets_each_option_as_it_was_given(
    decorate: Callable[[Any], Any], given: str, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSN", "postgresql://db/leaseway")
    words = given.split()
    value, names = parse(decorate, words)
    named = {word.partition("=")[0].replace("--no-", "--") for word in words}
    assert named == names - {own}  # a new option needs a value here
    child = value.as_arguments()
    assert parse(decorate, child)[0] == value
    assert own not in child


@pytest.mark.parametrize(
    "decorate", [front_options, artifact_options, config_options, console_options, identity_options]
)
def test_a_default_needs_no_word(decorate: Callable[[Any], Any]) -> None:
    assert parse(decorate, [])[0].as_arguments() == []


def test_a_given_default_outweighs_the_childs_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEASEWAY_AUDIT_POLICY", "drop")
    value, _ = parse(audit_options, ["--audit-policy=spill"])
    assert parse(audit_options, value.as_arguments())[0].policy == "spill"
