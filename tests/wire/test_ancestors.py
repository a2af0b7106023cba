"""The mark by which a Leaseway finds out that it was started by itself."""

from pathlib import Path

from leaseway.wire.channels import ancestors
from leaseway.wire.channels.endpoint import Endpoint


def test_a_leaseway_finds_itself_among_its_ancestors(tmp_path: Path) -> None:
    own = ancestors.of_files([tmp_path / "a.json", tmp_path / "b.yaml"])
    same = ancestors.of_files([tmp_path / "x" / ".." / "b.yaml", tmp_path / "a.json"])
    other = ancestors.of_files([tmp_path / "a.json"])
    at = ancestors.of_address(Endpoint("127.0.0.1", 7600))
    assert own == same
    below = ancestors.extended(ancestors.extended({}, own), at)
    assert ancestors.contains(below, own)
    assert ancestors.contains(below, at)
    assert not ancestors.contains(below, other)
    assert not ancestors.contains({}, own)
    assert ancestors.inherited(below | {"A": "1"}) == below
    assert ancestors.inherited({}) == {}


def test_only_a_few_different_ones_may_run_within_one_another(tmp_path: Path) -> None:
    tokens = [ancestors.of_files([tmp_path / str(n)]) for n in range(ancestors.MAX_DEPTH + 1)]
    environment: dict[str, str] = {}
    for token in tokens[:-1]:
        assert not ancestors.contains(environment, token)
        environment = ancestors.extended(environment, token)
    assert ancestors.contains(environment, tokens[-1])


def test_a_link_in_a_circle_is_a_name_like_others(tmp_path: Path) -> None:
    circle = tmp_path / "mcp.yaml"
    circle.symlink_to(circle.name)
    assert ancestors.of_files([circle]) != ancestors.of_files([tmp_path / "other.yaml"])
