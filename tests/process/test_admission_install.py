"""Tests ``slicewise admission install`` under real Lua, on scripts such as sites have."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stand_ins.daemon_answers import answer_in_its_place

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.rpc.messages import StatusAnswer, StatusRequest
from slicewise.slurm_plugin.cli.commands import admission
from slicewise.slurm_plugin.lua import try_site_script
from slicewise.slurm_plugin.lua.site_script import (
    Wiring,
    has_lines,
    minimal,
    with_lines,
    without_lines,
)

TOML = """
[cluster]
name = "c"
partitions = ["gpu", "big"]
[gpus."A100-80GB"]
types = ["1g.10gb"]
[daemon]
run_dir = "/run/sw"
"""
MODULE = """
local M = {}
M.VERSION = "9"
function M.configure(options) assert(options.socket:find("^/")) end
function M.job_submit() return slurm.SUCCESS end
function M.job_modify() return slurm.SUCCESS end
return M
"""
SITE = """-- ours
function slurm_job_submit(job_desc, part_list, submit_uid)
    if job_desc.partition == "closed" then
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
-- the end
"""


REAL_MODULE = Path(admission.__file__).parents[2] / "lua" / "slicewise.lua"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of job_submit.lua beside a slurm.conf."""
    (tmp_path / "slicewise.toml").write_text(TOML)
    (tmp_path / "slicewise.lua").write_text(MODULE)
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setattr(admission, "MODULE", tmp_path / "slicewise.lua")
    monkeypatch.setattr(admission, "_nodes", lambda _: ())
    return tmp_path / "job_submit.lua"


def test_a_site_without_a_script_gets_the_minimal_one(site: Path) -> None:
    admission.install()
    text = site.read_text()
    for words in ('"/run/sw/admission/admission.sock"', '"gpu", "big"', 'mode = "observe"'):
        assert words in text
    assert f'"{site.parent}/off"' in text
    admission.install()
    assert site.read_text() == text


def test_a_script_is_never_changed(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.write_text(SITE)
    admission.install()
    assert site.read_text() == SITE
    assert sorted(path.name for path in site.parent.iterdir()) == [
        "job_submit.lua",
        "slicewise.lua",
        "slicewise.toml",
    ]
    shown = capsys.readouterr().out
    assert "+do\n" in shown
    assert [line for line in shown.splitlines() if line.startswith("-") and "---" not in line] == []


def test_the_proposal_is_written_beside_it_once(site: Path) -> None:
    site.write_text(SITE)
    admission.install(write_proposal=True)
    proposal = site.with_name("job_submit.lua.slicewise-proposed")
    assert without_lines(proposal.read_text()).replace("\n\n\n", "\n\n") == SITE
    with pytest.raises(InvalidInputError, match="exists already: look at it, or remove it"):
        admission.install(write_proposal=True)
    assert site.read_text() == SITE


def test_a_file_that_is_no_script_is_refused_with_what_to_do(site: Path) -> None:
    binary = site.with_name("binary")
    binary.write_bytes(b"\x7fELF\xff")
    for file, words in (
        (site.parent, "Is a directory. Nothing was changed. A text file must be there"),
        (binary, "not UTF-8 text. Nothing was changed. A text file must be there"),
        (site.parent / "none" / "a.lua", f"The directory {site.parent}/none must exist."),
        (binary / "a.lua", f"The directory {binary} must exist."),
    ):
        with pytest.raises(InvalidInputError, match=r"\[SW-ADMISSION-FILE\]") as raised:
            admission.install(file=file)
        assert words in str(raised.value)


def test_a_script_with_the_lines_needs_nothing(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.write_text(SITE)
    admission.install(write_proposal=True)
    site.with_name("job_submit.lua.slicewise-proposed").replace(site)
    enforcing = site.read_text().replace('mode = "observe"', 'mode = "enforce"')
    site.write_text(enforcing)
    capsys.readouterr()
    admission.install(as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["diff"], said["written"]) == ("", None)
    assert (said["trial"]["slurm_job_submit"], said["trial"]["script"]) == ("0", "loaded")


def test_lines_of_older_settings_are_brought_up_to_date(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wiring = Wiring(site.with_name("slicewise.lua"), Path("/old/sock"), Path("/off"), ("gpu",))
    site.write_text(with_lines(SITE, wiring).replace('"observe"', '"advise"'))
    admission.install()
    shown = capsys.readouterr().out
    assert '-        socket = "/old/sock",' in shown
    assert 'observe"' not in shown


def test_lines_put_in_by_hand_are_left_alone(site: Path) -> None:
    site.write_text(f'local s = dofile("{site.parent}/slicewise.lua")\n{SITE}')
    admission.install(write_proposal=True)
    assert not site.with_name("job_submit.lua.slicewise-proposed").exists()


def wrapped(site_result: str) -> str:
    return f"function slurm_job_submit() {site_result} end\nreturn slurm.SUCCESS\n"


@pytest.mark.parametrize("result", ["return slurm.ERROR", "return 2077", "error('boom')", ""])
def test_what_a_sites_function_gives_stays(
    site: Path, result: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.write_text(wrapped(result))
    admission.install(as_json=True)
    outcome = json.loads(capsys.readouterr().out)["trial"]["slurm_job_submit"]
    expected = {"return slurm.ERROR": "-1", "return 2077": "2077", "": "0"}
    assert outcome == expected.get(result, outcome)
    assert ("boom" in outcome) == ("boom" in result)


BROKEN = [
    # the site's script, slicewise.lua, what is said
    ("if then", MODULE, "job_submit.lua:1"),
    (
        "x = 1\nfunction slurm_job_submit()\n",
        MODULE,
        "job_submit.lua:3: 'end' expected (to close 'function' at line 2)",
    ),
    ("os.exit(3)", MODULE, "the script ended the interpreter, as os.exit does"),
    ("os.exit(0)", MODULE, "the script ended the interpreter, as os.exit does"),
    ("function slurm_job_submit() os.exit(0) end", MODULE, "ended the interpreter"),
    (None, "syntax error here", "slicewise is off"),
    (None, 'require "no.such.library"', "no.such.library"),
    (None, MODULE.replace("return slurm.SUCCESS", "return 7"), "slurm_job_submit gives '7'"),
    (None, MODULE.replace('find("^/")', "find(0, {})"), "slicewise is off"),
]


@pytest.mark.parametrize(("script", "module", "words"), BROKEN)
def test_what_does_not_work_is_refused(
    site: Path, script: str | None, module: str, words: str
) -> None:
    if script is not None:
        site.write_text(script)
    site.with_name("slicewise.lua").write_text(module)
    with pytest.raises(InvalidInputError, match="SW-ADMISSION-LUA") as raised:
        admission.install(write_proposal=True)
    assert words in raised.value.refusal.message
    assert site.exists() == (script is not None)
    assert not site.with_name("job_submit.lua.slicewise-proposed").exists()


def test_a_script_that_never_ends_is_refused(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_site_script, "_DEADLINE_S", 0.2)
    site.write_text("while true do end")
    with pytest.raises(InvalidInputError, match=r"did not end within 0\.2 s.*SW-ADMISSION-LUA"):
        admission.install(write_proposal=True)
    assert not site.with_name("job_submit.lua.slicewise-proposed").exists()


def test_without_lua_nothing_is_tried(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidInputError, match=r"lua5\.1 is not on PATH"):
        admission.install()


def test_it_is_tried_under_slurmctlds_lua(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``unpack`` is there in Lua 5.1 only, as slurmctld's log alone would say."""
    site.with_name("slicewise.lua").write_text(f"local first = unpack({{ 1 }})\n{MODULE}")
    monkeypatch.setattr(admission, "linked_version", lambda _: "5.1")
    admission.install(as_json=True)
    assert json.loads(capsys.readouterr().out)["lua"] == "5.1"
    site.unlink()
    for linked, said in (("5.4", ""), ("5.1", "5.3")):
        monkeypatch.setattr(admission, "linked_version", lambda _, linked=linked: linked)
        with pytest.raises(InvalidInputError, match=r"global 'unpack'.*SW-ADMISSION-LUA"):
            admission.install(lua=said)
        assert not site.exists()


def test_status_says_that_slurmctlds_lua_refuses_it(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_in_its_place(monkeypatch, StatusRequest, lambda _: ANSWER)
    site.with_name("slicewise.lua").write_text(f"local first = unpack({{ 1 }})\n{MODULE}")
    monkeypatch.setattr(admission, "linked_version", lambda _: "5.4")
    admission.status(as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert "global 'unpack'" in said["here"]["problem"]
    (advice,) = (line for line in said["advice"] if "can't run slicewise.lua" in line)
    assert "global 'unpack'" in advice


def test_a_mistake_in_the_sites_script_is_seen_and_its_script_not_run(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """slurmctld goes on with the script of before, and would not start with this one."""

    def problem() -> str:
        admission.status(as_json=True)
        return str(json.loads(capsys.readouterr().out)["here"]["problem"])

    answer_in_its_place(monkeypatch, StatusRequest, lambda _: ANSWER)
    monkeypatch.setattr(admission, "linked_version", lambda _: "5.4")
    site.write_text(f"error('it was run')\n{SITE}")
    assert problem() == ""
    site.write_text(f"{SITE}local last = 1\n")
    assert "job_submit.lua:15:" in problem()
    # A copy of slicewise.lua lacks what it loads.
    copy = site.parent / "copy" / "slicewise.lua"
    copy.parent.mkdir()
    copy.write_text(f"dofile('beside.lua')\n{MODULE}")
    site.write_text(f'dofile("{copy}")\n{SITE}')
    assert "beside.lua" in problem()


def test_status_says_that_the_nodes_have_changed_since(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new partition on the nodes with GPUs gives them to anybody until the lines name it."""

    def advice() -> list[str]:
        admission.status(as_json=True)
        said = json.loads(capsys.readouterr().out)["advice"]
        return [line for line in said if "admission install shows the difference" in line]

    answer_in_its_place(monkeypatch, StatusRequest, lambda _: ANSWER)
    assert advice() == []
    admission.install()
    capsys.readouterr()
    assert advice() == []
    held: dict[str, int] = {}
    node = NodeView("n", "n", frozenset(), {"1g.10gb": 7}, held, frozenset({"gpu", "new"}))
    monkeypatch.setattr(admission, "_nodes", lambda _: (node,))
    assert len(advice()) == 1
    site.write_text(SITE)
    assert advice() == []


def test_each_lua_runs_the_real_module(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admission, "MODULE", REAL_MODULE)
    for version in ("5.1", "5.3", "5.4"):
        site.unlink(missing_ok=True)
        admission.install(lua=version)
        assert f"works under Lua {version}, in mode observe" in capsys.readouterr().out


def test_a_library_that_one_lua_lacks_is_named(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUA_CPATH_5_4", "/nowhere/?.so")
    monkeypatch.setenv("LUA_PATH_5_4", "/nowhere/?.lua")
    with pytest.raises(InvalidInputError, match=r"Lua 5\.4: .*lua-socket"):
        admission.install(lua="5.4")


def test_what_bounds_jobs_stands_in_the_lines(site: Path) -> None:
    """So it holds while the daemon is away."""
    settings = site.with_name("slicewise.toml")
    admission.install()
    assert 'without_gpu = "refuse",' in site.read_text()
    assert 'notices = "asked",' in site.read_text()
    assert "shares" not in site.read_text()
    bounds = 'without_gpu = "allow"\ncpus_per_slice = 2.5\nmemory_gib_per_slice = 4\n'
    types = settings.read_text().replace('["1g.10gb"]', '["1g.10gb", "3g.40gb"]')
    settings.write_text(f'{types}[admission]\nnotices = "always"\n{bounds}')
    (site.parent / "slicewise.lua").write_text(REAL_MODULE.read_text())
    for part in REAL_MODULE.parent.glob("slicewise_*.lua"):
        (site.parent / part.name).write_text(part.read_text())
    site.unlink()
    admission.install()
    text = site.read_text()
    assert 'without_gpu = "allow",' in text
    assert 'notices = "always",' in text
    assert '["1g.10gb"] = { cpus = 3, memory_mib = 4096 },' in text
    assert '["3g.40gb"] = { cpus = 9, memory_mib = 14336 },' in text


def test_the_nodes_say_what_comes_with_a_gpu(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a job with one slice may take all CPUs of its node, and so all its slices."""
    held: dict[str, int] = {}
    node = NodeView("n", "n", frozenset(), {"1g.10gb": 7}, held, frozenset({"gpu"}))
    node = replace(node, cpus=16, memory_mib=16000)
    monkeypatch.setattr(admission, "_nodes", lambda _: (node,))
    admission.install()
    assert '["1g.10gb"] = { cpus = 2, memory_mib = 2285 },' in site.read_text()
    site.unlink()
    settings = site.with_name("slicewise.toml")
    settings.write_text(
        settings.read_text() + '[admission]\ncpus_per_slice = "any"\nmemory_gib_per_slice = "any"\n'
    )
    admission.install()
    assert "shares" not in site.read_text()


def test_partitions_on_the_same_nodes_are_found(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``big`` is managed, too; the third node has no GPUs."""

    def node(name: str, gpus: dict[str, int], *partitions: str) -> NodeView:
        return NodeView(name, name, frozenset(), gpus, {}, frozenset(partitions))

    nodes = (
        node("a", {"1g.10gb": 7}, "gpu", "cpu"),
        node("b", {"1g.10gb": 7}, "big", "all", "cpu"),
        node("c", {}, "gpu", "login"),
        node("d", {"1g.10gb": 7}, "teaching"),
    )
    monkeypatch.setattr(admission, "_nodes", lambda _: nodes)
    admission.install()
    assert 'beside = { "all", "cpu" },' in site.read_text()


def test_without_slurms_nodes_no_shares_are_dropped(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("SLICEWISE_CONFIG", str(site.with_name("slicewise.toml")))
    monkeypatch.setenv("SLURM_CONF", str(site.with_name("slurm.conf")))
    with pytest.raises(UnreachableError, match=r"no slurm\.conf here.*SW-SLURM-DOWN"):
        admission.install()
    assert not site.exists()


def test_the_example_is_what_is_proposed() -> None:
    """But for its first lines: so it has all that holds while slicewise.lua can't be loaded."""
    example = Path(__file__).resolve().parents[2] / "etc" / "job_submit.lua"
    module = "/opt/slicewise/share/slicewise/lua/slicewise.lua"
    socket, off_file = "/run/slicewise/admission/admission.sock", "/etc/slicewise/off"
    wiring = Wiring(Path(module), Path(socket), Path(off_file), ("gpu",))
    assert example.read_text().endswith(minimal(wiring))


@pytest.mark.parametrize("command", ["install", "status"])
def test_nothing_is_loaded_from_where_the_operator_stands(
    site: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Lua 5.1 looks there first: a tenant's directory may have a socket.lua for root."""
    theirs = site.parent / "theirs"
    theirs.mkdir()
    owned = theirs / "owned"
    (theirs / "socket.lua").write_text(f"os.execute('touch {owned}')")
    monkeypatch.chdir(theirs)
    monkeypatch.setattr(admission, "linked_version", lambda _: "5.1")
    if command == "install":
        admission.install()
    else:
        with pytest.raises(UnreachableError):
            admission.status()
    assert not owned.exists()


def test_a_path_can_say_nothing_in_lua() -> None:
    evil = Path('/tmp/"]] .. os.execute("x") --\n')
    script = minimal(Wiring(evil, evil, evil, ('a"b',)))
    assert has_lines(script)
    assert 'os.execute(\\"x\\")' in script
    assert "--\\n" in script


def test_the_kill_switch_is_a_file_beside_the_settings(site: Path) -> None:
    admission.off()
    assert (site.parent / "off").exists()
    admission.off()
    admission.on()
    assert not (site.parent / "off").exists()
    admission.on()


def test_who_may_not_write_there_is_told(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEWISE_CONFIG", "/nowhere/slicewise.toml")
    with pytest.raises(InvalidInputError, match="SW-ADMISSION-FILE"):
        admission.off()


ANSWER = StatusAnswer(
    version="1.0",
    mode="enforce",
    host="head",
    is_leader=True,
    complete=True,
    observed_s=0.0,
    module_asked_s=1.0,
    module="9",
    module_mode="enforce",
    decisions={"admit": 3},
)
STATUS = [
    ({}, []),
    ({"unadmitted": 3, "unadmitted_s": 5.0}, ["3 jobs got GPUs, or wait for them, without"]),
    ({"is_uninstalled": True}, ["slicewise compile --again"]),
    ({"module": "8"}, ["on disk is 9: touch job_submit.lua"]),
    ({"module_mode": "observe"}, ["mode observe, the daemon in enforce"]),
    ({"module": "", "module_mode": "", "module_asked_s": None}, ["has not asked this daemon yet"]),
]


@pytest.mark.parametrize(("changes", "words"), STATUS)
def test_status_says_what_differs_and_what_to_do(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    words: list[str],
) -> None:
    answer = ANSWER.model_copy(update=changes)
    answer_in_its_place(monkeypatch, StatusRequest, lambda _: answer)
    admission.status(as_json=True)
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert len(advice) == len(words)
    assert [word for word, line in zip(words, advice, strict=True) if word not in line] == []
    admission.off()
    capsys.readouterr()
    admission.status()
    shown = capsys.readouterr().out
    assert "slicewise admission on" in shown
    assert "admit 3" in shown


def test_status_without_a_daemon_shows_what_is_known_and_fails(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
        admission.status(as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["daemon"], shown["advice"]) == (None, [])
    assert (shown["here"]["on_disk"], shown["here"]["is_off"]) == ("9", False)
    admission.off()
    capsys.readouterr()
    with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
        admission.status()
    shown = capsys.readouterr().out
    for words in ("gives no answer", "off is there", "slicewise admission on"):
        assert words in shown
