"""A file's tree: what is called `.json` is JSON, everything else is YAML."""

from __future__ import annotations

from pathlib import PurePath

from leaseway.control_plane.config.tree.json_tree import BadJson, load_json
from leaseway.control_plane.config.tree.yaml_tree import Tree, load_tree


def is_json(path: str) -> bool:
    return PurePath(path).name.endswith((".json", ".jsonc"))


def load_file(text: str, path: str = "") -> Tree | None:
    """Return a file's tree, or None where it is YAML that holds nothing but comments.

    Raises:
        BadText: It is not what its name says.
    """
    if is_json(path):
        return load_json(text, path)
    if text.lstrip().startswith('{"'):
        # Nearly all JSON is YAML; what is not (a tab between values) is meant all the same.
        try:
            return load_json(text, path)
        except BadJson:
            return load_tree(text, path)
    return load_tree(text, path)
