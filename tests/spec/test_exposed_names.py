"""From a server's own names to those that models can be given (design.md#configuration)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.spec.exposed_names import exposed_name, exposed_names
from leaseway.spec.model import Transform
from leaseway.wire.names import MAX_ORIGINAL_NAME, is_valid_name, is_valid_original_name

PREFIX = (Transform("prefix", "w_"),)
_DIGEST = "_[0-9a-f]{8}"


@pytest.mark.parametrize(
    ("original", "pattern"),
    [
        ("get_weather", "get_weather"),
        ("Get Weather", "Get_Weather"),
        ("db:query", "db_query"),
        ("files/read.now", "files_read_now"),
        ("@scope/tool (v2)", "_scope_tool__v2_"),
        (" now ", "_now_"),
        ("Köln für alle", f"Koln_fur_alle{_DIGEST}"),
        ("Ko\u0308ln", f"Koln{_DIGEST}"),
        ("查询天气", f"_{_DIGEST}"),
        ("🌤 weather", f"__weather{_DIGEST}"),
        ("x" * 64, "x{64}"),
        ("x" * 65, f"x{{55}}{_DIGEST}"),
    ],
)
def test_a_name_is_altered_until_models_can_be_given_it(original: str, pattern: str) -> None:
    name = exposed_name(original, ())
    assert re.fullmatch(pattern, name), name
    assert is_valid_name(name)
    assert exposed_names([original, "another", "x y"], ())[original] == name


def test_names_never_change() -> None:
    """Grants of clients and prompts of users name tools: a new version keeps each name."""
    names = [exposed_name(name, PREFIX) for name in ("查询天气", "x" * 70, "naïve")]
    assert names == ["w___22cf3c76", f"w_{'x' * 53}_c71bd109", "w_naive_f86fd89d"]


def test_transforms_see_the_servers_spelling() -> None:
    steps = (Transform("replace", "query", "查询"), Transform("replace", "_weather", "天气"))
    assert exposed_name("查询天气", steps) == "query_weather"


def test_spellings_of_one_text_are_different_names() -> None:
    composed, decomposed = "K\u00f6ln", "Ko\u0308ln"
    assert len(set(exposed_names([composed, decomposed], ()).values())) == 2


def test_of_altered_names_that_become_the_same_each_has_a_digest() -> None:
    names = exposed_names(["get weather", "get:weather", "get.rain"], ())
    assert names["get.rain"] == "get_rain"
    both = {names["get weather"], names["get:weather"]}
    assert len(both) == 2
    assert all(re.fullmatch(f"get_weather{_DIGEST}", name) for name in both)


def test_an_altered_name_gives_way_to_one_that_was_not() -> None:
    names = exposed_names(["get weather", "get_weather"], ())
    assert names["get_weather"] == "get_weather"
    assert re.fullmatch(f"get_weather{_DIGEST}", names["get weather"])
    (name,) = exposed_names(["get weather"], (), {"get_weather"}).values()
    assert name == names["get weather"]


@given(st.lists(st.text(min_size=1, max_size=70), max_size=8), st.sampled_from([(), PREFIX]))
def test_every_name_that_a_server_may_list_gets_a_valid_one(
    originals: list[str], transforms: tuple[Transform, ...]
) -> None:
    usable = [name for name in originals if is_valid_original_name(name)]
    names = exposed_names(usable, transforms)
    assert names == exposed_names(reversed(usable), transforms)
    assert all(map(is_valid_name, names.values()))
    assert len(set(names.values())) == len(set(usable))


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("查" * MAX_ORIGINAL_NAME, True),
        ("x" * (MAX_ORIGINAL_NAME + 1), False),
        ("", False),
        (" ", True),
        ("Get Weather", True),
        ("👩\u200d💻", True),
        ("a\nb", False),
        ("a\x7fb", False),
        ("a\u202eb", False),
        ("a\ud800", False),
    ],
)
def test_a_server_may_list_any_short_text_that_controls_nothing(name: str, valid: bool) -> None:
    assert is_valid_original_name(name) is valid
