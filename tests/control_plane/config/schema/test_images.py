"""Entries of servers that are images: what they come to, and each mistake with its place."""

from __future__ import annotations

import json

import pytest

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.protobuf import spec_from_wire, spec_to_wire

_IMAGE = "transport: stdio, image: 'registry.example/tickets:1.2'"


def parse(entry: str) -> ParsedConfig:
    return parse_text(f"version: 1\nservers:\n  s: {{{entry}}}\n", "mcp.yaml")


def spec_of(entry: str) -> ServerSpec:
    parsed = parse(entry)
    assert parsed.issues == ()
    return parsed.servers[VariantKey("s")]


def test_an_image_needs_no_command() -> None:
    spec = spec_of(f"{_IMAGE}, args: [--fast]")

    assert (spec.image, spec.command, spec.args) == (
        "registry.example/tickets:1.2",
        "",
        ("--fast",),
    )
    assert not spec.hidden


def test_an_image_and_its_template_travel_and_belong_to_the_launch() -> None:
    template = "podTemplate: {metadata: {labels: {a: b}}, spec: {nodeSelector: {disk: ssd}}}"
    plain, made = spec_of(_IMAGE), spec_of(f"{_IMAGE}, {template}")

    assert json.loads(made.pod_template) == {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"nodeSelector": {"disk": "ssd"}},
    }
    assert spec_from_wire(spec_to_wire(made)) == made
    other = spec_of("transport: stdio, image: 'registry.example/tickets:1.3'")
    assert len({plain.launch_hash, made.launch_hash, other.launch_hash}) == 3


@pytest.mark.parametrize(
    ("entry", "reason", "said"),
    [
        ("transport: stdio", "MISSING_KEY", "'command' or 'image'"),
        ("transport: stdio, image: --privileged", "BAD_VALUE", "the name of an image"),
        ("transport: stdio, image: 'a b'", "BAD_VALUE", "the name of an image"),
        ("transport: stdio, image: [a]", "WRONG_TYPE", "must be text"),
        (f"{_IMAGE}, podTemplate: [a]", "WRONG_TYPE", "must be a mapping"),
        (f"{_IMAGE}, podTemplate: {{specs: {{}}}}", "UNKNOWN_KEY", "did you mean 'spec'?"),
        (f"{_IMAGE}, podTemplate: {{spec: {{a: .inf}}}}", "BAD_VALUE", "JSON"),
        ("transport: sse, url: 'http://a', image: a", "KEY_NOT_FOR_TRANSPORT", "only for 'stdio'"),
        (f"{_IMAGE}, inherit_env: all", "KEY_WITHOUT_EFFECT", "no effect with 'image'"),
        ("transport: stdio, command: a, podTemplate: {}", "KEY_WITHOUT_EFFECT", "without 'image'"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(entry: str, reason: str, said: str) -> None:
    (issue,) = parse(entry).issues

    assert issue.reason == reason
    assert said in issue.message


def test_a_template_is_bounded() -> None:
    (issue,) = parse(f"{_IMAGE}, podTemplate: {{spec: {{a: {'x' * 65_536}}}}}").issues

    assert "longer than 65536 characters" in issue.message


def test_a_credential_in_a_template_is_told() -> None:
    entry = f"{_IMAGE}, podTemplate: {{metadata: {{annotations: {{api_token: ghp_{'k7' * 18}}}}}}}"

    assert [each.reason for each in parse(entry).issues] == ["LITERAL_CREDENTIAL"]
