"""What a server says about itself, within its bounds."""

from __future__ import annotations

from mcp_types import jsonrpc

from leaseway.wire.bounds import MAX_EXTENSIONS, MAX_INSTRUCTIONS
from leaseway.wire.messages import mcp
from leaseway.wire.messages.mcp import Introduction, admit

UI = "io.modelcontextprotocol/ui"


def test_an_introduction_within_the_bounds_is_admitted_as_it_is() -> None:
    text = "x" * MAX_INSTRUCTIONS
    assert admit(f" {text}\n", (UI, "a", UI)) == (Introduction(text, ("a", UI)), ())


def test_longer_instructions_are_cut_with_a_sentence() -> None:
    said, changed = admit("x" * (MAX_INSTRUCTIONS + 1), ())
    assert said.instructions == "x" * MAX_INSTRUCTIONS
    (sentence,) = changed
    assert f"{MAX_INSTRUCTIONS + 1} characters" in sentence


def test_extensions_that_are_no_identifiers_or_too_many_are_left_out_with_a_sentence() -> None:
    many = [f"x{number:03}" for number in range(MAX_EXTENSIONS)]
    said, changed = admit("", [*many, "y", "", "a b", "x" * 500, "\N{SNOWMAN}"])
    assert said.extensions == tuple(many)
    (sentence,) = changed
    assert sentence.startswith(f"5 of its {MAX_EXTENSIONS + 5} extensions")


def test_capabilities_are_sorted_and_those_of_a_newer_worker_are_left_out() -> None:
    said, changed = admit("", (), ["subscribe", "prompts", "telepathy", "prompts"])
    assert said.capabilities == ("prompts", "subscribe")
    assert not changed


def test_an_introduction_that_says_nothing_is_false() -> None:
    assert not admit(" ", ())[0]
    assert admit("", (UI,))[0]
    assert admit("", (), ("logging",))[0]


def test_codes_equal_those_of_the_official_package() -> None:
    other = {
        "MISSING_CAPABILITY": "MISSING_REQUIRED_CLIENT_CAPABILITY",
        "UNSUPPORTED_VERSION": "UNSUPPORTED_PROTOCOL_VERSION",
    }
    codes = {name: code for name, code in vars(mcp).items() if isinstance(code, int)}
    codes = {name: code for name, code in codes.items() if code < 0}
    assert len(codes) == 8
    assert codes == {name: getattr(jsonrpc, other.get(name, name)) for name in codes}
