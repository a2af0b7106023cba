"""YAML that is written for readers of YAML 1.1 and of 1.2."""

from typing import Any

import pytest
import yaml

from leaseway.control_plane.config.tree.yaml_tree import load_plain
from leaseway.control_plane.config.tree.yaml_writing import yaml_text

TEXTS = ["08", "017", "0o17", "12e5", "-1E3", "1.e5", "0x1f", "1_000", "yes", "~", ".inf", "1:30"]


@pytest.mark.parametrize("load", [load_plain, yaml.safe_load])
def test_what_is_written_is_read_again(load: Any) -> None:
    content = {"texts": TEXTS, "others": [8, -1, 1.5, 1e300, True, None, "a", {"b": []}]}
    assert load(yaml_text(content)) == content


@pytest.mark.parametrize("text", ["y", "Y", "n", "N"])
def test_what_kubectl_takes_for_a_truth_value_is_quoted(text: str) -> None:
    # PyYAML reads them as texts.
    assert yaml_text({text: text}) == f"'{text}': '{text}'\n"
