"""The prompts, resources and templates in which an instance differs."""

from __future__ import annotations

import re

import msgspec
import pytest

from leaseway.data_plane.core.ports import ListedPromptsResources
from leaseway.data_plane.core.tools.own_items import OwnPromptsResources, own_prompts_resources
from leaseway.data_plane.core.tools.prompts_resources import CompiledPromptsResources
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.filters.uris import UriFilter
from leaseway.spec.model import NameRules, Transform
from leaseway.wire import bounds
from leaseway.wire.names import ORIGINAL_NAME_RULE

RULES = NameRules(
    transforms=(Transform("prefix", "s_"),), prompts=NameFilter(blacklist=("secret*",))
)


def prompt(name: str, *arguments: str, **members: object) -> bytes:
    listed = [{"name": argument} for argument in arguments]
    return msgspec.json.encode({"name": name, "arguments": listed, **members})


def resource(uri: str, **members: object) -> bytes:
    return msgspec.json.encode({"uri": uri, "name": uri, **members})


def template(text: str) -> bytes:
    return msgspec.json.encode({"uriTemplate": text, "name": text})


COMMON = CompiledPromptsResources(
    prompts={"a": "s_a", "b": "s_b"},
    recorded_prompts=(prompt("a", "x"), prompt("b"), prompt("secret")),
    recorded_resources=(resource("x:a"), resource("x:b"), resource("secret:a")),
    recorded_templates=(template("x:{a}"),),
    uris=UriFilter.from_names(NameFilter(blacklist=("secret:*",))),
)
SAME = ListedPromptsResources(
    COMMON.recorded_prompts, COMMON.recorded_resources, COMMON.recorded_templates
)


def differing(
    *prompts: bytes, resources: tuple[bytes, ...] = (), templates: tuple[bytes, ...] = ()
) -> OwnPromptsResources:
    listed = ListedPromptsResources(prompts, resources, templates)
    own = own_prompts_resources(COMMON, listed, RULES)
    assert own is not None
    return own


def test_texts_and_order_are_no_difference() -> None:
    listed = ListedPromptsResources(
        (prompt("secret"), prompt("b", description="Other words."), prompt("a", "x")),
        (resource("x:b"), resource("secret:a"), resource("x:a", title="Other")),
        COMMON.recorded_templates,
    )
    assert own_prompts_resources(COMMON, listed, RULES) is None


@pytest.mark.parametrize("rules", [None, NameRules()], ids=["none", "of an older sender"])
def test_without_rules_nothing_is_exposed(rules: NameRules | None) -> None:
    assert own_prompts_resources(COMMON, ListedPromptsResources(), rules) is None
    assert own_prompts_resources(COMMON, None, RULES) is None


def test_what_an_instance_adds_changes_and_takes_away_is_its_own() -> None:
    added = prompt("new"), prompt("secret_too"), prompt("a", "y")
    own = differing(
        *added,
        resources=(resource("x:new"), resource("secret:new"), resource("x:b", mimeType="a/b")),
        templates=(template("x:{b}"), template("secret:{a}")),
    )
    assert {name: shown for name, (shown, _) in own.prompts.changed.items()} == {
        "a": "s_a",
        "new": "s_new",
    }
    assert own.prompts.absent == ("b",)
    assert own.compiled.prompts == {"a": "s_a", "new": "s_new"}
    assert (list(own.resources.changed), own.resources.absent) == (["x:b", "x:new"], ("x:a",))
    assert (list(own.templates.changed), own.templates.absent) == (["x:{b}"], ("x:{a}",))
    assert own.has_uri("x:new")
    assert own.has_uri("x:other")
    assert not own.has_uri("y:other")


def test_a_prompt_that_its_client_has_never_seen_can_be_requested() -> None:
    listed = ListedPromptsResources((prompt("a", "x"),), SAME.resources, SAME.templates)
    own = own_prompts_resources(COMMON, listed, RULES, frozenset({"b"}))
    assert own is not None
    assert own.prompts.absent == ("b",)
    assert own.compiled.prompts == {"a": "s_a", "b": "s_b"}


def test_a_name_that_cannot_be_exposed_is_skipped_with_a_reason() -> None:
    (skipped,) = differing(prompt("é\t"), prompt("c")).skipped
    assert ORIGINAL_NAME_RULE in skipped


def test_a_name_that_is_none_for_models_is_altered_and_gives_way_to_recorded_ones() -> None:
    own = differing(*COMMON.recorded_prompts, prompt("c d"), prompt("b\u0301"), prompt("s b"))
    names = {original: name for original, (name, _) in own.prompts.changed.items()}
    assert names["c d"] == "s_c_d"
    assert re.fullmatch("s_b_[0-9a-f]{8}", names["b\u0301"])
    assert own.skipped == ()


def test_a_lease_has_a_bounded_number_of_own_items() -> None:
    many = tuple(resource(f"x:{number:05}") for number in range(bounds.MAX_LEASE_TOOLS + 1))
    own = differing(resources=many)
    assert len(own.resources.changed) == bounds.MAX_LEASE_TOOLS
    assert "at most 1000 of them" in own.skipped[0]
    large = tuple(resource(f"x:{number}", text="x" * 600_000) for number in range(2))
    own = differing(resources=large)
    assert len(own.resources.changed) == 1
    assert "more than 1048576 bytes" in own.skipped[0]


def test_a_caller_sees_what_it_may_read() -> None:
    own = differing(prompt("new"), resources=(resource("x:new"), resource("y:new")))
    assert own.seen_by(lambda _uri: True).digest == own.digest
    some = own.seen_by(lambda uri: uri.startswith("y:"))
    assert (list(some.resources.changed), some.resources.absent) == (["y:new"], ())
    assert some.digest not in ("", own.digest)
