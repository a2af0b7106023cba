"""Arguments in policy rules that are missing in tools' schemas."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from tests.control_plane.core.builders import spec

from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.catalog.rule_arguments import named_arguments
from leaseway.control_plane.core.catalog.variants import build_good
from leaseway.spec.policy import ArgumentRule, ServerPolicy


def tool(name: str, *arguments: str, **schema: object) -> ListedItem:
    properties = {argument: {"type": "string"} for argument in arguments}
    definition = {"name": name, "inputSchema": {"properties": properties, **schema}}
    return ListedItem(name, json.dumps(definition).encode())


def warned(listing: ServerListing, *rules: ArgumentRule) -> list[str]:
    files = replace(spec("files"), policy=ServerPolicy(rules=rules))
    _, problems = build_good(files, listing)
    return [problem.message for problem in problems if problem.reason == "RULE_NAMES_NO_ARGUMENT"]


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ('args.path.startsWith("/etc")', {"path"}),
        ('args["path"] == "args.other" || args . mode > 1', {"path", "mode"}),
        ("has(args.path) && args.path == 'a'", set()),
        ('tool == "args.path" && myargs.x == 1', set()),
    ],
)
def test_a_rules_arguments_are_those_that_it_needs(expression: str, named: set[str]) -> None:
    assert named_arguments(expression) == named


def test_a_rule_with_an_unknown_argument_is_a_warning_with_a_suggestion() -> None:
    listing = ServerListing(
        (tool("read", "path"), tool("stat", "path"), tool("ping")), "2025-11-25"
    )
    rule = ArgumentRule('args.pth == "x"', ("read", "stat"))
    [message] = warned(listing, rule)
    assert "Rule 1 of server files names args.pth" in message
    assert "read, stat" in message
    assert "Did you mean 'args.path'" in message
    [message] = warned(listing, ArgumentRule('args.path == "x"'))
    assert "ping" in message
    assert "read" not in message.split("does not have")[0]


def test_known_or_open_arguments_are_no_warning() -> None:
    listing = ServerListing(
        (tool("read", "path"), tool("open", additionalProperties=True)), "2025-11-25"
    )
    assert not warned(listing, ArgumentRule('args.path == "x"'))
    assert not warned(listing, ArgumentRule('args.mode == "x"', ("nothing",)))


def test_many_rules_read_each_schema_once() -> None:
    names = [f"argument_{number}" for number in range(200)]
    listing = ServerListing(tuple(tool(f"tool_{number}", *names) for number in range(300)))
    rules = [ArgumentRule(f'args.argument_{number} == "x"') for number in range(100)]
    began = time.process_time()
    assert not warned(listing, *rules)
    assert time.process_time() - began < 1
