"""The digest of a listing, which decides whether workers get it again."""

from __future__ import annotations

import json

from tests.control_plane.core.builders import listing, recorded

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.wire.messages.mcp import Introduction

TOOLS = listing("now", "zones")


def test_each_list_changes_the_digest() -> None:
    one = recorded("x")
    digests = {
        ServerListing(TOOLS.tools, "v").digest,
        ServerListing((*TOOLS.tools, *one), "v").digest,
        ServerListing(TOOLS.tools, "v", prompts=one).digest,
        ServerListing(TOOLS.tools, "v", resources=one).digest,
        ServerListing(TOOLS.tools, "v", templates=one).digest,
        ServerListing(TOOLS.tools, "v", prompts=one, resources=one).digest,
        ServerListing(TOOLS.tools, "v", prompts=one, templates=one).digest,
        ServerListing(TOOLS.tools, "v", introduction=Introduction("x")).digest,
        ServerListing(TOOLS.tools, "v", introduction=Introduction("", ("x",))).digest,
        ServerListing(TOOLS.tools, "v", introduction=Introduction("x", ("x",))).digest,
        ServerListing(TOOLS.tools, "v", introduction=Introduction("", (), ("logging",))).digest,
    }
    assert len(digests) == 11


def test_the_first_of_two_items_with_one_name_is_used() -> None:
    first, second = (json.dumps({"name": "x", "title": title}).encode() for title in "ab")
    found = ServerListing(
        prompts=(*recorded("x", definition=first), *recorded("x", definition=second))
    )
    assert found.prompts_by_name["x"].definition == first
