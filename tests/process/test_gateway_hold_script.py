"""Tests what hold.lua tells the launcher, with a stand-in for HAProxy."""

import json
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.scripts.render import gateway_files

HAPROXY = """
local maps, actions, log, now_ms, later = {}, {}, {}, 1000000, {}
Map = { _str = 1 }
function Map.new(path)
    maps[path] = maps[path] or {}
    return { lookup = function(_, key) return maps[path][key] end }
end
core = {
    debug = 7, thread = 2,
    now = function() return { sec = now_ms // 1000, usec = now_ms % 1000 * 1000 } end,
    log = function(_, text) log[#log + 1] = text end,
    set_map = function(path, key, value) maps[path][key] = value end,
    register_action = function(name, _, act) actions[name] = act end,
    register_service = function() end,
    register_task = function() end,
}
function core.msleep(ms)
    now_ms = now_ms + ms
    local act = table.remove(later, 1)
    if act then act() end
end
-- A request in `backend`, without a replica.
local function hold(backend, ...)
    later = { ... }
    local vars = { ["txn.service"] = "t/a" }
    actions.hold({
        f = {
            be_name = function() return backend end,
            be_conn_free = function() return -1 end,
            stopping = function() return 0 end,
            date = function() return now_ms end,
        },
        get_var = function(_, name) return vars[name] end,
        set_var = function(_, name, value) vars[name] = value end,
        unset_var = function(_, name) vars[name] = nil end,
    })
end
"""


def said(tmp_path: Path, case: str) -> list[str]:
    text = gateway_files(GatewaySettings(directory=Path("/gw")))["hold.lua"]
    (tmp_path / "hold.lua").write_text(text)
    script = f"{HAPROXY}dofile('{tmp_path}/hold.lua')\n{case}\nprint(table.concat(log, '\\n'))"
    ran = subprocess.run(("lua5.3", "-"), input=script, text=True, capture_output=True, check=True)
    return ran.stdout.split("\n")[:-1]


MOVED = "function() maps['/gw/services.map']['t/a'] = 'triton1' end"


def test_the_launcher_is_told_again_when_it_has_taken_away_the_mark_of_a_request(tmp_path: Path):
    """The request came before that, so that it saw the old mark and the launcher did not look."""
    case = f"""
    maps['/gw/services.map']['t/a'], maps['/gw/asked.map']['t/a'] = 'tritonidle1', 'yes'
    hold('tritonidle1',
        function() now_ms = now_ms + 200; maps['/gw/asked.map']['t/a'] = nil end,
        function() end,
        {MOVED})
    log[#log + 1] = maps['/gw/asked.map']['t/a']
    """
    told, again, mark = said(tmp_path, case)
    assert (told, again) == ("held tritonidle1 1000000", "held tritonidle1 1000210")
    assert mark == "yes"


def test_only_a_backend_without_server_lines_is_marked(tmp_path: Path):
    """Also in its half for gRPC, and whatever else has such letters in its name."""
    case = f"""
    for _, name in ipairs({{ 'bridle1x', 'triton2', 'tritonidle2-grpc' }}) do
        local backend = name:gsub('%-grpc$', '')
        maps['/gw/services.map']['t/a'], maps['/gw/asked.map']['t/a'] = backend, nil
        hold(name, {MOVED})
        log[#log + 1] = name .. ' ' .. tostring(maps['/gw/asked.map']['t/a'])
    end
    """
    marks = [line for line in said(tmp_path, case) if line.endswith((" nil", " yes"))]
    assert marks == ["bridle1x nil", "triton2 nil", "tritonidle2-grpc yes"]


@pytest.mark.parametrize("half", ["triton1", "triton1-grpc"])
def test_the_launcher_is_told_which_replica_answers_who_was_held(tmp_path: Path, half: str):
    """Once for a while: thousands may have been held."""
    case = f"""
    maps['/gw/replicas.map']['triton1/r2'] = 'abcd'
    local function answer(server)
        actions.tell_answered({{ f = {{
            be_name = function() return '{half}' end,
            srv_name = function() return server end,
            date = function() return now_ms end,
        }} }})
    end
    for _, server in ipairs({{ 'r2', 'r2', 'r3' }}) do answer(server) end
    now_ms = now_ms + 5000
    answer('r2')
    """
    assert said(tmp_path, case) == [
        "answered abcd triton1 1000000",
        "answered abcd triton1 1005000",
    ]


def refused(tmp_path: Path, code: str, **variables: str) -> list[str]:
    """Status, headers and body of a refusal by HTTP."""
    told = {"txn.refused": code, "txn.service": "t/a"}
    told |= {f"txn.{name}": value for name, value in variables.items()}
    told_in_lua = "".join(f"[{json.dumps(name)}] = {lua(value)}, " for name, value in told.items())
    case = f"""
    local said = {{ {told_in_lua} }}
    actions.refuse({{
        get_var = function(_, name) return said[name] end,
        reply = function(_, parts)
            log[1] = tostring(parts and parts.status)
            return {{
                add_header = function(_, name, value) log[#log + 1] = name .. ': ' .. value end,
                set_body = function(_, body) log[#log + 1] = body end,
            }}
        end,
        done = function() end,
    }})
    """
    return said(tmp_path, case)


def lua(text: str) -> str:
    """A string of Lua: bytes that are no UTF-8 come as lone surrogates."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode(errors="surrogateescape")) + '"'


def test_a_method_that_no_engine_answers_is_told_which_ones_are(tmp_path: Path):
    status, *headers, _, _ = refused(tmp_path, "SW-GATEWAY-METHOD")
    assert status == "405"
    assert headers == ["allow: GET, HEAD, POST", "content-type: application/json"]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("t/Qwen/Qwen3-8B", "t/Qwen/Qwen3-8B"),
        ("t/a b%20c", "t/a b%20c"),
        ("t/\u00fcber\u2026", "t/\u00fcber\u2026"),
        ('t/a"}\\\r\n\x00', 't/a"}\\\r\n\x00'),
        ("t/\udcff\udcfe", "t/??"),
        ("t/\udced\udca0\udc80", "t/???"),
        ("t/" + "x" * 9000, "t/" + "x" * 126 + "..."),
        ("t/x" + "\u2026" * 90, "t/x" + "\u2026" * 41 + "..."),
    ],
)
def test_an_unknown_model_is_called_as_it_was_sent(tmp_path: Path, sent: str, shown: str):
    body = refused(tmp_path, "SW-GATEWAY-UNKNOWN", asked=sent, openai="yes")[2]
    assert f"there is no service '{shown}'; " in json.loads(body)["error"]["message"]
    (metadata,) = (
        line.removeprefix("grpc-message: ")
        for line in refused(tmp_path, "SW-GATEWAY-UNKNOWN", asked=sent, grpc="yes")
        if line.startswith("grpc-message: ")
    )
    assert metadata.isascii()
    assert f"there is no service '{shown}'; " in unquote(metadata)


def test_each_address_and_each_list_is_named_once(tmp_path: Path):
    for code in ("SW-GATEWAY-UNKNOWN", "SW-GATEWAY-DENIED"):
        message = json.loads(refused(tmp_path, code)[2])["error"]
        for word in ("/v1/...", "/v2/...", "completions, chat"):
            assert message.count(word) <= 1
    assert (
        "/TENANT/SERVICE/v1/..." in json.loads(refused(tmp_path, "SW-GATEWAY-UNKNOWN")[2])["error"]
    )


def test_too_much_json_is_told_what_its_clients_send_so_much_of(tmp_path: Path):
    tensors = json.loads(refused(tmp_path, "SW-GATEWAY-JSON")[2])["error"]
    images = json.loads(refused(tmp_path, "SW-GATEWAY-JSON", openai="yes")[2])["error"]["message"]
    assert "binary data" in tensors
    assert "image" not in tensors
    assert "an image by its URL" in images
    assert "tensors" not in images
    assert all("gateway.max_json_mib" in one for one in (tensors, images))
