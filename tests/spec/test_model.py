"""Launch and exposure hashes of a spec."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from leaseway.spec.auth import Auth
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.keys import Key, keys_of
from leaseway.spec.kinds.builtin import Builtin
from leaseway.spec.kinds.http_api import Credential
from leaseway.spec.kinds.registered import RegisteredPart
from leaseway.spec.kinds.table import PARTS, server_spec
from leaseway.spec.model import Part, Transform, VariantKey
from leaseway.spec.references import Value

SPEC = server_spec(
    VariantKey("time"),
    "stdio",
    command="serve",
    tools=NameFilter(("a*",)),
    transforms=(Transform("prefix", "time_"),),
)


@pytest.mark.parametrize("key", ["tools", "prompts", "resources"])
def test_a_filter_changes_the_exposure_hash_only(key: str) -> None:
    changed = replace(SPEC, **{key: NameFilter((), ("b*",))})  # type: ignore[arg-type]
    assert changed.launch_hash == SPEC.launch_hash
    assert changed.exposure_hash != SPEC.exposure_hash


def test_filters_of_prompts_and_resources_have_different_hashes() -> None:
    rules = NameFilter(("a*",))
    prompts, resources = replace(SPEC, prompts=rules), replace(SPEC, resources=rules)
    assert prompts.exposure_hash != resources.exposure_hash


def with_text(kind: type[Part], key: Key, text: str) -> Part:
    """Return a part with a text in one key, if it takes texts."""
    literal = Value("literal", text)
    odd: dict[str, Any] = {
        "auth": Auth("client_credentials", values={"client_id": literal}),
        "config": f'{{"a": "{text}"}}',
        "security": {"a": Credential("bearer", "", literal)},
        "http_tools": (),
    }
    usual: dict[type, Any] = {str: text, tuple: (text,), dict: {"a": literal}}
    value: Any = odd.get(key.name, usual.get(type(key.value), key.value))
    field, _, inner = key.path.partition(".")
    return kind(**{field: Builtin(**{inner: value}) if inner else value})


@pytest.mark.parametrize("kind", [*PARTS, RegisteredPart], ids=lambda kind: kind.__name__)
def test_a_part_lists_the_texts_of_each_key_in_which_a_worker_replaces_names(
    kind: type[Part],
) -> None:
    for key in keys_of(kind):
        part = with_text(kind, key, "${A}")
        literals = [path for path, value in part.values.items() if value.kind == "literal"]
        paths = [*literals, *(path for path, text in part.texts if text)]
        listed = any(re.fullmatch(rf"{key.name}([.\[].*)?", path) for path in paths)
        lent = "${A}" in part.lease_texts
        assert (listed or lent) is (key.replaces != "nothing"), key.name
        assert lent is (key.replaces == "lease_names"), key.name
