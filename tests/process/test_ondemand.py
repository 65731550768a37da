"""Tests the app for Open OnDemand: its manifest, and its pages as a WSGI server asks for them."""

import ast
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
import yaml

from slicewise.launcher.cli.json_outputs import schema_of

APP = Path(__file__).parents[2] / "etc" / "ondemand"
SERVICE: dict[str, Any] = {
    "service": "vision/bert",
    "state": "ready",
    "slots": {"ready": [0, 1], "held": [2]},
    "max_replicas": 3,
    "gpus": 1,
    "profile": "3g.40gb",
    "backlog": 0,
    "url": "http://gateway.example.org/vision/bert",
    "report": {"reason": "2 wanted"},
}
Asked = Callable[..., tuple[str, str]]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The status and the page, where the command is a shell script."""
    command = tmp_path / "slicewise"
    monkeypatch.setenv("SLICEWISE_COMMAND", str(command))
    spec = importlib.util.spec_from_file_location("passenger_wsgi", APP / "passenger_wsgi.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app = validator(module.application)

    def ask(script: str | None = None, method: str = "GET") -> tuple[str, str]:
        if script is not None:
            command.write_text(f"#!/bin/sh\n{script}\n")
            command.chmod(0o755)
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "QUERY_STRING": ""}
        setup_testing_defaults(environ)
        said: list[str] = []
        parts = app(environ, lambda status, _headers, _error=None: said.append(status))
        body = b"".join(parts).decode()
        parts.close()
        return said[0], body

    return ask


def listing(*services: object) -> str:
    return f'[ "$*" = "service list --json" ] || exit 9\ncat <<"END"\n{json.dumps(services)}\nEND'


def test_the_manifest_is_what_open_ondemand_reads():
    manifest = yaml.safe_load((APP / "manifest.yml").read_text())
    assert {"name", "category", "role", "description", "icon"} == manifest.keys()
    # With this role it would be an interactive app.
    assert manifest["role"] != "batch_connect"


def test_it_shows_what_the_command_lists(asked: Asked):
    status, page = asked(listing(SERVICE, {**SERVICE, "service": "nlp/llm", "backlog": None}))
    assert status == "200 OK"
    for cell in ("vision/bert", "2 of at most 3", "1 × 3g.40gb", "0", SERVICE["url"]):
        assert f"<td>{cell}</td>" in page
    assert "<td>not known</td>" in page
    assert page.count("<tr title=") == 2


def test_what_users_have_named_is_text(asked: Asked):
    odd = {"service": "<b>x</b>", "reason": '"><script>alert(1)</script>', "url": "<i>"}
    _, page = asked(listing({**SERVICE, **odd}))
    assert "&lt;b&gt;x" in page
    assert "<script" not in page
    assert "<i>" not in page


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'The daemon does not answer. <x> [SW-DAEMON-DOWN]' >&2; exit 3", "&lt;x&gt; [SW-"),
        ("echo no JSON", "Expecting value"),
        (None, "No such file"),
    ],
)
def test_it_says_why_there_is_no_list(asked: Asked, script: str | None, why: str):
    status, page = asked(script)
    assert status == "503 Service Unavailable"
    assert why in page


def test_no_service_and_other_requests(asked: Asked):
    assert "You may see no service" in asked(listing())[1]
    assert asked(listing(SERVICE), "HEAD") == ("200 OK", "")
    assert asked(listing(SERVICE), "POST")[0] == "405 Method Not Allowed"


def test_all_that_it_reads_is_in_the_commands_schema():
    tree = ast.parse((APP / "passenger_wsgi.py").read_text())
    read = {
        ast.literal_eval(node.slice)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "service"
    }
    assert read == SERVICE.keys()
    schema = schema_of("service list")
    assert read <= schema["items"]["properties"].keys()
    assert SERVICE["report"].keys() <= schema["$defs"]["ServiceReport"]["properties"].keys()


def test_a_service_of_which_the_launcher_told_nothing(asked: Asked):
    assert '<tr title="">' in asked(listing({**SERVICE, "report": None}))[1]
