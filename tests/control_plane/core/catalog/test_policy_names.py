"""Names in policies of which a server lists nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control_plane.core.builders import spec

from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.catalog.variants import build_good
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import Transform
from leaseway.spec.policy import ArgumentRule, CallLimits, Grant, Quota, Rate, ServerPolicy


def item(name: str) -> ListedItem:
    return ListedItem(name, b'{"name":"%b"}' % name.encode())


LISTING = ServerListing(
    (item("transfer"), item("balance"), item("rm all"), item("db:query")),
    "2025-11-25",
    prompts=(item("greet"),),
    resources=(item("docs:greet"),),
)
HOURLY = CallLimits(Rate(1, 3_600.0))


def warned(policy: ServerPolicy) -> list[str]:
    bank = replace(
        spec("bank"), policy=policy, transforms=(Transform("prefix", "bank_"),), tools=NameFilter()
    )
    found: list[list[str]] = []
    for _ in range(2):  # what the listing remembers hides no warning
        _, problems = build_good(bank, LISTING)
        found.append([one.message for one in problems if one.reason == "POLICY_NAMES_NO_TOOL"])
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (ServerPolicy(risks=(("tranfer", "financial"),)), "'risk' names 'tranfer'"),
        (ServerPolicy(risks=(("tranfer", "financial"),)), "Did you mean 'transfer'?"),
        (
            ServerPolicy(risks=(("bank_transfer", "financial"),)),
            "'bank_transfer' is the name of 'transfer' after transforms",
        ),
        (
            ServerPolicy(risks=(("bank_*", "financial"),)),
            "is the name of 'balance' after transforms; write the server's own names",
        ),
        (ServerPolicy(quota=Quota(tools=(("blance", HOURLY),))), "'quota.tools' names 'blance'"),
        (ServerPolicy(rules=(ArgumentRule("true", ("transfr",)),)), "rule 1 names 'transfr'"),
        (ServerPolicy(rules=(ArgumentRule('tool == "pay"'),)), "rule 1 names 'pay'"),
        (ServerPolicy(rules=(ArgumentRule('tool == "Pay (now)"'),)), "rule 1 names 'Pay (now)'"),
        (ServerPolicy(rules=(ArgumentRule("'pay' != tool"),)), "rule 1 names 'pay'"),
        (ServerPolicy(rules=(ArgumentRule('tool == "db:qury"'),)), "Did you mean 'db:query'?"),
        (
            ServerPolicy(rules=(ArgumentRule('tool in ["balance", "pay"]'),)),
            "rule 1 names 'pay'",
        ),
        (
            ServerPolicy(rules=(ArgumentRule("""tool in ['balance', "pay [now]"]"""),)),
            "rule 1 names 'pay [now]'",
        ),
        (
            ServerPolicy(grants={"acme": Grant(NameFilter(blacklist=("tranfer",)))}),
            "the grant of tenant 'acme' names 'tranfer'",
        ),
        (
            ServerPolicy(grants={"acme": Grant(agents={"bot": NameFilter(("pay",))})}),
            "the grant of agent 'bot' of tenant 'acme' names 'pay'",
        ),
    ],
)
def test_a_name_of_nothing_that_is_listed_is_a_warning(policy: ServerPolicy, says: str) -> None:
    [message] = warned(policy)
    assert says in message


def test_listed_names_those_of_resources_and_patterns_for_later_tools_are_no_warning() -> None:
    rules = (
        ArgumentRule('tool == "balance"', ("transfer", "greet")),
        ArgumentRule('tool in ["greet", "note://a"]', ("note://*", "urn:isbn:1", "docs:greet")),
    )
    agents = {"none": None, "some": NameFilter(("b*",)), "most": NameFilter((), ("rm_all", "rm-*"))}
    grants = {"acme": Grant(NameFilter(("transfer",)), agents)}
    policy = ServerPolicy(
        grants=grants,
        quota=Quota(tools=(("*", HOURLY),)),
        risks=(("transfer", "financial"), ("delete_*", "financial")),
        rules=rules,
    )
    assert not warned(policy)


def test_a_server_that_lists_nothing_yet_is_not_warned_of() -> None:
    bank = replace(spec("bank"), policy=ServerPolicy(risks=(("pay", "financial"),)))
    assert not build_good(bank, ServerListing())[1]
