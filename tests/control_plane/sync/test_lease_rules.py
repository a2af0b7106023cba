"""Workers get the rules from which the names of a lease's own tools follow."""

from __future__ import annotations

from dataclasses import replace

from tests.control_plane.core.builders import listing, spec

from leaseway.control_plane.core.catalog.variants import adopt, build_good, relist, serve
from leaseway.control_plane.sync.toolsets import served_from_proto, served_to_proto
from leaseway.spec.codec import name_rules_from_proto
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import NameRules, Transform
from leaseway.v1 import sync_pb2

FILTER = NameFilter(("a*",), ("ab",), NameFilter(blacklist=("ac",)))
OF_PROMPTS = NameFilter(blacklist=("p*",))
LEASED = replace(spec("s", shared=False), tools=FILTER, prompts=OF_PROMPTS)
RULES = NameRules(FILTER, (Transform("prefix", "s_"),), OF_PROMPTS)


def served(shared: bool = False) -> sync_pb2.Upsert:
    one = spec("s") if shared else LEASED
    good, _problems = build_good(one, listing("aa"))
    return served_to_proto(serve(good, frozenset()))


def test_a_leased_server_has_rules_and_a_shared_one_has_none() -> None:
    assert name_rules_from_proto(served().toolset) == RULES
    assert not served(shared=True).toolset.HasField("lease_rules")


def test_rules_that_are_not_understood_are_none() -> None:
    toolset = served().toolset
    toolset.lease_rules.transforms.add(kind="reverse")
    assert name_rules_from_proto(toolset) is None


def test_a_control_plane_without_a_configuration_keeps_the_rules_of_its_workers() -> None:
    held = served()
    adopted = adopt(served_from_proto(held))
    again = served_to_proto(serve(adopted, frozenset()))
    assert again.toolset.lease_rules == held.toolset.lease_rules
    assert again.hashes == held.hashes
    newer, _problems = relist(adopted, listing("aa", "ad"))
    assert newer.lease_rules == RULES


def test_a_worker_that_holds_no_rules_is_sent_them() -> None:
    older = served()
    older.toolset.ClearField("lease_rules")
    adopted = serve(adopt(served_from_proto(older)), frozenset())
    assert adopted.hashes.toolset != served().hashes.toolset_hash
