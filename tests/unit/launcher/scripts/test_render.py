"""Tests that rendered scripts and configurations are valid, quoted and complete."""

import re
import shlex
from pathlib import Path

import pytest
from builders.service_scripts import GATEWAY, TRITON, VALUES, script
from pydantic import ValidationError

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import directives_of_script, service_spec
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.cluster.settings.file import LauncherSettings
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway.runtime_api import files_needed, most_files_of
from slicewise.launcher.rules.engines.engine import OPENAI_API
from slicewise.launcher.rules.engines.registry import ENGINES, start_settings
from slicewise.launcher.rules.engines.triton import Triton
from slicewise.launcher.scripts import models, render
from slicewise.launcher.scripts.render import Owners, gateway_files, service_script


def options(text: str) -> set[str]:
    return {
        line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")
    }


def test_the_script_says_the_same_service_again():
    spec = service_spec(VALUES | {"keep_alive_s": 12.5, "partition": "gpu"})
    lines = service_script(spec, TRITON, GATEWAY).splitlines()
    assert service_spec(directives_of_script(lines)) == spec


def test_slurms_options():
    assert options(script(cpus=3, memory_mib=500, lease_s=1001)) >= {
        "--job-name=chat",
        "--account=vision",
        "--array=0-3",
        "--hold",
        "--requeue",
        "--open-mode=append",
        "--nodes=1",
        "--gres=gpu:1g.10gb:1",
        "--cpus-per-task=3",
        "--mem=500M",
        "--time=17",
    }


def test_a_replica_asks_for_what_its_shape_says():
    """One task on each node: sbatch takes no more nodes than tasks."""
    asked = options(script(gpus=2, nodes=3))
    assert asked >= {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--gres=gpu:1g.10gb:2"}
    assert {one for one in options(script()) if "ntasks" in one} == {"--ntasks=1"}


def test_a_partition_only_if_one_is_asked_for():
    assert not any("partition" in option for option in options(script()))
    assert "--partition=gpu" in options(script(partition="gpu"))


def test_with_a_need_the_daemon_chooses_the_gres():
    text = script(profile=None, need_gib=8)
    assert not any("gres" in option for option in options(text))
    assert "#SLICEWISE need_gib=8" in text


def test_every_option_stands_before_the_first_command():
    lines = script().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith(("#SBATCH", "#SLICEWISE")) for line in lines[first:])


def test_values_reach_bash_as_they_are():
    line = next(x for x in script().splitlines() if x.startswith("models="))
    assert shlex.split(line) == ["models=/models/%@chat"]


def test_the_gateway_has_its_backends():
    settings = GatewaySettings(
        services=2, backends=2, servers=3, directory=Path("/etc/gw"), hold_s=42
    )
    files = gateway_files(settings, Owners("haproxy", "haproxy", "slicewise", "clients"))
    text = files["haproxy.cfg"]
    assert text.count("\nbackend triton") == 2 * 2
    pinned = 'ssl verify required no-ssl-reuse ca-file "/etc/gw/replicas/triton2.r3.pem" crt'
    assert text.count(pinned) == 2
    assert text.count(" disabled ssl verify required ") == len(ENGINES) * 2 * 3
    shown = ' crt "/etc/gw/identity.pem" ssl-min-ver TLSv1.3 '
    by_grpc = sum(1 for engine in ENGINES.values() if engine.grpc_paths)
    assert text.count(shown) == (len(ENGINES) + by_grpc) * 2 * 3
    assert text.count("alpn h2 maxconn 1 track triton2/r") == 3
    assert "user slicewise group clients mode 660" in text
    assert text.count("user haproxy\n") == 1
    assert '.again" user haproxy mode 600' in text
    assert "42 * 1000" in files["hold.lua"]
    assert '"/etc/gw/services.map"' in files["hold.lua"]
    assert '".complete"' in files["hold.lua"]
    # A request that may be sent again may wait as long as any other: held, queued, worked on.
    assert (
        f"    timeout server {600_000 + 2 * 42_000}ms\n" in text.partition("backend retry-once")[2]
    )
    assert set(files) == {
        *("haproxy.cfg", "hold.lua", "sequence.lua", "openai.lua", "usage.lua"),
        *("allowances.lua", "rate.map", "concurrent.map"),
    }


def test_services_beyond_those_with_replicas_have_backends_without_servers():
    """A server line costs memory and a file descriptor each, a backend without nearly nothing."""
    text = gateway_files(GatewaySettings(services=5, backends=2, servers=3))["haproxy.cfg"]
    assert text.count("\nbackend tritonidle") == 2 * 5
    idle = text.partition("\nbackend tritonidle5\n")[2].partition("\nbackend triton1\n")[0]
    assert re.findall(r"^    server (\S+)", idle, re.MULTILINE) == ["again", "again"]
    assert "-m reg ^(triton(idle)?[0-9]+|successor)$" in text


def test_an_engine_without_calls_of_grpc_has_no_halves_for_them():
    """They took a third of HAProxy's memory, and no request ever came there."""
    text = gateway_files(GatewaySettings(services=2, backends=1, servers=1))["haproxy.cfg"]
    halves = set(re.findall(r"^backend (\w+)-grpc$", text, re.MULTILINE))
    by_grpc = {engine.group for engine in ENGINES.values() if engine.grpc_paths}
    groups = {one.rstrip("0123456789").removesuffix("idle") for one in halves}
    assert groups & {engine.group for engine in ENGINES.values()} == by_grpc == {"triton"}


def test_a_name_with_a_comma_is_not_read_as_another_one_when_a_request_comes_in_again():
    """``req.hdr`` would take what follows the comma: a service of a tenant with keys."""
    text = gateway_files(GatewaySettings(backends=1, servers=1))["haproxy.cfg"]
    assert "set-var(txn.service) req.fhdr(x-slicewise-service)" in text
    assert not re.findall(r"req\.hdr\w*\(x-slicewise-service\)", text)
    (named,) = re.findall(r"acl named var\(txn.service\) -m reg (.*)", text)
    allowed = ("t/a", "vision-2.a_b/my-service-1", "_x/0")
    assert all(re.search(named, name) for name in allowed)
    others = ("a,b/c", "t/a,b", "t/a b", "t", "t/", "/a", "t/a/b", "a%2cb/c")
    assert not any(re.search(named, name) for name in others)


class Other(Triton):
    """An engine with one socket and paths of its own."""

    title = "Other"
    sockets = ("one",)
    drain_signal = "TERM"
    group = "other"
    api = "/v9"
    health_path = "/fit"
    http_paths = ("/v9/ask",)
    grpc_paths = ()
    health_paths = ("/fit",)
    stream_paths = ("/v9/ask",)
    running_sums = ""
    served = "questions"


@pytest.fixture
def with_other(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {"triton": Triton(), "other": Other()}
    monkeypatch.setattr(render, "ENGINES", engines)
    monkeypatch.setattr(render, "engine_named", engines.__getitem__)


@pytest.mark.usefixtures("with_other")
def test_each_engine_has_backends_and_paths_of_its_own():
    files = gateway_files(GatewaySettings(backends=2, servers=1))
    text = files["haproxy.cfg"]
    backends = {
        lines.partition("\n")[0]: lines for lines in text.split("\nbackend ") if "httpchk" in lines
    }
    assert {name: re.findall("httpchk GET (.*)", lines) for name, lines in backends.items()} == {
        "triton1": ["/v2/health/ready"],
        "triton2": ["/v2/health/ready"],
        "other1": ["/fit"],
        "other2": ["/fit"],
    }
    assert 'replicas/other2.r1.pem" crt' in text
    allowed = re.findall(r"set-var\(txn.allowed\) bool\(true\) if of_other (.*)", text)
    assert allowed == ["!grpc { path_reg ^/v9/ask$ }"]
    assert "acl asks_health_of_other path_reg ^/fit$" in text
    assert "unless { var(txn.allowed) -m bool }" in text
    assert "acl may_stream path_reg ^/v9/ask$" in text
    assert "HTTP: /TENANT/SERVICE/v2/..., /TENANT/SERVICE/v9/...; gRPC" in files["hold.lua"]
    assert "; questions." in files["hold.lua"]


class Chatty(Other):
    """One more, of OpenAI's API."""

    group = "chatty"
    api = OPENAI_API


def test_every_engine_of_openai_s_api_is_reached_by_a_tenant_s_one_address(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(render, "ENGINES", {"triton": Triton(), "o": Other(), "c": Chatty()})
    text = gateway_files(GatewaySettings(backends=2, servers=1))["haproxy.cfg"]
    (openai,) = re.findall(r"acl of_openai var\(txn.backend\) -m reg (.*)", text)
    assert all(re.search(openai, name) for name in ("chatty1", "chattyidle12", "successor"))
    assert not any(
        re.search(openai, name) for name in ("triton1", "other2", "xchatty1", "chatty1x")
    )


def test_nothing_is_read_of_a_body_before_the_key_and_the_tenant_s_limits_are_checked():
    text = gateway_files(GatewaySettings())["haproxy.cfg"].partition("frontend gateway")[2]
    reads = text.index("http-request wait-for-body")
    for what in ("str(SW-GATEWAY-KEY)", "str(SW-GATEWAY-KEY-TENANT)", "str(SW-GATEWAY-CONCURRENT)"):
        assert text.index(what) < text.index("lua.refuse", text.index(what)) < reads
    # The key's own service is compared with what the body has named, before any route is known.
    by_model = "str(SW-GATEWAY-KEY-SERVICE) if by_model !by_site !lists_models protected !opens"
    assert reads < text.index(by_model) < text.index("set-var(txn.backend)")


def test_what_haproxy_may_keep_of_unread_refusals_does_not_grow_with_its_buffers():
    text = gateway_files(GatewaySettings(buffer_kib=64))["haproxy.cfg"]
    assert "tune.bufsize 65536\n" in text
    assert "{ sc_conn_cur(1) gt 250 }" in text


@pytest.mark.usefixtures("with_other")
def test_a_script_starts_the_service_s_engine():
    spec = service_spec(VALUES).model_copy(update={"engine": "other"})
    text = service_script(spec, TRITON, GATEWAY)
    assert "--resv-ports=1 " in text
    assert '"$private/readonly/door.py" "$address" "$private" one 2>' in text
    assert 'kill -TERM "$server"' in text
    assert 'say "Other ended with $code"' in text


def test_tokens_of_a_stream_are_not_kept_back():
    """The first one came 29 to 43 ms later, together with all that followed meanwhile."""
    text = gateway_files(GatewaySettings())["haproxy.cfg"]
    defaults = text[text.index("\ndefaults\n") : text.index("\nbackend tenants\n")]
    assert "\n    option http-no-delay\n" in defaults


def test_llama_cpp_gets_each_request_on_a_connection_of_its_own_without_what_outlives_it():
    """Its server closes idle connections, and goes on with a conversation whose client has left."""
    text = gateway_files(GatewaySettings(backends=2, servers=1))["haproxy.cfg"]
    closing = {
        lines.partition("\n")[0]
        for lines in text.split("\nbackend ")
        if "\n    option http-server-close\n" in lines
    }
    own = {"once", "once-grpc", "retry-once", "limited", "limited-grpc"}
    own |= {"once-metered", "retry-once-metered", "limited-metered"}
    assert closing == {"llamacpp1", "llamacpp2"} | own
    dropped = re.findall(r"http-request del-header (\S+) if of_(\w+)", text)
    assert [one for one, group in dropped if group == "llamacpp"] == ["x-conversation-id"]
    assert ("x-override-bootstrap-host", "sglang") in dropped


def llamacpp_script(place: Path, concurrency: int | str = 300) -> str:
    values = VALUES | {"engine": "llamacpp", "concurrency": concurrency, "cpus": 2}
    started = start_settings("llamacpp", {"llamacpp": EngineSettings(command=place)})
    return service_script(service_spec(values), started, GATEWAY)


def test_nothing_that_a_replica_says_at_a_check_or_breaks_grows_in_haproxy():
    """Its reason phrase stood in 'show stat'; a request came round 20 times, each a connection."""
    text = gateway_files(GatewaySettings(backends=2))["haproxy.cfg"]
    said = 'http-check expect on-success "ready" on-error "not ready" status 200-399'
    assert text.count(said) == len(ENGINES) * 2
    assert "{ req.fhdr_cnt(x-slicewise-service) gt 7 }" in text


def test_timers_of_checks_run_out_together_and_checks_drift_apart():
    text = gateway_files(GatewaySettings())["haproxy.cfg"]
    assert {"max-spread-checks 10ms", "spread-checks 5"} <= set(map(str.strip, text.splitlines()))


def test_refused_questions_of_statistics_count_as_their_host_s_refusals():
    """HAProxy tracks by sc1 in one table only: a refused question must not be in another one."""
    text = gateway_files(GatewaySettings())["haproxy.cfg"]
    rules = [line.strip() for line in text.splitlines() if line.startswith("    http-request ")]
    tracked = rules.index(
        "http-request track-sc1 var(txn.asker) table questions if { var(txn.statistics) -m bool }"
    )
    looked_up = [
        number
        for number, rule in enumerate(rules)
        for what in ("conn_cur(questions) ge 20", "http_req_rate(questions) ge 20")
        if what in rule and "set-var(txn.refused)" in rule
    ]
    assert len(looked_up) == 2
    refused = [number for number, rule in enumerate(rules) if "table refusals" in rule]
    assert any(max(looked_up) < number < tracked for number in refused)
    assert not [number for number in refused if number > tracked]


def test_limits_are_rendered_only_if_there_are_any():
    unlimited = {"limits": {"requests_per_s": 0, "concurrent": 0, "connections_per_host": 0}}
    files = gateway_files(GatewaySettings.model_validate(unlimited))
    assert not re.search("track-sc[0-9] .* table (tenants|hosts)", files["haproxy.cfg"])
    limits = {"concurrent": 50, "tenants": {"vision": {"requests_per_s": 5}}}
    files = gateway_files(GatewaySettings.model_validate({"limits": limits}))
    assert 'concurrent.map",50)' in files["haproxy.cfg"]
    assert 'rate.map",1000)' in files["haproxy.cfg"]
    assert (files["rate.map"], files["concurrent.map"]) == (
        "vision 5\n",
        "vision 1000000000\n",
    )


TAKE = ("gateway", "limits", "again")
"""Frontends that take connections: those of clients, and HAProxy's own."""


def _most(before: str, text: str) -> int:
    """The one number that follows such words, wherever they stand."""
    (found,) = {int(number) for number in re.findall(rf"{before} (\d+)", text, re.MULTILINE)}
    return found


@pytest.mark.parametrize("files", [100_000, 20_000, 4096])
def test_connections_and_requests_fit_into_the_files_that_haproxy_may_open(files: int):
    """With fewer than 100,000 clients could take all: it was for 25,000 whatever there were."""
    text = gateway_files(GatewaySettings(), most_files=files)["haproxy.cfg"]
    assert f"    fd-hard-limit {files}\n" in text
    clients, limited, rounds = (
        _most(rf"^frontend {one}\n(?:.*\n){{,3}}?    maxconn", text) for one in TAKE
    )
    requests = _most(r'\.again" maxconn', text)
    assert requests < rounds
    # By HTTP and by gRPC.
    assert 2 * _most(r'\.limits" maxconn', text) == limited
    # A client's connection, both ends of each of HAProxy's own, and one to a replica.
    left = files - files_needed(text)
    assert clients + 2 * limited + 2 * rounds + requests <= left
    # HAProxy takes that many connections of all kinds: with more, clients' could take all of them.
    assert clients + limited + rounds <= left // 2
    assert 5 * _most(r"sc_conn_cur\(2\) gt", text) <= clients
    assert most_files_of(text) == files


def test_a_gateway_of_which_nothing_is_said_is_closed_and_bounded():
    text = gateway_files(GatewaySettings())["haproxy.cfg"]
    assert "acl protected always_true" in text
    assert 'rate.map",1000)' in text
    assert 'concurrent.map",1000)' in text
    assert "sc_conn_cur(2) gt 3907" in text
    opened = gateway_files(GatewaySettings(require_keys=False))["haproxy.cfg"]
    assert "acl protected always_true" not in opened


def test_with_a_certificate_clients_find_tls_only():
    text = gateway_files(GatewaySettings(certificate=Path("/etc/gw.pem")))["haproxy.cfg"]
    for port in ("127.0.0.1:8080", "fd@3"):
        assert f'bind {port} ssl crt "/etc/gw.pem" alpn h2,http/1.1 curves ' in text


@pytest.mark.parametrize(
    ("settings", "user", "key"),
    [
        ({"directory": Path('/etc/"gw')}, "", "gateway.directory"),
        ({"directory": Path("/etc/a b")}, "", "gateway.directory"),
        ({"runtime_socket": Path("/run/$x.sock")}, "", "gateway.runtime_socket"),
        ({"bind": "*:80\n    stats enable"}, "", "gateway.bind"),
        ({"domain": "example.org)"}, "", "gateway.domain"),
        ({"certificate": Path('/etc/"x')}, "", "gateway.certificate"),
        ({"limits": {"tenants": {"a b": {}}}}, "", "gateway.limits.tenants"),
        ({}, "a b", "--socket-user"),
    ],
)
def test_what_haproxy_would_misread_is_refused(settings: dict[str, object], user: str, key: str):
    with pytest.raises(InvalidInputError) as caught:
        gateway_files(GatewaySettings.model_validate(settings), Owners(socket_user=user))
    assert caught.value.refusal.code == "SW-SETTINGS"
    assert caught.value.refusal.message.startswith(key)


def test_llama_server_has_its_usual_slots_where_the_concurrency_is_learnt(tmp_path: Path):
    assert "--parallel 4 " in llamacpp_script(tmp_path / "llama-server", concurrency="auto")


def test_servers_for_each_model_are_started_by_a_program_in_the_script():
    alone = script(engine="llamacpp")
    assert "models.py" not in alone + script(pool="small")
    pooled = script(engine="llamacpp", pool="small", environment={"A": "b"})
    assert Path(models.__file__).read_text().strip() in pooled
    first = pooled.index('python3 "$private/readonly/models.py" "$private" "$models" m ')
    # Each server reads its own environment.
    assert first < pooled.index("sh -c", first) < pooled.index("triton server", first)
    image = {"runtime": "apptainer", "image": "/images/llama.sif"}
    outside = script(engine="llamacpp", pool="small", **image)
    assert outside.index('"$private/readonly/models.py" "$private"') < outside.index(
        "apptainer exec"
    )


def brought_words(what: str, **change: object) -> list[str]:
    """How the script brings this to the node, in the words for ``weights.py``."""
    launcher = LauncherSettings(node_cache=Path("/local/slicewise"), node_cache_gib=2)
    text = service_script(service_spec(VALUES | change), TRITON, GATEWAY, launcher)
    (line,) = re.findall(rf"^ +bring {what} (.*)$", text, re.MULTILINE) or [""]
    return shlex.split(line)


def weights_words(**change: object) -> list[str]:
    return brought_words("weights", **change)


def test_only_what_the_engine_reads_comes_to_the_node():
    folder = ["/local/slicewise", str(2 << 30), "/models/%@chat"]
    assert weights_words() == folder
    assert weights_words(engine="vllm") == [*folder, "--model=m"]
    parts = {"engine": "llamacpp", "model_file": "q4-00001-of-00002.gguf"}
    assert weights_words(**parts) == [*folder, "--model=m", "--files=q4-?????-of-00002.gguf"]
    whole = {"engine": "llamacpp", "model_file": "q8.gguf"}
    assert weights_words(**whole) == [*folder, "--model=m", "--files=q8.gguf"]
    adapters = {"engine": "vllm", "adapters": {"legal": "lora/a"}}
    assert weights_words(**adapters) == [*folder, "--model=m", "--no-adapters"]


def test_an_image_comes_to_the_node_if_it_is_a_file():
    apptainer = {"runtime": "apptainer", "image": "/images/triton.sif"}
    words = ["/local/slicewise", str(2 << 30), "/images", "--model=triton.sif"]
    assert brought_words("image", **apptainer) == words
    assert brought_words("image", **apptainer, pool="small") == words
    assert weights_words(**apptainer)[-1] == "--beside=$image_bytes"
    assert brought_words("image", **apptainer, engine="vllm", nodes=2) == []
    registry = {"runtime": "pyxis", "image": "nvcr.io#nvidia/tritonserver:24.05-py3"}
    assert brought_words("image", **registry) == []


def test_nothing_comes_to_the_nodes_unless_there_is_a_folder():
    assert "/weights.py" not in script()
    assert weights_words(engine="vllm", nodes=2) == []
    assert "/pool_weights.py" not in script(pool="small")


@pytest.mark.parametrize("folder", ["local", "/a b", "/a:b", "/a/../b", "/"])
def test_the_folder_of_nodes_has_a_plain_path(folder: str):
    with pytest.raises(ValidationError, match="write an absolute path"):
        LauncherSettings(node_cache=Path(folder))
