"""The chart and the generated files below deploy/, without an API."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.conftest import ROOT
from tests.kubernetes.chart import of_kind, render
from tests.kubernetes.cluster import CHART, CRDS

from leaseway.wire.bounds import SHUTDOWN_TIMEOUT
from leaseway.wire.channels.endpoint import parse_endpoint

_EVERYTHING = (
    "--set=serviceMonitor.enabled=true",
    "--set=front.enabled=true",
    "--set=front.hosts={mcp.example.com}",
    "--set=serviceMonitor.adapterRules=true",
    "--set=prometheusRule.enabled=true",
    "--set=workers.gpu.autoscaling.kind=hpa",
    "--set=workers.big.autoscaling.kind=keda",
    "--set=workers.big.labels.zone=a",
    "--set=workers.pods.images=true",
    "--set=workers.big.servers={render,batch-*}",
    '--set-json=workers.big.secretFiles=["token"]',
    "--set=workers.big.audit.sink=nats://nats.audit:4222/AUDIT/leaseway",
    "--set=workers.big.audit.credentials=audit",
    "--set=controlPlane.config.system=version: 1\nservers: {}",
    "--set=controlPlane.store.existingSecret=dsn",
    '--set-json=controlPlane.config.tenants={"acme":"version: 1\\nservers: {}\\n"}',
    '--set-json=networkPolicy.clients.namespaceSelector={"matchLabels":{"team":"a"}}',
)
_TLS = ("--set=tls.certManager.enabled=true", "--set=tls.certManager.issuerRef.name=ca")
_OF_OTHERS = ("ServiceMonitor", "PrometheusRule", "ScaledObject", "Certificate")
"""Kinds without a schema in Kubernetes."""


def containers(objects: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for manifest in of_kind(objects, "Deployment"):
        pod = manifest["spec"]["template"]["spec"]
        yield pod, pod["containers"][0]


@pytest.mark.parametrize(
    "options",
    [(), _EVERYTHING, (*_EVERYTHING, *_TLS), (*_EVERYTHING, "--set=front.inWorkers=true")],
    ids=["as it is", "with everything", "with TLS", "with MCP in the workers"],
)
def test_all_objects_of_the_chart_are_valid(helm: str, options: tuple[str, ...]) -> None:
    objects = render(helm, *options)

    assert {"Deployment", "Service", "Role", "NetworkPolicy"} <= {
        manifest["kind"] for manifest in objects
    }
    for manifest in objects:
        if manifest["kind"] not in _OF_OTHERS:
            kubernetes_validate.validate(manifest, "1.34", strict=True)


def test_helm_lint_accepts_the_chart(helm: str) -> None:
    outcome = subprocess.run([helm, "lint", "--strict", str(CHART)], check=False)

    assert outcome.returncode == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("fullnameOverride=,nameOverride=My.App", "set fullnameOverride"),
        ("controlPlane.replica=3", "additional properties 'replica' not allowed"),
        ("workerDefaults.terminationGracePeriodSeconds=10", "minimum: got 10, want 40"),
        ("workers.gpu.capacitty=3", "additional properties 'capacitty' not allowed"),
        ("tls.certManager.enabled=true", "the issuer that signs the certificate"),
        ("workers.big.audit.sink=nats://user:secret@nats/A/b", "/audit/sink"),
        ("workerDefaults.autoscaling.kind=vpa", "/workerDefaults/autoscaling/kind"),
        ("controlPlane.store.volume.enabled=true", "is for one replica"),
        ("front.podLabels.app\\.kubernetes\\.io/name=x,front.enabled=true", "podLabels has app."),
        ("image.repository=r@sha256:ab,image.tag=0.1.0", "image.repository has a digest"),
        ("front.inWorkers=true", "set front.enabled, too"),
        ("tls.existingSecret=mine,tls.certManager.enabled=true", "choose one"),
        ("controlPlane.resources.enabled=false", "nothing configures a server"),
        ("podSecurityContext=null", "--reset-then-reuse-values"),  # as after --reuse-values
        ("front.service=null", "--reset-then-reuse-values"),
        ("workers.a.podAnnotations.prometheus\\.io/scrape=true", "got boolean, want string"),
        ("front.env[0].name=A,front.env[0].value=1", "/front/env/0/value"),
    ],
)
def test_an_invalid_value_is_rejected_by_its_name(helm: str, option: str, message: str) -> None:
    outcome = subprocess.run(
        [helm, "template", "leaseway", str(CHART), "--set", option],
        check=False,
        capture_output=True,
        text=True,
    )

    assert outcome.returncode != 0
    assert message in outcome.stderr


def test_approvals_are_kept_on_a_volume_or_in_a_database(helm: str) -> None:
    volume = ("--set=controlPlane.store.volume.enabled=true", "--set=controlPlane.replicas=1")
    kept = render(helm, *volume)
    [pod] = [pod for pod, container in containers(kept) if container["name"] == "control-plane"]
    assert "--data=/var/lib/leaseway/store" in pod["containers"][0]["args"]
    [claim] = of_kind(kept, "PersistentVolumeClaim")
    kubernetes_validate.validate(claim, "1.34", strict=True)
    named = {each_volume["name"]: each_volume for each_volume in pod["volumes"]}
    assert named["data"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    own = render(helm, *volume, "--set=controlPlane.store.volume.existingClaim=mine")
    assert not of_kind(own, "PersistentVolumeClaim")

    shared = render(helm, "--set=controlPlane.store.existingSecret=dsn")
    [pod] = [pod for pod, container in containers(shared) if container["name"] == "control-plane"]
    assert "--store=file:/run/secrets/leaseway-store/dsn" in pod["containers"][0]["args"]
    assert {"name": "store", "secret": {"secretName": "dsn", "defaultMode": 288}} in pod["volumes"]


def test_what_needs_the_client_of_a_store_runs_the_image_that_has_it(helm: str) -> None:
    stores = ("--set=controlPlane.store.existingSecret=dsn", "--set=workers.s3.audit.sink=s3://b/a")
    other = ("--set=workers.nats.audit.sink=nats://nats/A/b", "--set=workers.own.image=mine:1")
    own = ("--set=workers.own.audit.sink=s3://b/a",)

    def images(*options: str) -> dict[str, str]:
        found = of_kind(render(helm, *stores, *other, *own, *options), "Deployment")
        return {
            made["metadata"]["name"].removeprefix("leaseway-"): made["spec"]["template"]["spec"][
                "containers"
            ][0]["image"]
            for made in found
        }

    assert images() == {
        "control-plane": "leaseway:0.1.0-stores",
        "worker-default": "leaseway:0.1.0",
        "worker-nats": "leaseway:0.1.0",
        "worker-own": "mine:1",
        "worker-s3": "leaseway:0.1.0-stores",
    }
    assert set(images("--set=image.tag=own").values()) == {"leaseway:own", "mine:1"}


def test_every_container_is_unprivileged_and_cannot_write_to_its_image(helm: str) -> None:
    for pod, container in containers(render(helm, *_EVERYTHING)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


_COMPONENTS = ("controlPlane", "workerDefaults", "front")
_POD: dict[str, Any] = {
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "envFrom": [{"secretRef": {"name": "more"}}],
    "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
    "tmp": {"emptyDir": {"sizeLimit": "1Gi"}},
    "podAnnotations": {"team": "a"},
    "podLabels": {"team": "a"},
    "nodeSelector": {"kubernetes.io/arch": "arm64"},
    "tolerations": [{"key": "tools", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podSpec": {
        "priorityClassName": "high",
        "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["mcp.internal"]}],
        "containers": [{"name": "proxy", "image": "proxy:1"}],
        "securityContext": {"supplementalGroups": [7]},
    },
}
"""Values that every component has."""


def test_the_container_of_a_component_may_be_changed(helm: str) -> None:
    for component, name in (
        ("controlPlane", "control-plane"),
        ("workerDefaults", "worker"),
        ("front", "front"),
    ):
        probe = {"timeoutSeconds": 9, "failureThreshold": 6}
        own = {"name": name, "livenessProbe": probe, "args": ["--log-level=debug"]}
        given = json.dumps({"containers": [own, {"name": "proxy", "image": "proxy:1"}]})
        objects = render(
            helm, "--set=front.enabled=true", f"--set-json={component}.podSpec={given}"
        )

        (pod,) = (pod for pod, container in containers(objects) if container["name"] == name)
        assert [container["name"] for container in pod["containers"]] == [name, "proxy"]
        changed = pod["containers"][0]
        assert changed["livenessProbe"].items() > {**probe, "periodSeconds": 10}.items()
        assert changed["args"][0] != "--log-level=debug" == changed["args"][-1]


def test_the_pods_of_all_components_take_the_same_values(helm: str) -> None:
    options = [f"--set-json={component}={json.dumps(_POD)}" for component in _COMPONENTS]
    deployments = of_kind(render(helm, "--set=front.enabled=true", *options), "Deployment")

    assert len(deployments) == len(_COMPONENTS)
    for deployment in deployments:
        kubernetes_validate.validate(deployment, "1.34", strict=True)
        metadata, pod = (deployment["spec"]["template"][part] for part in ("metadata", "spec"))
        container, added = pod["containers"]
        for name in ("nodeSelector", "tolerations", "affinity"):
            assert pod[name] == _POD[name]
        for name in ("env", "envFrom", "volumeMounts"):
            assert _POD[name][-1] == container[name][-1]
        assert {**_POD["tmp"], "name": "tmp"} in pod["volumes"]
        assert _POD["volumes"][0] in pod["volumes"]
        assert metadata["annotations"] == _POD["podAnnotations"]
        assert metadata["labels"].items() > _POD["podLabels"].items()
        assert pod["priorityClassName"] == "high"
        assert pod["hostAliases"] == _POD["podSpec"]["hostAliases"]
        assert added == _POD["podSpec"]["containers"][0]
        assert pod["securityContext"]["supplementalGroups"] == [7]
        assert pod["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize(
    "options",
    [
        ("--api-versions=security.openshift.io/v1",),
        tuple(
            f"--set=podSecurityContext.{key}=null" for key in ("runAsUser", "runAsGroup", "fsGroup")
        ),
    ],
    ids=["on OpenShift", "where the values remove them"],
)
def test_a_cluster_may_choose_the_users_of_all_pods(helm: str, options: tuple[str, ...]) -> None:
    objects = render(helm, *_EVERYTHING, *options)

    pods = [pod for pod, _ in containers(objects)] + [
        manifest["spec"] for manifest in of_kind(objects, "Pod")
    ]
    assert len(pods) > len(_COMPONENTS)
    for pod in pods:
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }


def test_no_pod_gets_variables_of_the_services_of_its_namespace(helm: str) -> None:
    # A Service `leaseway` would set LEASEWAY_PORT, and servers would see what else runs there.
    for pod, _ in containers(render(helm, *_EVERYTHING)):
        assert pod["enableServiceLinks"] is False


def test_a_pod_that_is_not_ready_does_not_hold_up_the_drain_of_its_node(helm: str) -> None:
    budgets = of_kind(render(helm, *_EVERYTHING), "PodDisruptionBudget")

    assert {budget["metadata"]["name"] for budget in budgets} >= {
        "leaseway-control-plane",
        "leaseway-worker-default",
        "leaseway-front",
    }
    for budget in budgets:
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_mesh_that_only_knows_the_pods_of_tcp_services_knows_the_advertised_ports(
    helm: str,
) -> None:
    objects = render(helm, "--set=workers.gpu.port=7611,workers.gpu.metricsPort=9465")
    known = {
        (service["spec"]["selector"]["app.kubernetes.io/component"], port["port"])
        for service in of_kind(objects, "Service")
        for port in service["spec"]["ports"]
        if service["spec"]["clusterIP"] == "None" and port["appProtocol"] == "tcp"
    }
    advertised = {
        (container["name"], int(argument.rpartition(":")[2]))
        for _, container in containers(objects)
        for argument in container["args"]
        if argument.startswith("--advertise=")
    }

    assert advertised == {("control-plane", 7600), ("worker", 7610), ("worker", 7611)}
    assert advertised | {("worker", 9464), ("worker", 9465)} <= known


@pytest.mark.parametrize("tls", [(), _TLS], ids=["http", "https"])
def test_a_front_that_hangs_fails_its_probes(helm: str, tls: tuple[str, ...]) -> None:
    objects = render(helm, "--set=front.enabled=true", *tls)

    (front,) = (container for _, container in containers(objects) if container["name"] == "front")
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        scheme = "HTTPS" if tls else "HTTP"
        assert front[name]["httpGet"] == {"path": "/healthz", "port": "http", "scheme": scheme}


def test_a_front_whose_clients_need_certificates_is_probed_without_one(helm: str) -> None:
    variable = "--set=front.env[0].name=LEASEWAY_TLS_CLIENT_CA,front.env[0].value=/run/tls/ca.crt"
    objects = render(helm, "--set=front.enabled=true", *_TLS, variable)

    (front,) = (container for _, container in containers(objects) if container["name"] == "front")
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert front[name]["tcpSocket"] == {"port": "http"}
        assert "httpGet" not in front[name]


@pytest.mark.parametrize(
    ("options", "image"),
    [
        (("--set=image.repository=r/l@sha256:ab",), "r/l@sha256:ab"),
        (("--set=image.tag=sha256:ab",), "leaseway@sha256:ab"),
        (("--set=image.tag=1@sha256:ab",), "leaseway:1@sha256:ab"),
    ],
)
def test_an_image_may_be_named_by_its_digest(
    helm: str, options: tuple[str, ...], image: str
) -> None:
    stores = "--set=controlPlane.store.existingSecret=dsn"

    assert {c["image"] for _, c in containers(render(helm, stores, *options))} == {image}


def test_a_configuration_is_kept_as_it_is(helm: str, tmp_path: Path) -> None:
    text = "    # indented first\n  version: 1\r\n\tservers: {}\n\n"
    values = {"controlPlane": {"config": {"system": text, "tenants": {"acme": text}}}}
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))

    (kept,) = of_kind(render(helm, f"--values={path}"), "ConfigMap")

    assert kept["data"] == {"system.yaml": text, "tenant.acme.yaml": text}


def test_other_namespaces_and_addresses_may_be_let_in(helm: str) -> None:
    ingress = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
    machines = {"ipBlock": {"cidr": "10.1.0.0/16"}}
    policies = {
        policy["metadata"]["name"]: policy
        for policy in of_kind(
            render(
                helm,
                "--set=front.enabled=true",
                f"--set-json=networkPolicy.clients.others={json.dumps([machines])}",
                f"--set-json=networkPolicy.frontClients={json.dumps([ingress])}",
            ),
            "NetworkPolicy",
        )
    }

    for name, others in (
        ("control-plane", [machines]),
        ("worker", [machines]),
        ("front", [machines, ingress]),
    ):
        policy = policies[f"leaseway-{name}"]
        kubernetes_validate.validate(policy, "1.34", strict=True)
        rules = {rule["ports"][0]["port"]: rule["from"] for rule in policy["spec"]["ingress"]}
        port = "http" if name == "front" else "grpc"
        assert rules[port][-len(others) :] == others
        if name != "front":
            assert rules["metrics"] == [{"podSelector": {}}]


def test_the_jobs_of_all_releases_are_those_of_the_alerts(helm: str) -> None:
    objects = render(helm, "--set=serviceMonitor.enabled=true", "--set=fullnameOverride=prod")
    (monitor,) = of_kind(objects, "ServiceMonitor")
    (rule,) = monitor["spec"]["endpoints"][0]["relabelings"]
    assert rule == {
        "sourceLabels": ["__meta_kubernetes_service_label_app_kubernetes_io_component"],
        "targetLabel": "job",
        "replacement": "leaseway-$1",
    }
    scraped = {
        f"leaseway-{service['metadata']['labels']['app.kubernetes.io/component']}"
        for service in of_kind(objects, "Service")
        if any(port["name"] == "metrics" for port in service["spec"]["ports"])
    }

    known = yaml.safe_load((ROOT / "deploy/observability/prometheus.yaml").read_text())
    assert scraped == {config["job_name"] for config in known["scrape_configs"]}


def test_the_alerts_are_a_resource_of_the_prometheus_operator(helm: str) -> None:
    options = ("--set=prometheusRule.enabled=true", "--set-string=prometheusRule.labels.release=1")
    (rule,) = of_kind(render(helm, *options), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "1"
    assert rule["spec"] == yaml.safe_load((CHART / "alerts.yaml").read_text(encoding="utf-8"))
    (rule,) = of_kind(render(helm, *options, "--set=serviceMonitor.enabled=true"), "PrometheusRule")
    down = rule["spec"]["groups"][0]["rules"][0]["expr"]
    own = 'namespace="apps",service="leaseway-control-plane"'
    assert f'absent(up{{job="leaseway-control-plane",{own}}})' in down


def test_a_name_that_is_too_long_for_a_common_name_is_left_to_the_dns_names(helm: str) -> None:
    name = "a" * 40

    def issued(namespace: str) -> dict[str, Any]:
        options = (f"--set=fullnameOverride={name}", f"--namespace={namespace}")
        (certificate,) = of_kind(render(helm, *_TLS, *options), "Certificate")
        assert f"{name}-control-plane.{namespace}.svc" in certificate["spec"]["dnsNames"]
        return dict(certificate["spec"])

    assert issued("tools")["commonName"] == f"{name}-control-plane.tools.svc"
    assert "commonName" not in issued("tools1")


def test_the_grace_period_of_a_worker_is_longer_than_its_shutdown(helm: str) -> None:
    for pod, container in containers(render(helm, *_EVERYTHING)):
        if container["name"] == "worker":
            assert pod["terminationGracePeriodSeconds"] > SHUTDOWN_TIMEOUT + 5
            runs_pods = "serviceAccountName" in pod
            assert pod["automountServiceAccountToken"] is runs_pods


def test_a_front_in_the_workers_has_their_service_their_time_and_no_deployment(helm: str) -> None:
    objects = render(helm, *_EVERYTHING, "--set=front.inWorkers=true")
    found = {container["name"]: (pod, container) for pod, container in containers(objects)}
    assert "front" not in found
    pod, container = found["worker"]
    assert {"--mcp=0.0.0.0:7680", "--allow-host=mcp.example.com"} <= set(container["args"])
    assert {"name": "mcp", "containerPort": 7680} in container["ports"]
    assert pod["terminationGracePeriodSeconds"] > 2 * SHUTDOWN_TIMEOUT + 10
    (service,) = [
        manifest
        for manifest in of_kind(objects, "Service")
        if manifest["metadata"]["name"] == "leaseway-front"
    ]
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "worker"
    assert service["spec"]["ports"][0]["targetPort"] == "mcp"


def test_on_ipv6_all_processes_listen_and_are_reached_there(helm: str) -> None:
    for in_workers in ("false", "true"):
        front = ("--set=front.enabled=true", f"--set=front.inWorkers={in_workers}")
        objects = render(helm, *front, "--set=ipFamily=IPv6")
        for _pod, container in containers(objects):
            arguments = dict(word.partition("=")[::2] for word in container.get("args", ()))
            if "--listen" not in arguments:
                continue
            for option in arguments.keys() & {"--listen", "--metrics", "--mcp"}:
                assert parse_endpoint(arguments[option]).host == "::"
            if "--advertise" in arguments:
                for address in ("fd00::7", "10.0.0.7"):
                    advertised = arguments["--advertise"].replace("$(POD_IP)", address)
                    assert parse_endpoint(advertised).host == address


def test_a_pool_inherits_missing_values_from_the_defaults(helm: str) -> None:
    objects = render(
        helm,
        "--set=workers.gpu.capacity=7",
        "--set=workerDefaults.replicas=4",
        "--set=workers.gpu.servers={render,batch-*}",
    )

    pools = {
        manifest["metadata"]["labels"]["leaseway.dev/pool"]: manifest
        for manifest in of_kind(objects, "Deployment")
        if "leaseway.dev/pool" in manifest["metadata"]["labels"]
    }
    assert set(pools) == {"default", "gpu"}
    spec = pools["gpu"]["spec"]
    assert spec["replicas"] == 4
    assert "--capacity=7" in spec["template"]["spec"]["containers"][0]["args"]
    args = spec["template"]["spec"]["containers"][0]["args"]
    assert [argument for argument in args if argument.startswith("--servers")] == [
        "--servers=render",
        "--servers=batch-*",
    ]
    assert "--label=pool=gpu" in spec["template"]["spec"]["containers"][0]["args"]
    assert "--capacity=512" in pools["default"]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_a_config_map_is_mounted_as_a_folder_which_shows_changes(helm: str) -> None:
    pod = next(
        pod
        for pod, container in containers(render(helm, *_EVERYTHING))
        if container["name"] == "control-plane"
    )

    mounts = {
        volume_mount["name"]: volume_mount for volume_mount in pod["containers"][0]["volumeMounts"]
    }
    assert "subPath" not in mounts["config"]
    assert mounts["config"]["readOnly"] is True


def test_only_the_control_plane_may_use_the_api(helm: str) -> None:
    objects = render(helm)

    assert [manifest["metadata"]["name"] for manifest in of_kind(objects, "ServiceAccount")] == [
        "leaseway-control-plane"
    ]
    for pod, container in containers(objects):
        asks = container["name"] == "control-plane"
        assert (pod.get("serviceAccountName") == "leaseway-control-plane") is asks
        # Said for each pod: a service account of your own may say otherwise.
        assert pod["automountServiceAccountToken"] is asks


def test_the_schema_names_all_values() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert set(values) == set(schema["properties"]) - {"global"}
    assert set(values["workerDefaults"]) == set(schema["$defs"]["pool"]["properties"])


def test_the_custom_resource_definitions_are_up_to_date(tmp_path: Path) -> None:
    script = ROOT / "tools/kubernetes/generate_crds.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=60)

    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in CRDS.iterdir()}
    assert made == kept, "run `make generate`"


def test_rendering_the_chart_for_kubectl_is_repeatable(helm: str) -> None:
    # docs/kubernetes.md pipes this to `kubectl apply`.
    options = ("--set=key.existingSecret=leaseway-key", "--set=tests.enabled=false")
    rendered = render(helm, *options, "--include-crds")
    assert len(of_kind(rendered, "CustomResourceDefinition")) == 2
    assert of_kind(rendered, "Secret") == []
    assert rendered == render(helm, *options, "--include-crds")


def test_only_workers_that_run_pods_have_rights(helm: str) -> None:
    assert len(of_kind(render(helm), "Role")) == 1
    objects = render(helm, "--set=workers.pods.images=true")

    pods = {manifest["metadata"]["name"]: manifest for manifest in of_kind(objects, "Deployment")}
    plain = pods["leaseway-worker-default"]["spec"]["template"]["spec"]
    made = pods["leaseway-worker-pods"]["spec"]["template"]["spec"]
    assert plain["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in plain
    assert made["serviceAccountName"] == "leaseway-images"
    names = {variable["name"] for variable in made["containers"][0]["env"]}
    assert {"LEASEWAY_POD_NAME", "LEASEWAY_POD_UID", "LEASEWAY_POD_NAMESPACE"} <= names


def test_with_tls_all_processes_share_one_certificate_and_verify_its_name(helm: str) -> None:
    objects = render(helm, *_TLS, "--set=front.enabled=true", "--set=serviceMonitor.enabled=true")

    (certificate,) = of_kind(objects, "Certificate")
    name = "leaseway-control-plane.apps.svc"
    assert {name, "leaseway-front.apps.svc"} <= set(certificate["spec"]["dnsNames"])
    secret = certificate["spec"]["secretName"]
    for pod, container in containers(objects):
        environment = {
            each_variable["name"]: each_variable.get("value") for each_variable in container["env"]
        }
        assert environment["LEASEWAY_TLS_NAME"] == name
        mounts = {volume_mount["name"]: volume_mount for volume_mount in container["volumeMounts"]}
        assert "subPath" not in mounts["tls"], "only a folder follows a Secret that is renewed"
        for variable in ("CERT", "KEY", "CA"):
            assert environment[f"LEASEWAY_TLS_{variable}"].startswith(mounts["tls"]["mountPath"])
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["tls"]["secret"]["secretName"] == secret
        probes = [container[manifest] for manifest in container if manifest.endswith("Probe")]
        assert not any("grpc" in probe for probe in probes), "the kubelet speaks no TLS there"
    (monitor,) = of_kind(objects, "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["tlsConfig"]["serverName"] == name


def test_an_existing_secret_replaces_the_certificate(helm: str) -> None:
    objects = render(helm, "--set=tls.existingSecret=mine")

    assert of_kind(objects, "Certificate") == []
    for pod, _ in containers(objects):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["tls"]["secret"]["secretName"] == "mine"


def test_the_audit_of_a_pool_goes_to_its_sink_with_the_credentials_of_a_secret(helm: str) -> None:
    sink = "nats://nats.audit:4222/AUDIT/leaseway"
    objects = render(
        helm,
        f"--set=workers.big.audit.sink={sink}",
        "--set=workers.big.audit.policy=block",
        "--set=workers.big.audit.credentials=audit-sink",
    )
    pools = {
        next(argument for argument in manifest["args"] if argument.startswith("--label=pool=")): pod
        for pod, manifest in containers(objects)
        if manifest["name"] == "worker"
    }
    pod = pools["--label=pool=big"]
    container = pod["containers"][0]
    assert f"--audit-sink={sink}" in container["args"]
    assert "--audit-policy=block" in container["args"]
    assert container["envFrom"] == [{"secretRef": {"name": "audit-sink"}}]
    assert {"name": "audit", "emptyDir": {}} in pod["volumes"]
    assert not any(
        "--audit" in argument for argument in pools["--label=pool=default"]["containers"][0]["args"]
    )
