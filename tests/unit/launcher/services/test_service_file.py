"""Tests that service files and model repositories are checked before a submission."""

import os
from pathlib import Path

import pytest
from builders.service_specs import a_spec

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import service_spec
from slicewise.launcher.services.service_file import (
    KEPT_LOGS,
    current_directory,
    made_logs,
    read_service_file,
    require_media,
    require_model,
    require_pool_engine,
    require_writable,
)

GOOD = """\
[service]
name = "chat"
tenant = "vision"
model_repository = "/models"
model = "m"
profile = "1g.10gb"
"""


def code_of(call) -> str:
    with pytest.raises(InvalidInputError) as caught:
        call()
    return caught.value.refusal.code


def test_a_good_file_is_a_service(tmp_path: Path):
    file = tmp_path / "chat.toml"
    file.write_text(GOOD)
    assert read_service_file(file).name == "chat"


def test_a_file_without_end_is_refused_before_it_is_read_whole():
    assert code_of(lambda: read_service_file(Path("/dev/zero"))) == "SW-VALUE"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"name = 1", "SW-SERVICE"),
        (b"[service", "SW-SERVICE"),
        (b"\xff\xfe", "SW-SERVICE"),
        (b"service = 3", "SW-SERVICE"),
        ((GOOD + "[more]\n").encode(), "SW-SERVICE"),
        ((GOOD + "replicas = 3\n").encode(), "SW-SERVICE"),
        (GOOD.replace("/models", "/models/$(reboot)").encode(), "SW-SERVICE"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: bytes, code: str):
    file = tmp_path / "chat.toml"
    file.write_bytes(text)
    assert code_of(lambda: read_service_file(file)) == code


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InvalidInputError, match=r"none\.toml: No such file"):
        read_service_file(tmp_path / "none.toml")


@pytest.mark.parametrize("inside", ["config.pbtxt", "1/"])
def test_a_model_has_a_configuration_or_a_version(tmp_path: Path, inside: str):
    model = tmp_path / "bert"
    model.mkdir()
    (model / inside).mkdir() if inside.endswith("/") else (model / inside).touch()
    # Where that leads can't be looked at, as if the submitter might not go there.
    (model / "README").symlink_to("x" * 300)
    require_model(a_spec(model="bert", model_repository=str(tmp_path)))


def test_a_missing_repository_and_a_missing_model_are_refused(tmp_path: Path):
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt" / "config.pbtxt").touch()
    (tmp_path / "empty").mkdir()
    assert (
        code_of(
            lambda: require_model(a_spec(model="bert", model_repository=str(tmp_path / "none")))
        )
        == "SW-SERVICE-MODEL"
    )
    assert (
        code_of(lambda: require_model(a_spec(model="empty", model_repository=str(tmp_path))))
        == "SW-SERVICE-MODEL"
    )
    with pytest.raises(InvalidInputError, match="models there: gpt"):
        require_model(a_spec(model="bert", model_repository=str(tmp_path)))
    with pytest.raises(InvalidInputError, match=f"gpt is a model; .* {tmp_path}. If"):
        require_model(a_spec(model="bert", model_repository=str(tmp_path / "gpt")))


def test_logs_need_a_place(tmp_path: Path):
    require_writable(tmp_path)
    assert code_of(lambda: require_writable(tmp_path / "none")) == "SW-OUTPUT"


def test_logs_of_the_submissions_that_wrote_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "chat.toml"
    file.write_text(GOOD)
    chat = read_service_file(file)
    assert made_logs(chat, frozenset()) == "chat.logs/%A_%a.log"

    def write(name: str, at_s: int) -> str:
        path = tmp_path / "chat.logs" / name
        path.write_text("x")
        os.utime(path, (at_s, at_s))
        return name

    # The first one lives on: its slot 1 writes still.
    kept = {write("1_0.log", 100), write("1_1.log", 10_000), write("1_1.log.1", 9_000)}
    for array in range(2, KEPT_LOGS + 6):
        names = {write(f"{array}_0.log", array), write(f"{array}_0.log.1", array)}
        kept |= names if array > 6 else set()
    kept |= {write("notes.txt", 1), write("3_0.log.gz", 1)}
    kept |= {"2_0.log", "2_0.log.1"}
    made_logs(chat, {2})
    assert {one.name for one in (tmp_path / "chat.logs").iterdir()} == kept


def test_logs_behind_a_symlink_are_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.toml").write_text(GOOD)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "chat.logs").symlink_to("elsewhere")
    names = {f"{array}_0.log" for array in range(KEPT_LOGS + 1)}
    for name in names:
        (tmp_path / "elsewhere" / name).touch()
    made_logs(read_service_file(tmp_path / "chat.toml"), frozenset())
    assert {one.name for one in (tmp_path / "elsewhere").iterdir()} == names


def test_a_current_directory_that_was_removed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert code_of(current_directory) == "SW-OUTPUT"


@pytest.mark.parametrize(
    ("engine", "media_domains", "refused"),
    [
        ("vllm", None, ""),
        ("vllm", "a.example,10.0.0.7", ""),
        ("vllm", "*", ""),
        ("llamacpp", None, ""),
        ("llamacpp", "*", ""),
        ("llamacpp", "a.example", "llama.cpp can't tell hosts apart"),
        ("sglang", "*", "SGLang fetches no media by URL"),
        ("triton", "a.example", "Triton fetches no media by URL"),
        ("vllm", "", "media_domains: "),
        ("vllm", "*,a.example", "media_domains: "),
        ("vllm", "a.example;id", "media_domains: "),
        ("vllm", "a.example b", "media_domains: "),
        ("vllm", "--served-model-name", "media_domains: "),
        ("vllm", "http://a.example", "media_domains: "),
    ],
)
def test_media_by_url_are_opened_only_where_the_engine_can_do_it(
    engine: str, media_domains: str | None, refused: str
):
    values = {"name": "a", "tenant": "t", "model_repository": "/m", "model": "m", "gpus": 1}
    told = values | {"engine": engine, "media_domains": media_domains, "profile": "1g.10gb"}
    if not refused:
        require_media(service_spec(told))
        return
    with pytest.raises(InvalidInputError, match="SW-SERVICE") as caught:
        require_media(service_spec(told))
    assert refused in str(caught.value)


@pytest.mark.parametrize("engine", ["triton", "llamacpp", "vllm", "sglang"])
def test_a_pool_needs_an_engine_that_loads_models_while_it_serves(engine: str):
    require_pool_engine(a_spec(engine=engine))
    if engine in {"triton", "llamacpp"}:
        require_pool_engine(a_spec(engine=engine, pool="small"))
        return
    with pytest.raises(InvalidInputError, match="SW-SERVICE") as caught:
        require_pool_engine(a_spec(engine=engine, pool="small"))
    assert "can't load and unload models while it serves" in str(caught.value)
