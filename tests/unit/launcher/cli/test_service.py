"""Tests what the commands for services check, submit and print."""

import gc
import json
import os
from decimal import Decimal
from pathlib import Path

import pytest
from builders.replica_keys import create_identity
from builders.service_views import a_service, a_tenant_view
from builders.settings import SITE_TOML
from stand_ins.daemon_answers import answer_in_its_place
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.service import directives_of_script
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.messages import (
    CheckRequest,
    SubmitAnswer,
    ViewAnswer,
    ViewRequest,
)
from slicewise.cluster.rpc.order_messages import OrderRequest
from slicewise.cluster.rpc.read_messages import SlicePriceAnswer, SlicePriceRequest
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import load_settings
from slicewise.cluster.slurm.sbatch import Submitted
from slicewise.launcher import main
from slicewise.launcher.cli import service as cli
from slicewise.launcher.process import loop
from slicewise.launcher.services import address
from slicewise.launcher.services.lookup import choose, complete_service
from slicewise.launcher.services.service_file import read_service_file

pytestmark = pytest.mark.usefixtures("clock")

SETTINGS = (
    SITE_TOML
    + """\
whole = ["a100"]
[gateway]
url = "http://gw:8080"
directory = "{directory}/gateway"
identity = "{directory}/gateway.crt"
"""
)


EMPTY = ViewAnswer(observed_s=1.0, complete=True, services=(), tenants=())


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    scripts: list[str] = []
    monkeypatch.chdir(tmp_path)

    def submit(script: str, output: str) -> Submitted:
        assert Path(output.removeprefix("--output=")).parent.is_dir()
        scripts.append(script)
        return Submitted(814, ("1 slot starts at once",))

    async def wait_for_route(url: str) -> str:
        return "" if not url.endswith("/slow") else "the gateway answers 404"

    monkeypatch.setattr(cli, "submit_service", submit)

    async def wait_until_followed(daemon: DaemonClient, array_job_id: int) -> str:
        return ""

    monkeypatch.setattr(address, "wait_for_route", wait_for_route)
    monkeypatch.setattr(address, "wait_until_followed", wait_until_followed)
    return scripts


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "slicewise.toml").write_text(SETTINGS.format(directory=tmp_path))
    (tmp_path / "gateway").mkdir()
    create_identity(load_settings(tmp_path / "slicewise.toml").gateway)
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.onnx").touch()
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.toml").write_text(
        f'[service]\nname = "chat"\ntenant = "vision"\nmodel_repository = "{tmp_path}/models"\n'
        'model = "m"\nprofile = "1g.10gb"\nmax_replicas = 3\n'
    )
    return tmp_path


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The daemon admits every tenant but guest, and has no service yet."""
    tenants: list[str] = []

    def check(request: CheckRequest) -> SubmitAnswer:
        tenants.append(request.tenant)
        if request.tenant == "guest":
            return SubmitAnswer(action="refuse", code="SW-QUOTA-NONE", message="No quota.")
        return SubmitAnswer(action="admit", gres="gpu:1g.10gb:1")

    answer_in_its_place(monkeypatch, CheckRequest, check)
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: EMPTY)
    answer_in_its_place(monkeypatch, SlicePriceRequest, lambda _: SlicePriceAnswer())
    monkeypatch.setattr(cli, "why_no_start", lambda script: "")
    return tenants


def lives(monkeypatch: pytest.MonkeyPatch, script: str, **change: object) -> None:
    """The daemon has the service of that script, as array job 800."""
    service = a_service(
        array_job_id=800, directives=dict(directives_of_script(script.splitlines()))
    )
    seen = EMPTY.model_copy(update={"services": (service,)} | change)
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: seen)


def invoke(*words: str) -> str:
    result = CliRunner().invoke(cli.service_app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*words: str) -> str:
    with pytest.raises(SlicewiseError) as caught:
        invoke(*words)
    return caught.value.refusal.code


def test_apply_checks_submits_and_prints_the_address(place, submitted, checked):
    said = invoke("apply", "chat.toml")
    assert "vision/chat is array job 814; its address: http://gw:8080/vision/chat" in said
    assert "1 slot starts at once" in said
    assert checked == ["vision"]
    assert directives_of_script(submitted[0].splitlines())["max_replicas"] == "3"


def test_apply_as_json(place, submitted, checked):
    expected = {"array_job_id": 814, "url": "http://gw:8080/vision/chat", "action": "create"}
    assert json.loads(invoke("apply", "chat.toml", "--json")) == expected | {"notes": []}


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_apply_says_if_the_address_is_not_there_yet(place, submitted, checked, options):
    file = place / "chat.toml"
    file.write_text(file.read_text().replace('"chat"', '"slow"'))
    result = CliRunner().invoke(cli.service_app, ("apply", "chat.toml", *options))
    assert result.exit_code == 0
    assert "The address can't be used yet: the gateway answers 404" in result.stderr
    assert "can't be used" not in result.stdout


def test_a_dry_run_submits_nothing(place, submitted, checked):
    said = invoke("apply", "chat.toml", "--dry-run")
    assert "vision/chat would be new: 0 to 3 replicas; its address: http://gw:8080/v" in said
    assert (submitted, checked) == ([], ["vision"])


def test_a_dry_run_in_json_says_the_same(place, submitted, checked):
    assert json.loads(invoke("apply", "chat.toml", "--dry-run", "--json")) == {
        "service": "vision/chat",
        "url": "http://gw:8080/vision/chat",
        "action": "create",
        "array_job_id": None,
        "changes": [],
        "notes": [],
        "model": {
            "name": "m",
            "backend": "onnxruntime",
            "instances": 1,
            "kinds": [],
            "versions": [1],
            "files": ["1/model.onnx"],
            "inputs": [],
            "outputs": [],
            "has_sequences": False,
            "is_decoupled": False,
            "parts": [],
        },
        "replica": {
            "gres_type": "1g.10gb",
            "gpus": 1,
            "gpu_model": "A100-80GB",
            "cost_millislices": 1000,
            "hour_price": None,
            "day_price": None,
            "currency": None,
        },
    }


def test_a_dry_run_says_what_replicas_cost(place, submitted, checked, monkeypatch):
    price = SlicePriceAnswer(currency="EUR", hour=Decimal("0.12"), day=Decimal("2.4"))
    answer_in_its_place(monkeypatch, SlicePriceRequest, lambda _: price)
    file = place / "chat.toml"
    file.write_text(f"{file.read_text().replace('1g.10gb', 'a100')}gpus = 2\n")
    admitted = SubmitAnswer(action="admit", gres="gpu:a100:2")
    answer_in_its_place(monkeypatch, CheckRequest, lambda _: admitted)
    words = (
        "replica: 2 × a100 of A100-80GB, 14 slices; EUR 1.68 an hour now,"
        " 33.60 a day while it runs, 3 of them 100.80"
    )
    assert words in invoke("apply", "chat.toml", "--dry-run").splitlines()
    said = json.loads(invoke("apply", "chat.toml", "--dry-run", "--json"))["replica"]
    prices = (said["hour_price"], said["day_price"], said["currency"])
    assert (*map(Decimal, prices[:2]), prices[2]) == (Decimal("1.68"), Decimal("33.6"), "EUR")
    assert said["gpus"] == 2


def test_without_the_gateways_certificate_nothing_is_begun(place, submitted, checked, recwarn):
    """Questions to the daemon that were made and never asked were warned of."""
    (place / "gateway.crt").unlink()
    assert refusal("apply", "chat.toml", "--dry-run") == "SW-GATEWAY-IDENTITY"
    gc.collect()
    assert not [one for one in recwarn if "never awaited" in str(one.message)]


def test_plan_names_what_the_model_needs_and_refuses_what_cannot_run(place, submitted, checked):
    said = invoke("apply", "chat.toml", "--dry-run")
    assert "model m: backend onnxruntime; 1 instance; version 1; files 1/model.onnx" in said
    (place / "models" / "m" / "config.pbtxt").write_text('backend: "pyton"')
    (place / "models" / "other").mkdir()
    assert refusal("apply", "chat.toml", "--dry-run") == "SW-SERVICE-MODEL"
    assert refusal("apply", "chat.toml") == "SW-SERVICE-MODEL"
    (place / "models" / "m" / "config.pbtxt").unlink()
    assert refusal("apply", "chat.toml") == "SW-SERVICE-MODEL"
    assert (
        json.loads(invoke("apply", "chat.toml", "--dry-run", "--skip-model-check", "--json"))[
            "model"
        ]
        is None
    )
    assert submitted == []


def test_plan_and_apply_take_a_model_of_llama_cpp_and_no_unknown_engine(place, submitted, checked):
    file, told = place / "chat.toml", (place / "chat.toml").read_text()
    (place / "models" / "m" / "m.gguf").touch()
    file.write_text(f'{told}engine = "llamacpp"\n')
    assert (
        "model m: 1 instance; files m.gguf"
        in invoke("apply", "chat.toml", "--dry-run").splitlines()
    )
    invoke("apply", "chat.toml")
    assert "/opt/llama.cpp/bin/llama-server" in submitted[0]
    file.write_text(f'{told}engine = "other"\n')
    for words in (
        ("apply", "chat.toml", "--dry-run"),
        ("apply", "chat.toml"),
        ("render", "chat.toml"),
    ):
        assert refusal(*words) == "SW-SERVICE-ENGINE"
    assert len(submitted) == 1


def test_plan_and_apply_say_what_would_keep_it_from_running(place, submitted, checked, monkeypatch):
    vision = a_tenant_view(nominal_millislices=2000)
    lives(monkeypatch, "", services=(), tenants=(vision,))
    monkeypatch.setattr(cli, "why_no_start", lambda script: "no such node")
    quota = "quota: vision's limit is 2 slices now, loans included: 2 of max_replicas 3"
    for words in (("apply", "chat.toml", "--dry-run"), ("apply", "chat.toml")):
        said = invoke(*words)
        assert quota in said
        assert "Slurm could not start a replica now: no such node." in said
        assert len(json.loads(invoke(*words, "--json"))["notes"]) == 2


def test_plan_counts_all_gpus_of_a_replica(place, submitted, checked, monkeypatch):
    file = place / "chat.toml"
    file.write_text(f"{file.read_text().replace('1g.10gb', 'a100')}gpus = 2\n")
    admitted = SubmitAnswer(action="admit", gres="gpu:a100:2")
    answer_in_its_place(monkeypatch, CheckRequest, lambda _: admitted)
    vision = a_tenant_view(nominal_millislices=30000)
    lives(monkeypatch, "", services=(), tenants=(vision,))
    assert "2 of max_replicas 3 can run, 14 slices each" in invoke(
        "apply", "chat.toml", "--dry-run"
    )


def test_gpus_that_the_engine_can_not_use_are_refused_everywhere(
    place, submitted, checked, monkeypatch
):
    """Those of a type that Slicewise chooses as soon as it has."""
    file = place / "chat.toml"
    told = file.read_text()
    for keys in ("gpus = 2", "nodes = 2"):
        file.write_text(f"{told}{keys}\n")
        for words in (
            ("apply", "chat.toml", "--dry-run"),
            ("apply", "chat.toml"),
            ("render", "chat.toml"),
        ):
            assert refusal(*words) == "SW-SERVICE"
    is_open = told.replace('profile = "1g.10gb"', "need_gib = 4")
    file.write_text(f"{is_open}gpus = 2\n")
    chosen = SubmitAnswer(action="admit", gres="gpu:1g.10gb:2")
    answer_in_its_place(monkeypatch, CheckRequest, lambda _: chosen)
    assert refusal("apply", "chat.toml", "--dry-run") == "SW-SERVICE"
    assert submitted == []


def test_what_is_as_the_file_says_is_not_submitted_again(place, submitted, checked, monkeypatch):
    lives(monkeypatch, invoke("render", "chat.toml"))
    said = invoke("apply", "chat.toml")
    assert "vision/chat is as the file says: array job 800. Nothing was submitted" in said
    assert json.loads(invoke("apply", "chat.toml", "--json"))["array_job_id"] == 800
    assert submitted == []
    assert "rolls over from array job 800 to 814" in invoke("apply", "chat.toml", "--force")
    assert len(submitted) == 1


def test_the_log_of_a_quiet_replica_is_kept(place, submitted, checked, monkeypatch):
    lives(monkeypatch, invoke("render", "chat.toml"))
    (place / "chat.logs").mkdir()
    for array in range(799, 821 + 1):
        log = place / "chat.logs" / f"{array}_0.log"
        log.touch()
        os.utime(log, (array, array))
    invoke("apply", "chat.toml", "--force")
    assert not (place / "chat.logs" / "799_0.log").exists()
    assert (place / "chat.logs" / "800_0.log").exists()
    assert not (place / "chat.logs" / "801_0.log").exists()


def test_a_changed_file_rolls_over_and_plan_shows_the_keys(place, submitted, checked, monkeypatch):
    lives(monkeypatch, invoke("render", "chat.toml"))
    file = place / "chat.toml"
    file.write_text(file.read_text() + 'concurrency = 4\nenvironment = { A = "b c" }\n')
    said = invoke("apply", "chat.toml", "--dry-run").splitlines()
    assert said == [
        "vision/chat would roll over from array job 800",
        "  - concurrency = 1",
        "  + concurrency = 4",
        "  + environment = A=b%20c",
        "replica: 1g.10gb of A100-80GB, 1 slice",
        "model m: backend onnxruntime; 1 instance; version 1; files 1/model.onnx",
    ]
    assert submitted == []
    said = invoke("apply", "chat.toml")
    assert "vision/chat rolls over from array job 800 to 814; its address stays: http" in said
    assert "#SLICEWISE concurrency=4" in submitted[0]


def test_adapters_are_checked_and_only_a_forced_change_of_them_replaces_replicas(
    place, submitted, checked, monkeypatch
):
    ordered: list[tuple[int, str]] = []

    def order(request: OrderRequest) -> DoneAnswer:
        ordered.append((request.array_job_id, request.what))
        return DoneAnswer()

    answer_in_its_place(monkeypatch, OrderRequest, order)
    model, file = place / "models" / "m", place / "chat.toml"
    for name in ("config.json", "w.safetensors"):
        (model / name).write_text("{}")
    told = file.read_text() + 'adapters = { legal = "lora" }\n'
    file.write_text(told)
    for words in (
        ("apply", "chat.toml", "--dry-run"),
        ("apply", "chat.toml"),
        ("render", "chat.toml"),
    ):
        assert refusal(*words) == "SW-SERVICE-MODEL"
    told += 'engine = "vllm"\n'
    file.write_text(told)
    assert refusal("apply", "chat.toml") == "SW-SERVICE-MODEL"
    lora = place / "models" / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text('{"r": 8, "base_model_name_or_path": "x/other"}')
    (lora / "adapter_model.safetensors").touch()
    assert "chat:legal was made for other, not for m" in invoke("apply", "chat.toml", "--dry-run")
    lives(monkeypatch, invoke("render", "chat.toml"))
    (lora / "adapter_model.safetensors").write_text("other weights")
    assert "as the file says" in invoke("apply", "chat.toml", "--dry-run")
    file.write_text(told.replace('"lora"', '"lora", tax = "lora"'))
    stay = "replicas that run load and unload adapters; none of them is replaced"
    assert stay in invoke("apply", "chat.toml")
    assert "#SLICEWISE adapters=legal=lora&tax=lora" in submitted[0]
    assert ordered == []
    assert stay not in invoke("apply", "chat.toml", "--force")
    assert ordered == [(800, "restart")]
    file.write_text(told.replace('adapters = { legal = "lora" }\n', ""))
    (lora / "adapter_config.json").unlink()
    (lora / "adapter_model.safetensors").unlink()
    assert stay in invoke("apply", "chat.toml")
    assert len(ordered) == 1
    assert stay not in invoke("apply", "chat.toml", "--force")
    assert len(ordered) == 2


def test_other_files_in_the_repository_roll_over_and_unknown_ones_do_not(
    place, submitted, checked, monkeypatch
):
    lives(monkeypatch, invoke("render", "chat.toml"))
    assert "as the file says" in invoke("apply", "chat.toml", "--dry-run")
    (place / "models" / "m" / "1" / "model.onnx").write_text("new weights")
    said = invoke("apply", "chat.toml", "--dry-run")
    assert "  + model_digest = " in said
    assert "\n  The model repository has other files than the service.\n" in said
    assert "would roll over from array job 800" in said
    assert "as the file says" in invoke("apply", "chat.toml", "--dry-run", "--skip-model-check")


def test_a_daemon_that_sees_only_a_part_is_no_ground_to_submit_on(
    place, submitted, checked, monkeypatch
):
    lives(monkeypatch, invoke("render", "chat.toml"), complete=False)
    assert (refusal("apply", "chat.toml"), submitted) == ("SW-DAEMON-BLIND", [])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (('"vision"', '"guest"'), "SW-QUOTA-NONE"),
        (("max_replicas = 3", "min_replicas = 9"), "SW-SERVICE"),
        (("max_replicas = 3", "lease_s = 59"), "SW-SERVICE"),
        (('"m"', '"other"'), "SW-SERVICE-MODEL"),
        (("/models", "/missing"), "SW-SERVICE-MODEL"),
        (("max_r", 'runtime = "apptainer"\nimage = "/no.sif"\nmax_r'), "SW-SERVICE-MODEL"),
        (("/models", "/models;reboot"), "SW-SERVICE"),
        (("[service]", "[services]"), "SW-SERVICE"),
    ],
)
def test_nothing_is_submitted_on_any_error(place, submitted, checked, change, code):
    file = place / "chat.toml"
    file.write_text(file.read_text().replace(*change))
    assert (refusal("apply", "chat.toml"), submitted) == (code, [])


def test_a_repository_that_only_nodes_see(place, submitted, checked):
    file = place / "chat.toml"
    file.write_text(file.read_text().replace("/models", "/missing"))
    invoke("apply", "chat.toml", "--skip-model-check")
    assert len(submitted) == 1


def test_render_prints_what_apply_submits(place, submitted, checked):
    invoke("apply", "chat.toml")
    assert invoke("render", "chat.toml") == submitted[0]


def test_the_example_is_a_service(tmp_path: Path):
    file = tmp_path / "bert.toml"
    file.write_text(invoke("schema", "--example"))
    assert read_service_file(file).name == "bert"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chat", "vision/chat"),
        ("vision/chat", "vision/chat"),
        ("nlp/bert", "nlp/bert"),
        ("vision/bert", "vision/bert"),
    ],
)
def test_a_service_is_found_by_name(name: str, expected: str):
    assert choose(name, ("vision/chat", "vision/chat", "vision/bert", "nlp/bert")) == expected


@pytest.mark.parametrize(("name", "code"), [("bert", "SW-USAGE"), ("nobody", "SW-SERVICE-UNKNOWN")])
def test_a_name_that_is_nobodys_or_everybodys(name: str, code: str):
    with pytest.raises(InvalidInputError) as caught:
        choose(name, ("vision/bert", "nlp/bert"))
    assert caught.value.refusal.code == code


def test_what_was_not_asked_for_is_not_said_to_be_none():
    """Events and history get the services of the one name that they asked for."""
    with pytest.raises(InvalidInputError) as caught:
        choose("nobody", ())
    assert caught.value.refusal.hint == "All that you may see: slicewise service list"


def test_the_shell_completes_names(place, checked, monkeypatch):
    lives(monkeypatch, invoke("render", "chat.toml"))
    assert (complete_service("ch"), complete_service("b")) == (["chat"], [])


def test_without_a_daemon_the_shell_completes_nothing(place):
    assert complete_service("") == []


@pytest.mark.parametrize("program", ["daemon", "launcher"])
def test_both_programs_take_a_configuration_and_show_examples(program: str):
    said = CliRunner().invoke(main.app, (program, "--help"), catch_exceptions=False).stdout
    words = " ".join(said.replace("│", " ").split())
    assert "--config" in words
    assert f"Examples: slicewise {program} --config /etc/slicewise/slicewise.toml" in words


def test_the_launcher_reads_the_configuration_that_it_is_given(place, tmp_path, monkeypatch):
    names: list[str] = []

    async def serve(settings: Settings) -> None:
        names.append(settings.cluster.name)

    monkeypatch.setattr(loop, "serve", serve)
    other = tmp_path / "other.toml"
    other.write_text((place / "slicewise.toml").read_text().replace('"c"', '"other"'))
    CliRunner().invoke(main.app, ("launcher", "--config", str(other)), catch_exceptions=False)
    CliRunner().invoke(main.app, ("launcher",), catch_exceptions=False)
    assert names == ["other", "c"]
