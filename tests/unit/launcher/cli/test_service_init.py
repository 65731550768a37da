"""Tests that ``service init`` writes a file that plan takes, and never over another one."""

import json
import os
import tomllib
from pathlib import Path

import pytest
from builders.service_views import a_tenant_view
from stand_ins.daemon_answers import answer_in_its_place
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.rpc.messages import ViewAnswer, ViewRequest
from slicewise.launcher.cli.service import service_app
from slicewise.launcher.services.model_repository import require_runnable
from slicewise.launcher.services.service_file import read_service_file

CONFIG = 'backend: "python"\ninstance_group [{ kind: KIND_CPU count: 3 }]\n'


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "slicewise.toml").write_text(
        '[cluster]\nname = "c"\npartitions = ["gpu"]\n[gpus."A100-80GB"]\ntypes = ["1g.10gb"]\n'
    )
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    monkeypatch.chdir(tmp_path)
    sees(monkeypatch, "vision")
    return tmp_path / "models"


def sees(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    tenants = tuple(a_tenant_view(name=one, nominal_millislices=0) for one in names)
    seen = ViewAnswer(observed_s=1.0, complete=True, services=(), tenants=tenants)
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: seen)


def put(repository: Path, model: str, config: str = CONFIG) -> Path:
    version = repository / model / "1"
    version.mkdir(parents=True)
    (version / "model.py").touch()
    (repository / model / "config.pbtxt").write_text(config)
    return version


def invoke(*words: str):
    return CliRunner().invoke(service_app, ("init", *words), catch_exceptions=False)


def refusal(*words: str, code: str = "SW-USAGE") -> SlicewiseError:
    with pytest.raises(SlicewiseError) as caught:
        invoke(*words)
    assert caught.value.refusal.code == code
    return caught.value


def test_a_written_file_can_be_applied(repository: Path):
    with (put(repository, "Bert_Base") / "weights").open("wb") as weights:
        weights.truncate(4 * 1024**3)
    said = invoke("models").stdout
    assert (
        said
        == "bert-base.toml is written. What it would do: slicewise service apply bert-base.toml"
        " --dry-run\n"
    )
    spec = read_service_file(Path("bert-base.toml"))
    assert (spec.tenant, spec.model, spec.need_gib) == ("vision", "Bert_Base", 6.0)
    assert (spec.concurrency, spec.max_replicas, spec.session_affinity) == (3, 2, "none")
    assert (spec.model_repository, spec.deadline_s) == (str(repository), 60)
    # Slurm's default may be one of the site's partitions in which no job gets GPUs.
    assert spec.partition == "gpu"
    assert require_runnable(spec).name == "Bert_Base"


@pytest.mark.parametrize(
    ("config", "concurrency"),
    [
        ("max_batch_size: 8\ndynamic_batching { }\n", "auto"),
        ("dynamic_batching { }\n", 3),
        ("max_batch_size: 8\n", 3),
        # A sequence that waits for another one's end would take the place of that one's next
        # request, which then never comes through.
        ("sequence_batching { }\n", 64),
    ],
)
def test_concurrency_lets_batches_and_sequences_form(
    repository: Path, config: str, concurrency: object
):
    put(repository, "bert", f"{CONFIG}\n{config}")
    invoke("models")
    assert read_service_file(Path("bert.toml")).concurrency == concurrency


def test_what_is_there_stays(repository: Path):
    put(repository, "bert")
    Path("bert.toml").write_text("mine")
    assert "bert.toml can't be written: File exists" in str(refusal("models", code="SW-OUTPUT"))
    assert Path("bert.toml").read_text() == "mine"
    chosen = ("--output", "b.toml", "--name", "chat", "--tenant", "nlp", "--profile", "1g.10gb")
    invoke("models", *chosen)
    written = tomllib.loads(Path("b.toml").read_text())["service"]
    assert (written["name"], written["tenant"], written["profile"]) == ("chat", "nlp", "1g.10gb")
    assert "need_gib" not in written


@pytest.mark.parametrize(
    ("words", "code"),
    [(("nowhere",), "SW-USAGE"), (("models", "--name", "A b"), "SW-SERVICE")],
)
def test_what_was_typed_is_judged_without_a_daemon(
    repository: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: str
):
    def down(_: ViewRequest) -> ViewAnswer:
        raise UnreachableError("SW-DAEMON-DOWN", "no")

    put(repository, "bert")
    answer_in_its_place(monkeypatch, ViewRequest, down)
    refusal(*words, code=code)


def test_a_service_of_a_pool_says_how_much_memory_its_model_is_thought_to_take(repository: Path):
    with (put(repository, "bert") / "weights").open("wb") as weights:
        weights.truncate(100 * 1024**2)
    invoke("models", "--pool", "small", "--profile", "1g.10gb")
    spec = read_service_file(Path("bert.toml"))
    assert (spec.pool, spec.model_mib, spec.profile) == ("small", 122, "1g.10gb")
    assert "estimated: 1.2 times 100 MiB of files, not measured" in Path("bert.toml").read_text()
    assert require_runnable(spec).name == "bert"


def test_what_can_t_be_in_a_pool_is_refused_and_not_written(repository: Path):
    put(repository, "bert", "sequence_batching { }\n")
    words = ("models", "--pool", "small", "--profile", "1g.10gb")
    assert "keeps the state of sequences" in str(refusal(*words, code="SW-SERVICE"))
    assert "name their" in invoke("models", "--pool", "small").stderr
    assert not Path("bert.toml").exists()


def test_an_engine_without_pools_is_refused_in_one(repository: Path):
    model = repository / "llama"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (model / "model.safetensors").touch()
    words = ("models", "--pool", "small", "--profile", "1g.10gb")
    assert "can't load and unload models" in str(refusal(*words, code="SW-SERVICE"))


def test_sequences_are_kept_together(repository: Path):
    put(repository, "bert", CONFIG + "sequence_batching {}")
    invoke("models")
    assert require_runnable(read_service_file(Path("bert.toml"))).has_sequences


def test_objectives_of_tokens_need_an_engine_that_times_them(repository: Path):
    put(repository, "bert")
    invoke("models")
    spec = read_service_file(Path("bert.toml"))
    with pytest.raises(InvalidInputError, match="Triton does not say how long tokens take"):
        require_runnable(spec.model_copy(update={"tpot_ms": 50}))


def test_an_ensemble_is_chosen_before_its_parts(repository: Path):
    step = 'ensemble_scheduling { step [{ model_name: "part" model_version: -1 }] }'
    put(repository, "whole", f'platform: "ensemble"\n{step}')
    put(repository, "part", CONFIG + "sequence_batching {}")
    (repository / "docs").mkdir()
    result = invoke("models", "--json")
    assert json.loads(result.stdout)["file"] == "whole.toml"
    assert "docs: no model" in result.stderr
    assert read_service_file(Path("whole.toml")).session_affinity == "sequence"


def test_where_there_is_a_choice_it_is_the_users(repository: Path, monkeypatch):
    assert "no models to choose from" in str(refusal("models"))
    for name in ("a", "b"):
        put(repository, name)
    assert "--model: a, b" in refusal("models").refusal.hint
    assert "no model 'c'" in str(refusal("models", "--model", "c"))
    invoke("models", "--model", "b")
    assert read_service_file(Path("b.toml")).model == "b"
    sees(monkeypatch, "vision", "nlp")
    choice = refusal("models", "--model", "a", code="SW-USAGE")
    assert "Name one of: nlp, vision." in choice.refusal.hint


def test_a_directory_with_a_gguf_file_is_a_model_of_llama_cpp(repository: Path):
    (repository / "Tiny").mkdir(parents=True)
    (repository / "Tiny" / "tiny.Q4_K_M.gguf").touch()
    (repository / "broken").mkdir()
    result = invoke("models")
    assert result.stderr == ""
    text = Path("tiny.toml").read_text()
    assert "slicewise profile measures it" in text
    spec = read_service_file(Path("tiny.toml"))
    assert (spec.engine, spec.model, spec.need_gib) == ("llamacpp", "Tiny", 1.0)
    require_runnable(spec)


def test_a_directory_with_safetensors_is_a_model_of_vllm(repository: Path):
    (repository / "Tiny").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (repository / "Tiny" / name).write_text("{}")
    invoke("models")
    spec = read_service_file(Path("tiny.toml"))
    assert (spec.engine, spec.model) == ("vllm", "Tiny")
    require_runnable(spec)


def test_of_a_model_in_several_precisions_one_is_asked_for(repository: Path):
    (repository / "Tiny").mkdir(parents=True)
    for name in ("tiny-Q8_0.gguf", "tiny-Q4_K_M.gguf", "mmproj-F16.gguf"):
        with (repository / "Tiny" / name).open("wb") as file:
            file.truncate(1024**3 if "Q4" in name else 4 * 1024**3)
    asked = refusal("models")
    assert asked.refusal.hint == "Name one, --model-file: tiny-Q4_K_M.gguf, tiny-Q8_0.gguf."
    assert not list(Path.cwd().glob("tiny*.toml"))
    invoke("models", "--model-file", "tiny-Q4_K_M.gguf")
    spec = read_service_file(Path("tiny.toml"))
    assert (spec.model_file, spec.need_gib) == ("tiny-Q4_K_M.gguf", 2.5)
    assert require_runnable(spec).files == ("tiny-Q4_K_M.gguf",)


def test_what_is_no_model_is_described_by_what_lies_there(repository: Path):
    for model, names in {"a": ["config.json", "pytorch_model.bin"], "b": []}.items():
        (repository / model).mkdir(parents=True)
        for name in names:
            (repository / model / name).touch()
    said = refusal("models")
    assert "in a lies config.json, pytorch_model.bin" in str(said)
    assert "in b lies nothing" in str(said)
    for title in ("Triton", "llama.cpp", "vLLM", "SGLang"):
        assert title in said.refusal.hint
    for number in range(300):
        (repository / "a" / f"part{number}.bin").touch()
    said = refusal("models", "--model", "a")
    assert "in a lies 301 .bin, .json" in str(said)
    (repository / "config.json").touch()
    (repository / "model.safetensors").touch()
    assert "name the directory above it, and --model models" in refusal("models").refusal.hint


@pytest.mark.parametrize("named", ["models", "models/models--o--n"])
def test_a_cache_of_downloads_is_told_where_its_models_are(repository: Path, named: str):
    """Its files are links to those that are named by their content."""
    cache = repository / "models--o--n"
    snapshot = cache / "snapshots" / "0a1b2c"
    for place in (cache / "blobs", cache / "refs", snapshot):
        place.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (cache / "blobs" / f"of-{name}").write_text("{}")
        (snapshot / name).symlink_to(f"../../blobs/of-{name}")
    place = snapshot.parent.absolute()
    hint = f"One is deeper: name {place}, and --model 0a1b2c."
    assert refusal(named).refusal.hint == hint
    invoke(str(place), "--model", "0a1b2c", "--name", "n")
    require_runnable(read_service_file(Path("n.toml")))


def test_models_of_two_engines_are_two_models(repository: Path):
    for place in ("a/a.gguf", "b/config.json", "b/model.safetensors"):
        (repository / place).parent.mkdir(parents=True, exist_ok=True)
        (repository / place).touch()
    assert refusal("models").refusal.hint == "Name one, --model: a, b."
    invoke("models", "--model", "b")
    assert read_service_file(Path("b.toml")).engine == "vllm"


def measured(*loads: str) -> Path:
    """Figures of 1 and 8 requests at a time: the second is cheaper, and slower."""
    figures = {"ttft_p50_us": 1, "tpot_p50_us": 1, "tpot_p99_us": 9_000}
    row = {
        "model": "tiny", "board": "A100-80GB", "type": "1g.10gb", "processes": 1, "samples": 9,
        "throughput_mrps": 1000, "latency_us": 900_000, "steady": True, "reason": "",
    }  # fmt: skip
    rows = [
        row
        | {"batch": many}
        | {
            "tokens": figures
            | {"load": load, "output_mtps": 100_000 * many, "ttft_p99_us": 100_000 * many}
        }
        for many, load in zip((1, 8), loads, strict=True)
    ]
    file = Path("tiny.profile.json")
    file.write_text(json.dumps({"version": 1, "measurements": rows}))
    return file


@pytest.mark.parametrize(
    ("bound", "concurrency", "cost"), [("800", 8, "0.347"), ("799", 1, "2.78")]
)
def test_type_and_concurrency_may_be_those_where_tokens_cost_the_least(
    repository: Path, bound: str, concurrency: int, cost: str
):
    (repository / "tiny").mkdir(parents=True)
    (repository / "tiny" / "tiny.gguf").touch()
    file = measured("9+9", "9+9")
    invoke(str(repository), "--measured", str(file), "--ttft-ms", bound, "--tpot-ms", "9")
    text = Path("tiny.toml").read_text()
    assert f"measured: {cost} slice-hours per million output tokens" in text
    spec = read_service_file(Path("tiny.toml"))
    assert (spec.profile, spec.concurrency, spec.need_gib) == ("1g.10gb", concurrency, None)
    assert (spec.ttft_ms, spec.tpot_ms) == (int(bound), 9)


@pytest.mark.parametrize(("words", "is_learnt"), [(("--ttft-ms", "800"), True), ((), False)])
def test_with_an_objective_of_an_engine_that_batches_learning_begins_with_the_figures(
    repository: Path, words: tuple[str, ...], is_learnt: bool
):
    """Without one the number is that of the cheapest point."""
    (repository / "tiny").mkdir(parents=True)
    (repository / "tiny" / "config.json").write_text("{}")
    (repository / "tiny" / "model.safetensors").touch()
    file = measured("9+9", "9+9")
    os.utime(file, (1_764_417_600, 1_764_417_600))
    invoke(str(repository), "--measured", str(file), *words)
    spec = read_service_file(Path("tiny.toml"))
    assert spec.engine == "vllm"
    assert spec.concurrency == ("auto" if is_learnt else 8)
    figures = "2025-11-29,1:1000.0:0.001:100.0,8:8000.0:0.001:800.0"
    assert spec.measured == (figures if is_learnt else None)


def test_figures_that_do_not_say_it_are_refused(repository: Path):
    (repository / "tiny").mkdir(parents=True)
    (repository / "tiny" / "tiny.gguf").touch()
    words = (str(repository), "--measured", str(measured("9+9", "9+9")))
    refusal(*words, "--ttft-ms", "99", code="SW-SLO-UNREACHABLE")
    measured("9+9", "8+8")
    refusal(*words, code="SW-INPUT-FILE")
    put(repository, "bert")
    refusal(*words, "--model", "bert", code="SW-INPUT-FILE")
    assert not list(Path.cwd().glob("*.toml"))[1:]
    for wrong in (("--profile", "1g.10gb"), ("--ttft-ms", "9")):
        asked = words if wrong[0] == "--profile" else words[:1]
        assert invoke(*asked, *wrong).exit_code == 2
