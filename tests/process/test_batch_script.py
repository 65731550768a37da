"""Tests that rendered scripts and configurations are valid, quoted and complete."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from builders.service_scripts import GATEWAY, VALUES, script
from waiting import PATIENCE_S

from slicewise.cluster.language.service import service_spec
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway.haproxy import prepare
from slicewise.launcher.rules.engines.registry import start_settings
from slicewise.launcher.scripts.render import gateway_files, service_script


def test_bash_accepts_it():
    checked = subprocess.run(
        ("bash", "-n"), input=script(), text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ("21001-21003", ["21001", "21002", "21003"]),
        ("21001,21003-21004", ["21001", "21003", "21004"]),
        ("21001,21007,21009", ["21001", "21007", "21009"]),
    ],
)
def test_ports_are_read_in_every_form(ports: str, expected: list[str]):
    text = script()
    loop = text[text.index("    ports=()") : text.index("    shield=")]
    ran = subprocess.run(
        ("bash", "-uc", f'{loop}\nprintf "%s\\n" "${{ports[@]}}"'),
        env={"SLURM_STEP_RESV_PORTS": ports},
        text=True,
        capture_output=True,
        check=True,
    )
    assert ran.stdout.split() == expected


def llamacpp_script(place: Path, concurrency: int | str = 300) -> str:
    values = VALUES | {"engine": "llamacpp", "concurrency": concurrency, "cpus": 2}
    started = start_settings("llamacpp", {"llamacpp": EngineSettings(command=place)})
    return service_script(service_spec(values), started, GATEWAY)


def test_llama_server_is_started_with_the_first_part_of_its_model(tmp_path: Path):
    beside = ("README.md", "M-mmproj-F16.gguf", "imatrix.gguf")
    for name in ("m-00002-of-00002.gguf", "m-00001-of-00002.gguf", *beside):
        (tmp_path / "it's m" / "m").mkdir(parents=True, exist_ok=True)
        (tmp_path / "it's m" / "m" / name).touch()
    text = llamacpp_script(tmp_path / "llama-server")
    (told,) = re.findall(r'"\$\{shield\[@\]\}" (\S+llama-server \\\n(?:.*\\\n)*.*) &\n', text)
    (tmp_path / "llama-server").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "llama-server").chmod(0o755)
    variables = {"models": str(tmp_path / "it's m"), "id": "chat.7.3", "private": "/tmp/p"}
    ran = subprocess.run(
        ("bash", "-uc", told), env=variables, text=True, capture_output=True, check=True
    )
    assert ran.stdout.splitlines() == [
        *("--model", str(tmp_path / "it's m" / "m" / "m-00001-of-00002.gguf")),
        *("--alias", "m", "--tags", "chat.7.3", "--host", "/tmp/p/http.sock"),
        *("--parallel", "256", "--threads", "2", "--metrics", "--no-webui"),
    ]


def started_words(own: EngineSettings, place: Path, *, engine: str, **change: object) -> list[str]:
    """The words that start a service's server, as bash makes them: after its variables."""
    place.mkdir(exist_ok=True)
    values = VALUES | change | {"engine": engine}
    text = service_script(service_spec(values), start_settings(engine, {engine: own}), GATEWAY)
    begin = text.index('    export SLICEWISE_REPLICA="$mark"')
    (words,) = re.findall(r'"\$\{shield\[@\]\}" ((?:.*\\\n)*.*) &\n', text[begin:])
    exported = text[begin : text.index("    ports=()", begin)]
    # What would start the server prints its words instead.
    for name in ("server", "unshare", "apptainer"):
        (place / name).write_text(
            '#!/bin/sh\nprintf \'%s\\n\' "${0##*/}" "$@" "env=$HF_HUB_OFFLINE"\n'
        )
        (place / name).chmod(0o755)
    program = f"{exported}\n{words.replace('with_private_shm ', '')}"
    variables = {"models": f"{place}/it's m", "image": "/i.sif", "id": "chat.7.3"}
    variables |= {"private": "/tmp/p", "mark": "m"}
    Path(variables["models"]).mkdir(exist_ok=True)
    ran = subprocess.run(
        ("bash", "-uc", program),
        env=variables | {"PATH": f"{place}:{os.environ['PATH']}"},
        text=True,
        capture_output=True,
        check=True,
    )
    return ran.stdout.splitlines()


VLLM_WORDS = [
    *("--served-model-name", "m", "chat", "vision/chat", "chat.7.3"),
    *("--uds", "/tmp/p/http.sock"),
    *("--max-num-seqs", "64", "--tensor-parallel-size", "2"),
    *("--pipeline-parallel-size", "1", "--allowed-local-media-path", ""),
    *("--allowed-media-domains", "none: see media_domains"),
    *("--enable-force-include-usage", "--disable-uvicorn-access-log"),
]


def test_vllm_is_started_with_its_names_and_the_model_s_options(tmp_path: Path):
    settings = EngineSettings(command=tmp_path / "a" / "server")
    told = {"engine": "vllm", "concurrency": 64, "gpus": 2}
    assert started_words(settings, tmp_path / "a", **told) == [
        *("server", "serve", "./m", *VLLM_WORDS, "env=1")
    ]
    (tmp_path / "b" / "it's m" / "m").mkdir(parents=True)
    (tmp_path / "b" / "it's m" / "m" / "vllm.yaml").touch()
    words = started_words(
        EngineSettings(command=tmp_path / "b" / "server"), tmp_path / "b", name="m", **told
    )
    names = ["vision/m" if word == "vision/chat" else word for word in VLLM_WORDS if word != "chat"]
    options = str(tmp_path / "b" / "it's m" / "m" / "vllm.yaml")
    assert words == ["server", "serve", "./m", *names, "--config", options, "env=1"]


def test_a_server_without_a_unix_socket_gets_a_network_of_its_own(tmp_path: Path):
    """Every user of the node could reach a port of 127.0.0.1: without one it is not started."""
    settings = EngineSettings(python="/opt/py 3", private_shm=False)
    told = {"engine": "sglang", "concurrency": 64, "gpus": 2}
    words = started_words(settings, tmp_path / "a", **told)
    assert words[words.index("--tp-size") :][:4] == ["--tp-size", "2", "--pp-size", "1"]
    assert words[:9] == [
        *(
            "unshare",
            "--user",
            "--map-root-user",
            "--net",
            "/opt/py 3",
            "/tmp/p/readonly/loopback.py",
        ),
        *("/tmp/p/http.sock", "30000", "/opt/sglang/bin/sglang"),
    ]
    assert words[words.index("--weight-version") :][:6] == [
        *("--weight-version", "chat.7.3", "--host", "127.0.0.1", "--port", "30000")
    ]
    image = {"runtime": "apptainer", "image": "/i.sif"}
    inside = started_words(settings, tmp_path / "b", **told, **image)
    at = inside.index("/i.sif")
    assert inside[0] == "apptainer"
    assert inside[at + 1 : at + 10] == [*words[:4], "python3", *words[5:8], "sglang"]
    text = service_script(service_spec(VALUES | told), settings, GATEWAY)
    compile(text[text.index("<<'LOOPBACK'\n") + 12 : text.index("\nLOOPBACK\n")], "x", "exec")
    assert "LOOPBACK" not in script()


@pytest.mark.parametrize(
    ("media_domains", "allowed"),
    [
        (None, ["--allowed-media-domains", "none: see media_domains"]),
        ("a.example", ["--allowed-media-domains", "a.example"]),
        ("a.example,b.example", ["--allowed-media-domains", "a.example", "b.example"]),
        ("*", []),
    ],
)
def test_vllm_fetches_media_from_the_hosts_that_its_service_names_and_follows_no_redirect(
    tmp_path: Path, media_domains: str | None, allowed: list[str]
):
    settings = EngineSettings(command=tmp_path / "server")
    told = {"engine": "vllm", "media_domains": media_domains}
    words = started_words(settings, tmp_path, **told)
    assert words[words.index("") + 1 : words.index("--enable-force-include-usage")] == allowed
    assert words[words.index("") - 1] == "--allowed-local-media-path"
    text = service_script(
        service_spec(VALUES | told), start_settings("vllm", {"vllm": settings}), GATEWAY
    )
    assert "export VLLM_MEDIA_URL_ALLOW_REDIRECTS=0\n" in text


def test_a_llama_server_that_reads_images_reaches_no_network_unless_its_service_says_so(
    tmp_path: Path,
):
    """It fetches whatever address a request names, and has no option against that."""
    own = EngineSettings(command=tmp_path / "server")
    started = start_settings("llamacpp", {"llamacpp": own})

    def line(**change: object) -> str:
        told = VALUES | {"engine": "llamacpp"} | change
        text = service_script(service_spec(told), started, GATEWAY)
        return next(
            one for one in text.splitlines() if '"${shield[@]}" ' in one and one.endswith("\\")
        )

    apart, images = "unshare --user --map-root-user --net", {"LLAMA_ARG_MMPROJ": "/m/mmproj.gguf"}
    assert f"{apart} {tmp_path}/server " in line(environment=images)
    inside = line(environment=images, runtime="apptainer", image="/i.sif")
    assert inside.index(' "$image" ') < inside.index(f"{apart} /app/llama-server ")
    assert "unshare" not in line(environment=images, media_domains="*")
    assert "unshare" not in line(environment={"LLAMA_ARG_CTX_SIZE": "9"})


# Signals by the second at which they come, seconds until Triton is told, until it is killed.
ENDINGS: list[tuple[list[tuple[int, str]], list[str]]] = [
    ([(0, "TERM")], ["1", "2"]),
    ([(0, "USR1")], ["0", "5"]),
    ([(0, "USR1"), (0, "TERM")], ["1", "2"]),
    ([(0, "USR1"), (1, "USR1")], ["0", "5"]),
    ([(0, "TERM"), (0, "USR1")], ["1", "2"]),
]


@pytest.mark.parametrize(("signals", "waits"), ENDINGS)
def test_a_replica_that_must_end_is_told_and_then_killed(
    signals: list[tuple[int, str]], waits: list[str], tmp_path: Path
):
    """Told at once when its lease ends, and after a notice where Slurm ends it.

    Slurm would kill 5 s after its TERM, or 10 s after the end of the lease was noticed. The script
    waits in a time of the test's, and no wait ends before all signals have come.
    """
    text = script()
    handlers = text[text.index("ends_at=") : text.index("# Runs inside the step")]
    end = text[text.index("end() {") : text.index('say "starting on')]
    send = "; ".join(f"SECONDS={at_s}; builtin kill -{name} $$" for at_s, name in signals)
    program = f"""
        cd {tmp_path}
        say() {{ :; }}
        close_door() {{ :; }}
        clear_temporary() {{ :; }}
        sleep() {{ until [ -e all ]; do command sleep 0.02; done; echo "waits $1" >>log; }}
        kill() {{ echo "kill $*" >>log; builtin kill "$@"; }}
        GIVES_BACK_S=10 NOTICE_S=3 pid_file=$PWD/pid private=$PWD/private shm=
        {handlers}
        kill_wait_s=5
        set -m; (trap "" INT; touch ignores; exec sleep 600) & server=$!
        set +m
        until [ -e ignores ]; do command sleep 0.02; done
        echo "$server" >"$pid_file"
        {end}
        {send}
        touch all
        while wait "$server"; code=$?; builtin kill -0 "$server" 2>/dev/null; do :; done
        echo "$server $code"
    """
    ran = subprocess.run(
        ("bash", "-uc", program), text=True, capture_output=True, check=True, timeout=PATIENCE_S
    )
    server, code = ran.stdout.split()
    log = (tmp_path / "log").read_text().splitlines()
    begin = log.index(f"waits {waits[0]}")
    told, killed = f"kill -INT {server}", f"kill -KILL -- -{server}"
    assert log[begin : begin + 4] == [f"waits {waits[0]}", told, f"waits {waits[1]}", killed]
    assert log.count(told) == 1
    assert code == "137"


def test_a_server_that_would_cut_off_its_requests_ends_once_its_clients_have_left(tmp_path: Path):
    """The door gets a signal first, and the server its own when the door has ended."""
    text = llamacpp_script(tmp_path)
    end = text[text.index("empty_door() {") : text.index("# Slurm sends KILL")]
    program = f"""
        private={tmp_path} pid_file={tmp_path}/server ends_at=1000 told= killer=
        say() {{ :; }}
        no_group() {{ :; }}
        {end}
        set -m
        stays() {{ touch "$private/$1"; while :; do sleep 0.05; done; }}
        (trap 'sleep 0.5; echo door left; exit' USR1; stays open) & door=$!
        (trap 'echo server told; exit' INT; stays up) & server=$!
        mkdir "$private/readonly"
        echo "$door" >"$private/readonly/door"; echo "$server" >"$pid_file"
        until [ -e "$private/open" ] && [ -e "$private/up" ]; do sleep 0.02; done
        end "its lease ends" 0 60
        wait "$door" "$server"
        kill -KILL -- "-$killer"
    """
    ran = subprocess.run(
        ("bash", "-uc", program), text=True, capture_output=True, check=False, timeout=PATIENCE_S
    )
    assert ran.stdout.splitlines() == ["door left", "server told"], ran.stderr


def test_a_door_that_has_closed_by_itself_is_no_failure(tmp_path: Path):
    text = llamacpp_script(tmp_path)
    keep = text[text.index("keep_door() {") : text.index("# Slurm may be too busy")]
    program = f"""
        private={tmp_path} pid_file={tmp_path}/server
        make_key() {{ :; }}
        find_address() {{ :; }}
        publish() {{ :; }}
        python3() {{ return "$code"; }}
        say() {{ echo "$@"; }}
        sleep 60 & server=$!
        mkdir "$private/readonly"
        echo "$server" >"$pid_file"; echo "a word" >"$private/readonly/words"
        {keep}
        for code in 0 1; do keep_door; done
        kill "$server"
    """
    ran = subprocess.run(
        ("bash", "-uc", program), text=True, capture_output=True, check=False, timeout=PATIENCE_S
    )
    assert ran.stdout.splitlines() == ["no door: "], ran.stderr


def test_a_failed_replica_leaves_no_line_of_its_log_where_everybody_reads():
    """A job's comment stands in everybody's squeue and scontrol show job."""
    text = script()
    start = text.index("leave_word() {")
    leave = text[start : text.index("\n}", start) + 2]
    program = f"""
        scontrol() {{ printf "%s\n" "$@"; }}
        echo "E1123 07:10:02.000001 17 model.cc:1] the path of a model"
        task=814_1 code=1 id=chat.814.1 SLURM_RESTART_COUNT=2
        {leave}
        leave_word
    """
    ran = subprocess.run(
        ("bash", "-uc", program), text=True, capture_output=True, check=True, timeout=PATIENCE_S
    )
    told = ran.stdout.splitlines()[1:]
    assert told == ["update", "JobId=814_1", "Comment=slicewise:run=2 ended with 1"]


def test_haproxy_warns_of_nothing(tmp_path: Path):
    """It warned 384 times at each start, of lines whose order it does not follow."""
    settings = GatewaySettings(
        directory=tmp_path,
        identity=tmp_path / "gateway.crt",
        runtime_socket=tmp_path / "haproxy.sock",
        backends=1,
        servers=1,
    )
    for name, text in gateway_files(settings).items():
        (tmp_path / name).write_text(text)
    prepare(settings)
    checked = ("haproxy", "-c", "-f", str(tmp_path / "haproxy.cfg"))
    told = subprocess.run(checked, capture_output=True, text=True, check=True)
    assert "WARNING" not in told.stdout + told.stderr
