"""The manifests of examples/kubernetes: every command, port, path, setting and metric in them exists."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain

import pytest
import yaml

from chordage.config.settings import SECRETS_DIR, Settings, load, variable_of
from chordage.orchestrator.core.metrics import FAMILIES
from chordage.workers import connections
from chordage.workers.cli import main
from support.plain_room import forget_settings
from support.repository import ROOT

FOLDER = ROOT / "examples" / "kubernetes"
APART = {"autoscaling.yaml", "monitoring.yaml", "prometheus-adapter.yaml"}  # need more than a plain cluster
VARIABLES = {variable_of((name,)) for name in Settings.model_fields} | {SECRETS_DIR}
GRACE = int(Settings.model_fields["soft_shutdown"].default)


@cache
def documents(*names):
    files = [FOLDER / name for name in names] or sorted(FOLDER.glob("*.yaml"))
    return list(chain.from_iterable(yaml.safe_load_all(file.read_text()) for file in files))


def of_kind(*kinds):
    return {found["metadata"]["name"]: found for found in documents() if found.get("kind") in kinds}


def pods():
    return {name: found["spec"]["template"]["spec"] for name, found in of_kind("Deployment", "Job").items()}


def container(name):
    (only,) = pods()[name]["containers"]
    return only


EVERY_POD = pytest.mark.parametrize("name", pods())
WORKERS = pytest.mark.parametrize("name", ["chordage-turns", "chordage-tools"])


def test_kustomization_has_every_file_that_needs_nothing_else():
    (kustomization,) = documents("kustomization.yaml")
    text = (FOLDER / "kustomization.yaml").read_text()

    assert {*kustomization["resources"], *APART, "kustomization.yaml"} == {file.name for file in FOLDER.iterdir()}
    assert all(name in text for name in APART)
    assert kustomization["images"][0]["newTag"] == re.search(r'^version = "(.+)"$', project_file(), re.MULTILINE)[1]


def project_file():
    return (ROOT / "pyproject.toml").read_text()


def test_every_process_of_a_fleet_is_there():
    assert set(pods()) == {f"chordage-{name}" for name in ("migrate", "web", "turns", "tools", "beat", "poll")}
    beat = of_kind("Deployment")["chordage-beat"]["spec"]
    assert (beat["replicas"], beat["strategy"]) == (1, {"type": "Recreate"})


@EVERY_POD
def test_command_is_one_of_ours_and_its_options_fit(name):
    program, command, *options = container(name)["args"]

    assert program == "chordage"
    found = main.get_command(main.make_context("chordage", ["--help"], resilient_parsing=True), command)
    assert found.make_context(command, list(options)).command is found


def test_settings_exist_and_can_be_loaded(monkeypatch, tmp_path):
    forget_settings(monkeypatch)
    values = of_kind("ConfigMap")["chordage"]["data"]
    own = {variable["name"] for name in pods() for variable in container(name).get("env", [])}
    (tmp_path / "chordage_metrics_token").write_text("0123456789abcdef")
    for name, value in (values | {SECRETS_DIR: str(tmp_path)}).items():
        monkeypatch.setenv(name, value)

    assert {*values, *own} - {"POD_IP"} <= VARIABLES
    assert load().soft_shutdown == GRACE
    quoted = set(re.findall(r"CHORDAGE_[A-Z_]+", "\n".join(file.read_text() for file in FOLDER.iterdir())))
    assert quoted <= VARIABLES


@EVERY_POD
def test_process_is_not_root_and_writes_into_its_volumes_alone(name):
    pod, process = pods()[name], container(name)
    (user,) = re.findall(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in process["volumeMounts"]}
    values = of_kind("ConfigMap")["chordage"]["data"]

    assert pod["securityContext"]["runAsUser"] == int(user)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert process["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert "emptyDir" in mounts[values["CHORDAGE_STATE"]]
    assert "emptyDir" in mounts["/tmp"]
    assert mounts[values[SECRETS_DIR]]["secret"]["secretName"] == "chordage"
    assert process["resources"]["limits"]["memory"]
    assert process["resources"]["requests"].keys() == {"cpu", "memory"}


@WORKERS
def test_worker_has_the_time_of_its_grace_and_probes_its_ready_file(name):
    args = container(name)["args"]
    ready = args[args.index("--ready-file") + 1]

    assert pods()[name]["terminationGracePeriodSeconds"] > GRACE + 5
    for probe in ("startupProbe", "readinessProbe"):
        assert container(name)[probe]["exec"]["command"] == ["test", "-f", ready]
    assert "livenessProbe" not in container(name), "a stalled worker ends itself"


def routes():
    source = "\n".join(file.read_text() for file in (ROOT / "orchestrator" / "api").glob("*.py"))
    return set(re.findall(r'\.get\(\s*"([^"]+)"', source))


def test_ports_and_paths_are_those_of_the_server():
    process = container("chordage-web")
    (port,) = process["ports"]
    (service,) = of_kind("Service")["chordage-web"]["spec"]["ports"]
    (endpoint,) = of_kind("ServiceMonitor")["chordage-web"]["spec"]["endpoints"]
    paths = {probe: process[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    args = process["args"]

    assert port["containerPort"] == int(args[args.index("--port") + 1]) == Settings.model_fields["port"].default
    assert service == {"name": "http", "port": port["containerPort"], "targetPort": port["name"]}
    assert {get["port"] for get in paths.values()} == {port["name"]}
    assert {get["path"] for get in paths.values()} | {endpoint["path"]} <= routes()
    assert paths["livenessProbe"]["path"] == "/live", "a database that is away is no reason to start the server anew"
    assert paths["readinessProbe"]["path"] == "/ready"
    assert endpoint["port"] == service["name"]
    token = endpoint["authorization"]["credentials"]
    assert token["name"] == "chordage"
    assert token["key"].upper() in VARIABLES


def test_pods_are_called_by_their_address():
    """Probes and Prometheus do so; the server refuses names that are not its own."""
    hosts = {one["name"]: one for one in container("chordage-web")["env"]}

    assert hosts["POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert load(hosts=hosts["CHORDAGE_HOSTS"]["value"].replace("$(POD_IP)", "10.1.2.3")).hosts[-1] == "10.1.2.3"
    assert list(hosts) == ["POD_IP", "CHORDAGE_HOSTS"], "a variable may use those before it"


def test_selectors_find_their_pods():
    labels = {name: found["spec"]["template"]["metadata"]["labels"] for name, found in of_kind("Deployment").items()}
    budgets, services = of_kind("PodDisruptionBudget"), of_kind("Service")

    assert set(budgets) == {"chordage-web", "chordage-turns", "chordage-tools"}
    for name, found in of_kind("Deployment").items():
        assert found["spec"]["selector"]["matchLabels"] == labels[name]
    for name in budgets:
        assert budgets[name]["spec"]["selector"]["matchLabels"] == labels[name]
        (spread,) = pods()[name]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == labels[name]
    assert services["chordage-web"]["spec"]["selector"] == labels["chordage-web"]
    assert of_kind("ServiceMonitor")["chordage-web"]["spec"]["selector"]["matchLabels"] == labels["chordage-web"]


def scaled():
    return of_kind("HorizontalPodAutoscaler").items()


def test_autoscaling_uses_metrics_that_exist_and_that_the_adapter_makes():
    (adapter,) = documents("prometheus-adapter.yaml")
    rules = {rule["name"]["as"]: rule for rule in adapter["rules"]["external"]}
    metrics = {}
    for name, found in scaled():
        assert found["spec"]["scaleTargetRef"]["name"] == name
        assert name in of_kind("Deployment")
        assert found["spec"]["minReplicas"] == of_kind("Deployment")[name]["spec"]["replicas"]
        (metric,) = (one["external"]["metric"] for one in found["spec"]["metrics"])
        metrics[metric["name"]] = metric["selector"]["matchLabels"]

    assert metrics.keys() == rules.keys() == {"chordage_oldest_queued_seconds", "chordage_queue_messages"}
    assert {rule["seriesQuery"] for rule in rules.values()} == rules.keys()
    assert all(set(labels) == set(FAMILIES[name].labels) for name, labels in metrics.items())


def test_the_largest_fleet_fits_into_the_connections_of_a_usual_postgresql():
    """With one more of each kind while it is rolled out."""
    most = {name: found["spec"]["maxReplicas"] + 1 for name, found in scaled()}
    args = container("chordage-tools")["args"]
    of_tools = connections.of_processes(int(args[args.index("--concurrency") + 1]))
    web = of_kind("Deployment")["chordage-web"]["spec"]["replicas"] + 1
    settings = load()
    threads, servers = connections.of_threads(settings), connections.of_server(settings) * (web + 1)  # and one poll

    assert most["chordage-turns"] * threads + most["chordage-tools"] * of_tools + servers <= 97


PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text()


def test_the_alternative_of_the_page_scales_the_same_deployment_by_the_same_metric():
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    alternative = yaml.safe_load(block)["spec"]
    (trigger,) = alternative["triggers"]
    turns = of_kind("HorizontalPodAutoscaler")["chordage-turns"]["spec"]
    (metric,) = turns["metrics"]

    assert alternative["scaleTargetRef"]["name"] == turns["scaleTargetRef"]["name"]
    assert (alternative["minReplicaCount"], alternative["maxReplicaCount"]) == (2, turns["maxReplicas"])
    name, *labels = re.findall(r"[a-z_]{4,}", trigger["metadata"]["query"])
    assert name == metric["external"]["metric"]["name"]
    assert labels[0] in FAMILIES[name].labels
    assert trigger["metadata"]["threshold"] == metric["external"]["target"]["value"]


def test_files_that_commands_of_the_page_use_exist():
    quoted = re.findall(
        r"examples/[\w./@*-]*\w", "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    )

    assert len(quoted) > 5
    assert [path for path in quoted if not list(ROOT.glob(path))] == []


def test_files_of_secrets_that_the_page_names_are_settings():
    named = set(re.findall(r"secrets/(chordage_\w+)", PAGE)) | set(
        re.findall(r"`(chordage_[a-z]+_(?:url|token))`", PAGE)
    )

    assert named == {"chordage_database_url", "chordage_redis_url", "chordage_metrics_token"}
    assert {name.upper() for name in named} <= VARIABLES
