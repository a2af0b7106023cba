"""Pages of long lists, and the tokens that lead from one to the next."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.errors import Fault, Reason
from leaseway.wire.listing.pages import PageStart, SortKey, fitting, one_page, page_start

MIB = 1024 * 1024
KEYS = st.lists(st.tuples(st.text(max_size=5), st.text(max_size=3)), unique=True, max_size=12)


@dataclass(frozen=True)
class Asked:
    """A request for a page."""

    page_token: str = ""
    page_size: int = 0


@dataclass(frozen=True)
class Item:
    """Something that has a size."""

    key: SortKey
    size: int = 1

    def ByteSize(self) -> int:
        return self.size


def page(
    items: list[Item], token: str = "", page_size: int = 0, listing: str = "ListThings"
) -> tuple[list[SortKey], str]:
    """Return the keys of a page, and the next one's token."""
    start = page_start(listing, Asked(token, page_size))
    taken, following = one_page(start, ((item.key, item) for item in items), lambda one: one)
    return [entry.key for entry in taken], following


def all_pages(items: list[Item], page_size: int = 0) -> list[list[SortKey]]:
    """Return the keys of all pages."""
    pages, token = [], ""
    while True:
        keys, token = page(items, token, page_size)
        pages.append(keys)
        if not token:
            return pages


@given(KEYS, st.integers(1, 4))
def test_the_pages_of_a_list_are_the_list(keys: list[SortKey], page_size: int) -> None:
    pages = all_pages([Item(key) for key in sorted(keys)], page_size)
    assert [key for page in pages for key in page] == sorted(keys)
    assert all(len(page) == page_size for page in pages[:-1])


@given(KEYS, KEYS, st.integers(1, 3))
def test_unchanged_items_are_listed_once_despite_changes(
    before: list[SortKey], after: list[SortKey], page_size: int
) -> None:
    first, token = page([Item(key) for key in sorted(before)], page_size=page_size)
    seen = list(first)
    while token:
        more, token = page([Item(key) for key in sorted(after)], token, page_size)
        seen += more
    assert len(seen) == len(set(seen))
    if len(first) < len(before):  # another page was read
        assert set(before) & set(after) <= set(seen)


def test_a_page_holds_at_most_a_mebibyte() -> None:
    items = [Item((f"{number:03}",), 100_000) for number in range(25)]
    pages = all_pages(items)
    assert [len(page) for page in pages] == [10, 10, 5]


def test_an_item_larger_than_a_page_has_one_of_its_own() -> None:
    items = [Item(("a",)), Item(("b",), 2 * MIB), Item(("c",))]
    assert all_pages(items) == [[("a",)], [("b",)], [("c",)]]


def test_messages_that_fit_are_the_first_ones_and_at_least_one() -> None:
    half, whole = Item((), MIB // 2), Item((), 2 * MIB)
    assert fitting([half, half, half]) == [half]
    assert fitting([whole, half]) == [whole]
    assert fitting([]) == []


def refused(token: str, listing: str = "ListThings") -> str:
    """Return why a token is refused."""
    with pytest.raises(Fault) as caught:
        page_start(listing, Asked(token))
    assert caught.value.reason is Reason.INVALID_REQUEST
    return caught.value.message


@pytest.mark.parametrize(
    "token", ["garbage", "7", "time_now", "ä", "====", "a" * 3 * MIB, "AAAAAAAAW10=", " "]
)
def test_an_invalid_token_is_rejected(token: str) -> None:
    assert refused(token) == (
        "The page_token is not from ListThings. Send the next_page_token of the previous page "
        "unchanged, or none to start again."
    )


@given(st.text(min_size=1, max_size=40))
def test_no_arbitrary_text_is_a_valid_token(token: str) -> None:
    refused(token)


def test_no_token_starts_the_listing() -> None:
    assert page_start("ListThings", Asked()) == PageStart("ListThings")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_an_altered_token_is_rejected(place: int, change: int) -> None:
    _, token = page([Item(("key", "ü")), Item(("later",))], page_size=1)
    data = bytearray(base64.urlsafe_b64decode(token))
    data[place % len(data)] ^= change
    refused(base64.urlsafe_b64encode(data).decode())


def test_a_token_of_another_listing_is_rejected() -> None:
    _, token = page([Item(("a",)), Item(("b",))], page_size=1)
    assert "ListOthers" in refused(token, "ListOthers")
    assert page([Item(("a",)), Item(("b",))], token) == ([("b",)], "")
