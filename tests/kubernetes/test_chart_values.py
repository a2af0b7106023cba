"""Values of the chart that are odd, missing, or in conflict with what the chart sets itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from tests.kubernetes.chart import of_kind, render
from tests.kubernetes.cluster import CHART

from leaseway.cli.commands.running.planes import control_plane, worker
from leaseway.cli.options.audit import POLICIES
from leaseway.data_plane.audit.sinks.addresses import SCHEMES
from leaseway.wire.text.sizes import SIZE_PATTERN

_TLS = ("--set=tls.certManager.enabled=true", "--set-string=tls.certManager.issuerRef.name=1")


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def sections(found: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the values that are objects with values of their own, by their paths."""
    for name, value in found.items():
        if (
            isinstance(value, dict)
            and value
            and name not in ("compute", "default", "seccompProfile")
        ):
            at = f"{path}.{name}".lstrip(".")
            yield at, value
            yield from sections(value, at)


def refusal(helm: str, *options: str) -> str:
    outcome = subprocess.run(
        [helm, "template", "leaseway", str(CHART), *options],
        check=False,
        capture_output=True,
        text=True,
    )
    assert outcome.returncode != 0
    return outcome.stderr


def pod(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (
        manifest["spec"]["template"]["spec"]
        for manifest in of_kind(objects, "Deployment")
        if manifest["metadata"]["name"] == name
    )
    return dict(found)


def test_texts_that_yaml_takes_for_other_types_stay_texts(helm: str) -> None:
    texts = (
        *("nameOverride=1", "fullnameOverride=y", "key.existingSecret=1", "key.secretKey=1e3"),
        *("key.sealKey=on", "serviceAccount.name=1", "image.repository=1", "front.tenant=a: b # c"),
        *("controlPlane.store.existingSecret=1", "telemetry.otlpHeaders.existingSecret=1"),
        *("workers.y.secretFiles={1}", "workers.1.audit.credentials=1", "workers.1.image=no"),
        *("workers.1.audit.sink=nats://nats/A/b", "tls.certManager.dnsNames={*.example.com}"),
    )
    options = [f"--set-string={text}" for text in texts]
    flags = ("--set=front.enabled=true", "--set=serviceMonitor.enabled=true")
    objects = render(helm, *options, *flags, *_TLS, "--namespace=1")

    for manifest in objects:
        if manifest["kind"] not in ("Certificate", "ServiceMonitor"):
            kubernetes_validate.validate(manifest, "1.34", strict=True)
    (certificate,) = of_kind(objects, "Certificate")
    assert certificate["metadata"]["name"] == "y"
    assert certificate["spec"]["issuerRef"]["name"] == "1"
    assert certificate["spec"]["dnsNames"][-1] == "*.example.com"
    (monitor,) = of_kind(objects, "ServiceMonitor")
    credentials = monitor["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert (monitor["metadata"]["name"], credentials) == ("y", {"name": "1", "key": "1e3"})
    assert "--tenant=a: b # c" in pod(objects, "y-front")["containers"][0]["args"]


def test_values_replace_what_the_chart_sets_under_the_same_name(helm: str) -> None:
    # The API refuses two items with one key in a server-side apply, as of Helm 4 and Flux.
    spread = {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    port = {"name": "http", "containerPort": 7680, "protocol": "TCP"}
    own: dict[str, Any] = {
        "env": [
            {"name": "LEASEWAY_TLS_CERT", "value": "/own/tls.crt"},
            {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://own:4317"},
        ],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
        "volumeMounts": [{"name": "own", "mountPath": "/tmp"}],
        "podSpec": {
            "volumes": [{"name": "tls", "secret": {"secretName": "own"}}],
            "topologySpreadConstraints": [{**spread, "maxSkew": 5}],
            "containers": [{"name": "front", "ports": [port]}],
        },
    }
    chart = ("--set=front.enabled=true", "--set=telemetry.otlpEndpoint=http://chart:4317", *_TLS)
    objects = render(helm, *chart, f"--set-json=front={json.dumps(own)}")

    front = pod(objects, "leaseway-front")
    (container,) = front["containers"]
    for items, key in (
        (container["env"], ("name",)),
        (container["volumeMounts"], ("mountPath",)),
        (front["volumes"], ("name",)),
        (front["topologySpreadConstraints"], ("topologyKey", "whenUnsatisfiable")),
    ):
        keys = [tuple(item[name] for name in key) for item in items]
        assert len(keys) == len(set(keys))
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["LEASEWAY_TLS_CERT"] == "/own/tls.crt"
    assert variables["LEASEWAY_TLS_KEY"] == "/run/tls/tls.key"
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://own:4317"
    assert {"name": "own", "mountPath": "/tmp"} in container["volumeMounts"]
    assert container["ports"] == [port]
    for volume in (*own["volumes"], *own["podSpec"]["volumes"]):
        assert volume in front["volumes"]
    assert len(front["topologySpreadConstraints"]) == 2
    assert {**spread, "maxSkew": 5} in front["topologySpreadConstraints"]


def test_keda_counts_only_the_workers_of_its_pool(helm: str) -> None:
    scaled = ("--set=workers.gpu.autoscaling.kind=keda", "--set=workers.gpu-big.replicas=1")
    (made,) = of_kind(render(helm, *scaled), "ScaledObject")

    for trigger in made["spec"]["triggers"]:
        assert 'pod=~"leaseway-worker-gpu-.*"' in trigger["metadata"]["query"]
        assert 'pod!~"leaseway-worker-gpu-big-.*"' in trigger["metadata"]["query"]


def test_keda_removes_workers_as_slowly_as_an_hpa(helm: str) -> None:
    def behavior(kind: str, manifest: str) -> Any:
        (made,) = of_kind(render(helm, f"--set=workers.a.autoscaling.kind={kind}"), manifest)
        advanced = made["spec"].get("advanced", {})
        return advanced.get("horizontalPodAutoscalerConfig", made["spec"])["behavior"]

    assert behavior("keda", "ScaledObject") == behavior("hpa", "HorizontalPodAutoscaler")


def test_no_two_long_names_become_the_same(helm: str) -> None:
    pools = (
        "--set=workers.browser-automation-a.replicas=1,workers.browser-automation-b.replicas=1",
    )
    long = "the-release-of-a-customer-with-a-long-name-team"

    names = [
        deployment["metadata"]["name"]
        for team in ("a", "b")
        for deployment in of_kind(
            render(helm, *pools, f"--set=fullnameOverride={long}-{team}"), "Deployment"
        )
    ]

    assert len(set(names)) == len(names) == 8
    # A pod has at most 58 characters of the name of its ReplicaSet, which KEDA's query looks for.
    assert all(len(name) < 58 for name in names)


def test_a_new_version_of_the_chart_alone_replaces_no_pod(helm: str, tmp_path: Path) -> None:
    chart = tmp_path / "leaseway"
    shutil.copytree(CHART, chart)
    about = chart / "Chart.yaml"
    about.write_text(re.sub(r"(?m)^version: .*", "version: 99.0.0", about.read_text()))

    def templates(folder: Path) -> list[Any]:
        made = subprocess.run(
            [helm, "template", "leaseway", str(folder), "--set=front.enabled=true"],
            check=True,
            capture_output=True,
            text=True,
        )
        objects = [found for found in yaml.safe_load_all(made.stdout) if found]
        return [found["spec"]["template"] for found in of_kind(objects, "Deployment")]

    assert templates(chart) == templates(CHART)


def test_a_tenant_of_any_name_has_its_file(helm: str) -> None:
    tenants = {"acme": "a", "joe@example.com": "b", "Über uns": "c"}
    given = f"--set-json=controlPlane.config.tenants={json.dumps(tenants)}"
    objects = render(helm, given)

    (config,) = of_kind(objects, "ConfigMap")
    kubernetes_validate.validate(config, "1.34", strict=True)
    (volume,) = (
        volume
        for volume in pod(objects, "leaseway-control-plane")["volumes"]
        if volume["name"] == "config"
    )
    items = volume["projected"]["sources"][0]["configMap"]["items"]
    files = {item["path"]: config["data"][item["key"]] for item in items}
    assert files == {f"tenants/{name}.yaml": content for name, content in tenants.items()}
    assert "tenant.acme.yaml" in config["data"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("controlPlane.port=9464", "controlPlane.port and controlPlane.metricsPort are the same"),
        ("workers.a.metricsPort=7610", "front.port of the worker pool a are not different"),
        (
            "front.enabled=true,front.inWorkers=true,front.port=7610",
            "front.port of the worker pool default are not different",
        ),
        (
            "workers.a.autoscaling.kind=hpa,workers.a.autoscaling.minReplicas=11",
            "pool a: minReplicas is greater than maxReplicas",
        ),
        ("workers.a.autoscaling.minReplicas=0", "minimum: got 0, want 1"),
        ("workers.a.labels.pool=b", "labels of the worker pool a have `pool`"),
        ("controlPlane.config.tenants.a/b=x", "invalid propertyName 'a/b'"),
        ("fullnameOverride=Tools.Prod", "/fullnameOverride"),
        ("serviceMonitor.interval=30s now", "/serviceMonitor/interval"),
    ],
)
def test_a_value_that_no_cluster_can_use_is_refused(helm: str, option: str, message: str) -> None:
    assert message in refusal(helm, f"--set={option}")


def test_a_value_that_the_chart_needs_is_refused_by_its_name_if_it_is_null(helm: str) -> None:
    found = (CHART / "templates" / "_helpers.tpl").read_text()
    listed = found.partition('define "leaseway.needed" -}}')[2].partition("{{- end }}")[0]
    needed: dict[str, list[str]] = {}
    empty: list[str] = []
    for path, section in [("", values()), *sections(values())]:
        needed[path] = []
        for name, value in section.items():
            if value in ("", [], {}):
                empty.append(f"{path}.{name}".lstrip("."))
            elif not isinstance(value, dict) and path != "podSecurityContext":
                needed[path].append(name)  # null removes a key of podSecurityContext
        needed[path] = [name for name in needed[path] if name != "replicas"]
    assert yaml.safe_load(listed) == needed

    for path in ("ipFamily", "tls", "front.service", "workerDefaults.port", "image.repository"):
        stderr = refusal(helm, f"--set-json={path}=null")
        assert f"{path} has no value" in stderr
        assert "--reset-then-reuse-values" in stderr
    # What is empty by default may as well be null.
    options = [
        f"--set-json={path}=null"
        for path in empty
        if not path.startswith("workers.") and "issuerRef" not in path
    ]
    for manifest in render(helm, *options, "--set=front.enabled=true"):
        kubernetes_validate.validate(manifest, "1.34", strict=True)


def test_replicas_may_be_left_to_an_autoscaler_of_ones_own(helm: str) -> None:
    for component in ("front", "workerDefaults", "workers.default", "controlPlane"):
        options = ("--set=front.enabled=true", f"--set-json={component}.replicas=null")
        deployments = of_kind(render(helm, *options), "Deployment")
        counts = [deployment["spec"].get("replicas") for deployment in deployments]
        assert sorted(counts, key=str) == [2, 2, None]


@pytest.mark.parametrize(
    ("command", "option", "path"),
    [
        (control_plane, "leader_lease_duration", "controlPlane.leaseDuration"),
        (control_plane, "expect_workers", "controlPlane.expectWorkers"),
        (worker, "capacity", "workers.capacity"),
    ],
)
def test_the_schema_has_the_range_of_the_option(
    command: click.Command, option: str, path: str
) -> None:
    (kind,) = (parameter.type for parameter in command.params if parameter.name == option)
    assert isinstance(kind, click.IntRange)
    section, name = path.split(".")
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = schema["$defs"]["pool"] if section == "workers" else schema["properties"][section]
    value = found["properties"][name]
    assert (value["minimum"], value["maximum"]) == (kind.min, kind.max)


def test_the_schema_accepts_of_an_audit_what_the_options_accept() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    audit = schema["$defs"]["pool"]["properties"]["audit"]["properties"]
    assert audit["sink"]["pattern"] == f"^$|^({'|'.join(SCHEMES)})://[^@?#]+$"
    assert audit["policy"]["enum"] == list(POLICIES)
    assert audit["space"]["pattern"] == f"^{SIZE_PATTERN}$"
