"""Tests what hold.lua tells the launcher, with a stand-in for HAProxy."""

import subprocess
from pathlib import Path

from cluster.settings.gateway import GatewaySettings
from launcher.scripts.render import gateway_files

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


MOVED = "function() maps['/gw/services.map']['t/a'] = 'pool1' end"


def test_the_launcher_is_told_again_when_it_has_taken_away_the_mark_of_a_request(tmp_path: Path):
    """The request came before that, so that it saw the old mark and the launcher did not look."""
    case = f"""
    maps['/gw/services.map']['t/a'], maps['/gw/asked.map']['t/a'] = 'poolidle1', 'yes'
    hold('poolidle1',
        function() now_ms = now_ms + 200; maps['/gw/asked.map']['t/a'] = nil end,
        function() end,
        {MOVED})
    log[#log + 1] = maps['/gw/asked.map']['t/a']
    """
    told, again, mark = said(tmp_path, case)
    assert told == again
    assert told.endswith(" poolidle1")
    assert mark == "yes"


def test_only_a_backend_without_server_lines_is_marked(tmp_path: Path):
    """Also in its half for gRPC, and whatever else has such letters in its name."""
    case = f"""
    for _, name in ipairs({{ 'bridle1x', 'pool2', 'poolidle2-grpc' }}) do
        local backend = name:gsub('%-grpc$', '')
        maps['/gw/services.map']['t/a'], maps['/gw/asked.map']['t/a'] = backend, nil
        hold(name, {MOVED})
        log[#log + 1] = name .. ' ' .. tostring(maps['/gw/asked.map']['t/a'])
    end
    """
    marks = [line for line in said(tmp_path, case) if line.endswith((" nil", " yes"))]
    assert marks == ["bridle1x nil", "pool2 nil", "poolidle2-grpc yes"]


def test_a_method_that_no_engine_answers_is_told_which_ones_are(tmp_path: Path):
    case = """
    local said = { ['txn.refused'] = 'SW-GATEWAY-METHOD', ['txn.service'] = 't/a' }
    actions.refuse({
        get_var = function(_, name) return said[name] end,
        reply = function(_, parts)
            log[1] = tostring(parts.status)
            return {
                add_header = function(_, name, value) log[#log + 1] = name .. ': ' .. value end,
                set_body = function() end,
            }
        end,
        done = function() end,
    })
    """
    allow, kind = "allow: GET, HEAD, POST", "content-type: application/json"
    assert said(tmp_path, case) == ["405", allow, kind]
