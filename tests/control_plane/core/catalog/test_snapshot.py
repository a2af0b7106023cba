"""Snapshots of variants of many tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control_plane.core.builders import listing, spec

from leaseway.control_plane.core.catalog import building, variants
from leaseway.control_plane.core.catalog.building import SnapshotBuilder
from leaseway.control_plane.core.catalog.exposure import ClashResult, Exposure, resolve_clashes
from leaseway.control_plane.core.catalog.kinds import NamedKind
from leaseway.control_plane.core.catalog.listing import ListedItem
from leaseway.control_plane.core.catalog.prompts_resources import expose_recorded
from leaseway.control_plane.core.catalog.variants import LastKnownGood, build_good, serve
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import ServerSpec, VariantKey

listed = cache(listing)  # variants of a server mostly have the same listing, by which they share


def good(server_id: str, tenant: str, prefix: str, *tools: str) -> LastKnownGood:
    wanted = replace(spec(server_id, prefix=prefix), key=VariantKey(server_id, tenant))
    return build_good(wanted, listed(*tools))[0]


VARIANTS = st.dictionaries(
    st.builds(VariantKey, st.sampled_from("abcd"), st.sampled_from(["", "t", "u"]), st.just("")),
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
    built, _ = SnapshotBuilder().build(1, works)
    for tenant in ("", "t", "u"):
        seen = {other.server_id: work for other, work in works.items() if not other.tenant}
        own = {o.server_id: work for o, work in works.items() if o.tenant == tenant}
        found = resolve_clashes({name: work.exposed for name, work in (seen | own).items()})
        for work in own.values():
            assert built.served[work.spec.key] == serve(work, found.skipped)
        tools = built.view(tenant).tools
        owners = {name: (t.served.key.server_id, t.item.original) for name, t in tools.items()}
        assert owners == found.owner


kept = cache(good)  # a variant that has not changed stays the same object


@settings(max_examples=80, deadline=None)
@given(st.lists(VARIANTS, min_size=2, max_size=5), st.sampled_from([(), (VariantKey("a", "t"),)]))
def test_a_commit_after_others_is_what_it_is_alone(
    commits: Sequence[Mapping[VariantKey, tuple[str, set[str]]]], withheld: Sequence[VariantKey]
) -> None:
    builder = SnapshotBuilder()
    for chosen in commits:
        works = {
            key: kept(key.server_id, key.tenant, prefix, *sorted(tools))
            for key, (prefix, tools) in chosen.items()
        }
        held = [key for key in withheld if key not in works]
        assert builder.build(1, works, held) == SnapshotBuilder().build(1, works, held)


def test_a_commit_does_not_resolve_all_names_again_for_each_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved = 0

    def counted(exposures: Mapping[str, Sequence[tuple[str, str]]], kind: NamedKind) -> ClashResult:
        nonlocal resolved
        resolved += sum(map(len, exposures.values()))
        return resolve_clashes(exposures, kind)

    monkeypatch.setattr(building, "resolve_clashes", counted)
    tools = [f"t{number}" for number in range(10)]
    works = {
        VariantKey(name): good(name, "", f"{name}_", *tools)
        for name in (f"s{number:03}" for number in range(300))
    }
    works |= {
        VariantKey("s007", tenant): good("s007", tenant, "s007_", *tools[:5])
        for tenant in (f"t{number:03}" for number in range(100))
    }
    works |= {
        VariantKey("s008", tenant): good("s008", tenant, f"{tenant}_", *tools[:5])
        for tenant in (f"own{number}" for number in range(3))
    }
    SnapshotBuilder().build(1, works)
    assert resolved == 5 + 3 * 5, "once for all tenants whose variants expose the same"


def test_rules_are_applied_once_to_a_listing_that_many_tenants_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applied: list[str] = []

    def counted(wanted: ServerSpec, recorded: Sequence[ListedItem], kind: NamedKind) -> Exposure:
        applied.append(kind.noun)
        return expose_recorded(wanted, recorded, kind)

    monkeypatch.setattr(variants, "expose_recorded", counted)
    one, other = (good("a", tenant, "p_", "v", "w").without_clashes for tenant in ("t", "u"))
    assert applied == ["tool", "prompt"]
    assert one.exposed is other.exposed
    assert one.hashes.toolset == other.hashes.toolset
    assert good("a", "t", "q_", "v", "w").exposed == (("v", "q_v"), ("w", "q_w"))


def test_each_tenant_is_warned_of_what_its_rules_get_wrong() -> None:
    wanted = replace(spec("a"), tools=NameFilter(whitelist=("lost",)))
    for tenant in ("t", "u"):
        of_tenant = replace(wanted, key=VariantKey("a", tenant))
        _, problems = build_good(of_tenant, listed("x"))
        assert {problem.tenant for problem in problems} == {tenant}
