"""The rights of users of the API."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.cluster import ApiRefused, Cluster


def grant(
    cluster: Cluster, namespace: str, rules: list[dict[str, Any]], user: str = "plane"
) -> None:
    """Grant a user exactly these rights in a namespace."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    try:
        cluster.grant(path, user, [])
    except ApiRefused as refused:
        if refused.code != 409:
            raise
    found = cluster.request("GET", f"{path}/roles/{user}")
    cluster.request("PUT", f"{path}/roles/{user}", {**found, "rules": rules})


def without(rules: list[dict[str, Any]], resource: str, verb: str) -> list[dict[str, Any]]:
    """Return rules that lack one verb of one resource."""
    assert any(resource in rule["resources"] and verb in rule["verbs"] for rule in rules)
    changed = []
    for rule in rules:
        others = [each_resource for each_resource in rule["resources"] if each_resource != resource]
        changed.append({**rule, "resources": others})
        if resource in rule["resources"]:
            verbs = [each_verb for each_verb in rule["verbs"] if each_verb != verb]
            changed.append({**rule, "resources": [resource], "verbs": verbs})
    # The API rejects a rule without verbs.
    return [rule for rule in changed if rule["resources"] and rule["verbs"]]
