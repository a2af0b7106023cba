"""Snapshots of variants of many tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control_plane.core.builders import listing, spec

from leaseway.control_plane.core.catalog import snapshot as module
from leaseway.control_plane.core.catalog.exposure import ClashResult, resolve_clashes
from leaseway.control_plane.core.catalog.kinds import NamedKind
from leaseway.control_plane.core.catalog.snapshot import build_snapshot
from leaseway.control_plane.core.catalog.variants import LastKnownGood, build_good, serve
from leaseway.spec.model import VariantKey


def good(server_id: str, tenant: str, prefix: str, *tools: str) -> LastKnownGood:
    wanted = replace(spec(server_id, prefix=prefix), key=VariantKey(server_id, tenant))
    return build_good(wanted, listing(*tools))[0]


VARIANTS = st.dictionaries(
    st.builds(VariantKey, st.sampled_from("abcd"), st.sampled_from(["", "t", "u"])),
    st.tuples(st.sampled_from(["", "p_"]), st.sets(st.sampled_from("xyz"), max_size=3)),
)


@settings(max_examples=200, deadline=None)
@given(VARIANTS)
def test_a_variant_loses_the_names_that_it_loses_among_all_that_its_tenant_sees(
    chosen: Mapping[VariantKey, tuple[str, set[str]]],
) -> None:
    works = {
        key: good(key.server_id, key.tenant, prefix, *sorted(tools))
        for key, (prefix, tools) in chosen.items()
    }
    built, _ = build_snapshot(1, works)
    for key, each_work in works.items():
        seen = {other.server_id: work for other, work in works.items() if not other.tenant}
        seen |= {o.server_id: work for o, work in works.items() if o.tenant == key.tenant}
        skipped = resolve_clashes({name: work.exposed for name, work in seen.items()}).skipped
        assert built.served[key] == serve(each_work, skipped)


def test_a_commit_does_not_resolve_all_names_again_for_each_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved = 0

    def counted(exposures: Mapping[str, Sequence[tuple[str, str]]], kind: NamedKind) -> ClashResult:
        nonlocal resolved
        resolved += sum(map(len, exposures.values()))
        return resolve_clashes(exposures, kind)

    monkeypatch.setattr(module, "resolve_clashes", counted)
    tools = [f"t{number}" for number in range(10)]
    works = {
        VariantKey(name): good(name, "", f"{name}_", *tools)
        for name in (f"s{number:03}" for number in range(300))
    }
    works |= {
        VariantKey("s007", tenant): good("s007", tenant, "s007_", *tools[:5])
        for tenant in (f"t{number:03}" for number in range(100))
    }
    build_snapshot(1, works)
    assert resolved == 300 * 10 + 100 * 5
