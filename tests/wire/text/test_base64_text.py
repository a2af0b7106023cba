"""Base64 in the ways in which servers write it."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.wire.text.base64_text import decoded, looks_standard, standard


@given(st.binary(max_size=300))
def test_each_way_to_write_base64_is_read(content: bytes) -> None:
    for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
        text = encode(content).decode()
        broken = "\n".join(text[at : at + 7] for at in range(0, len(text), 7))
        assert [decoded(way) for way in (text, text.rstrip("="), broken)] == [content] * 3


@given(st.binary(min_size=1, max_size=300))
def test_base64_in_lines_is_taken_for_base64_and_gets_its_usual_form(content: bytes) -> None:
    usual = base64.standard_b64encode(content)
    for way in (usual + b"\n", usual + b"\r\n", b"\n" + usual, base64.encodebytes(content)):
        assert looks_standard(way)
        assert standard(way) == usual


@pytest.mark.parametrize("text", ["x", "AAAAA", "%%%", "AAA=AAAA", "====", "\udc80", "é"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decoded(text)


def test_a_look_at_white_space_takes_no_time() -> None:
    spaces = b" " * 4_095
    began = time.process_time()
    for _ in range(50):
        assert looks_standard(spaces + b"\n")
        assert not looks_standard(spaces + b"!")
    assert time.process_time() - began < 1
