"""Tests what the doctor says of engines: of those that are installed, and of those that serve."""

import os
from pathlib import Path

import pytest
from builders.service_views import a_report
from stand_ins.daemon_answers import answer_in_its_place

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.findings import Finding
from slicewise.cluster.rpc.messages import ViewAnswer, ViewRequest
from slicewise.launcher.cli import engines_report

SITE = """
[cluster]
name = "c"
partitions = ["gpu"]
[gpus."A100-80GB"]
types = ["1g.10gb"]
[engines.vllm]
command = "{place}/vllm/bin/vllm"
[engines.triton]
command = "{place}/triton/bin/tritonserver"
[engines.sglang]
command = "{place}/sglang/bin/sglang"
"""


def found(monkeypatch: pytest.MonkeyPatch, place: Path, *old: str) -> list[Finding]:
    (place / "slicewise.toml").write_text(SITE.format(place=place))
    monkeypatch.setenv("SLICEWISE_CONFIG", str(place / "slicewise.toml"))
    reports = tuple(a_report(name=f"s{number}", old_engine=one) for number, one in enumerate(old))
    answer = ViewAnswer(
        observed_s=1.0, complete=True, services=(), tenants=(), service_reports=reports
    )
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: answer)
    (report,) = engines_report.reports(("engines",), None, Path("/"))
    return list(report.findings)


def install(place: Path, program: str, stated: str, text: str = "") -> None:
    (place / program).mkdir(parents=True)
    (place / program / "bin").mkdir()
    server = {"triton": "tritonserver"}.get(program, program)
    (place / program / "bin" / server).touch()
    (place / program / stated).parent.mkdir(parents=True, exist_ok=True)
    (place / program / stated).write_text(text)


PACKAGES = "lib/python3.12/site-packages"


def test_an_old_engine_that_is_installed_here_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert found(monkeypatch, tmp_path) == []
    install(tmp_path, "vllm", f"{PACKAGES}/vllm-0.31.0.dist-info")
    install(tmp_path, "sglang", f"{PACKAGES}/sglang-0.5.23.dist-info")
    install(tmp_path, "triton", "TRITON_VERSION", "2.59.1\n")
    triton, vllm = found(monkeypatch, tmp_path)
    assert triton.code == vllm.code == "SW-VERSION"
    assert "Triton 2.59.1 is installed here" in triton.what
    assert "use Triton 26.07 (2.71.0) or newer" in triton.why
    assert "vLLM 0.31.0 is installed here" in vllm.what


def test_a_version_is_read_of_no_other_file_and_shown_as_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(tmp_path, "triton", "TRITON_VERSION", "2.59.1 \x1b[2J")
    (triton,) = found(monkeypatch, tmp_path)
    assert "Triton 2.59.1 is installed here" in triton.what
    stated, secret = tmp_path / "triton" / "TRITON_VERSION", tmp_path / "secret"
    stated.rename(secret)
    stated.symlink_to(secret)
    assert found(monkeypatch, tmp_path) == []
    stated.unlink()
    os.mkfifo(stated)
    assert found(monkeypatch, tmp_path) == []


def test_services_whose_replicas_run_an_old_engine_are_named_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    many = ["vLLM 0.31.0"] * 7
    one, other = found(monkeypatch, tmp_path, *many, "llama.cpp b9000-0a1b2c3", "")
    assert one.what.startswith("vLLM 0.31.0 serves ")
    assert one.what.endswith("and 3 more")
    assert "use vLLM 0.32.0 or newer" in one.why
    assert other.what.startswith("llama.cpp b9000-0a1b2c3 serves ")
    assert "use llama.cpp b12405 or newer" in other.why


def test_a_daemon_that_does_not_answer_is_another_section_s_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found(monkeypatch, tmp_path)

    def down(_: object) -> ViewAnswer:
        raise UnreachableError("SW-DAEMON-DOWN", "It does not answer.")

    answer_in_its_place(monkeypatch, ViewRequest, down)
    (report,) = engines_report.reports(("engines",), None, Path("/"))
    assert report.findings == ()
