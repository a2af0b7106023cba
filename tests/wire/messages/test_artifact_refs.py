"""References to artifacts: unique, with the worker's mark, and never outside their folder."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.messages.artifact_refs import (
    artifact_reference,
    extension_of,
    incarnation_mark,
    is_reference,
    marks_in,
    media_type,
    reference_mark,
)

NOON = 1_780_000_000.25


def made(server: str = "shots", tool: str = "page", mime: str = "image/png", noise: int = 7) -> str:
    mark = incarnation_mark("run-1")
    return artifact_reference(server, tool, mime, mark=mark, stored_at=NOON, noise=noise)


def test_a_reference_contains_server_tool_time_and_type() -> None:
    folder, _, name = made().rpartition("/")
    assert folder == "artifacts/mcp/shots/page"
    assert name.startswith("20260528T202640250Z-")
    assert name.endswith(".png")


def test_the_uuid_has_version_8_and_starts_with_the_mark() -> None:
    text = made(noise=(1 << 80) - 1).rpartition("Z-")[2].removesuffix(".png")
    uuid = UUID(text)
    assert uuid.version == 8
    assert uuid.variant == "specified in RFC 4122"
    assert uuid.hex[:12] == incarnation_mark("run-1") == reference_mark(made())
    assert incarnation_mark("run-2") != incarnation_mark("run-1")


def test_marks_are_found_in_arguments() -> None:
    text = f'{{"files": ["{made()}", "artifacts/mcp/a/b/c.png"], "note": "see {made(noise=9)}"}}'
    assert marks_in(text.encode()) == {incarnation_mark("run-1")}
    assert marks_in(b'{"path": "artifacts/mcp/"}') == frozenset()
    assert marks_in(b"artifacts/mcp/a/b/" * 100_000) == frozenset()  # in a short time


def test_noise_makes_references_unique() -> None:
    assert made(noise=1) != made(noise=2)


@given(st.text(max_size=100), st.text(max_size=100), st.text(max_size=40), st.integers(0, 2**90))
def test_a_reference_stays_in_its_folder_for_any_server_and_tool(
    server: str, tool: str, mime: str, noise: int
) -> None:
    ref = made(server, tool, mime, noise)
    assert is_reference(ref)
    assert ref.count("/") == 4
    assert ".." not in ref


@pytest.mark.parametrize(
    "text",
    [
        "",
        "artifacts/mcp/a/b/../../../etc/passwd",
        "/etc/passwd",
        "artifacts/mcp/../b/20260528T211320250Z-aaaaaaaa-aaaa-8aaa-8aaa-aaaaaaaaaaaa.png",
        "artifacts/mcp/a/b/20260528T211320250Z-aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa.png",
        "artifacts/mcp/a/b/20260528T211320250Z-aaaaaaaa-aaaa-8aaa-8aaa-aaaaaaaaaaaa.png\n",
        "artifacts/mcp/a/b/20260528T211320250Z-aaaaaaaa-aaaa-8aaa-8aaa-aaaaaaaaaaaa.png/x",
        "artifacts/mcp/" + "a" * 300,
    ],
)
def test_other_texts_are_not_references(text: str) -> None:
    assert not is_reference(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image/png", "image/png"),
        (" IMAGE/PNG ; q=1", "image/png"),
        ("image/jpg", "image/jpeg"),
        ("image/svg+xml; charset=utf-8", "image/svg+xml"),
        ("image", ""),
        ("image/png\r\nX-Evil: 1", ""),
        ("", ""),
    ],
)
def test_a_mime_type_is_read_without_case_and_parameters(text: str, expected: str) -> None:
    assert media_type(text) == expected


def test_an_unknown_kind_of_media_ends_in_bin() -> None:
    assert extension_of("image/x-unheard-of") == "bin"
    assert extension_of("audio/mpeg") == "mp3"
