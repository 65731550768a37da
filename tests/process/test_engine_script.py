"""How a replica's script starts Triton: bare, by Apptainer, by Pyxis.

The script runs whole, under bash; Slurm's commands, the container runtime and Triton are stand-ins
that write down what they were told.
"""

import fcntl
import mmap
import os
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from batch_script import run_batch_script
from builders.replica_keys import gateway_directory
from free_ports import free_port
from waiting import PATIENCE_S

from slicewise.cluster.language.jobs import CERTIFICATE
from slicewise.cluster.language.service import service_spec
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.cluster.settings.file import LauncherSettings
from slicewise.launcher.gateway.pem import pem
from slicewise.launcher.rules.engines.registry import start_settings
from slicewise.launcher.scripts.render import LOG_BYTES, service_script
from slicewise.launcher.services.model_repository import repository_digest, with_files

GATEWAY = (gateway_directory() / "gateway.crt").read_text()

VALUES: Mapping[str, object] = {
    "name": "chat",
    "tenant": "vision",
    "model_repository": "/models/@chat",
    "model": "m",
    "profile": "1g.10gb",
}
ODD = {"GREETING": """it's "$HOME" `id` \\ & ;""", "EMPTY": "", "LD_LIBRARY_PATH": "/a:/b"}
NO_EDITS: Mapping[str, str] = {}
STAND_INS = {
    "scontrol": """case $1 in
            update) printf '%s\\n' "$@" >"$TOLD/scontrol.new"
                mv "$TOLD/scontrol.new" "$TOLD/scontrol" ;;
            *) echo "NodeAddr=127.0.0.1 KillWait"; echo "KillWait = 30 sec" ;;
        esac""",
    "srun": """printf '%s\\n' "$@" >"$TOLD/srun"
        export SLURM_STEP_RESV_PORTS=$PORTS
        until [ "$1" = bash ]; do shift; done
        exec "$@" """,
    "apptainer": """printf '%s\\n' "$@" >"$TOLD/apptainer"
        shift 5
        exec "$@" """,
    "tritonserver": """printf '%s\\n' "$@" >"$TOLD/tritonserver"
        env >"$TOLD/environment"
        socket=$(printf '%s\\n' "$@" | sed -n 's/^--http-address=unix://p')
        cp "${socket%/*}/marks" "$TOLD/marks"
        stat --format=%A /dev/shm "${socket%/*}" >"$TOLD/modes"
        flock --nonblock "${socket%/*}" true || : >"$TOLD/locked"
        until [ -e "$TOLD/scontrol" ]; do sleep 0.05; done""",
}


@pytest.fixture
def told(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    return tmp_path


def run(
    told: Path,
    ports: Sequence[int] = (),
    edits: Mapping[str, str] = NO_EDITS,
    cache: Path | None = None,
    image_copies: bool = True,
    **change: object,
) -> str:
    """Run the script of such a service; Slurm allots it these ports, or free ones. Its log."""
    command = told / "it's bare"
    command.unlink(missing_ok=True)
    command.symlink_to(told / "bin" / "tritonserver")
    own = EngineSettings(command=command, image_copies=image_copies)
    engine = str(change.get("engine", "triton"))
    settings = start_settings(engine, {engine: own})
    launcher = LauncherSettings(node_cache=cache)
    text = service_script(service_spec({**VALUES, **change}), settings, GATEWAY, launcher)
    for before, after in edits.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    variables = {"PORTS": ",".join(map(str, ports or (free_port(), free_port())))}
    return run_batch_script(text, told, variables)


def words(told: Path, program: str) -> list[str]:
    return (told / program).read_text().splitlines()


IMAGES = [
    {},
    {"runtime": "apptainer", "image": "/images/triton.sif"},
    {"runtime": "pyxis", "image": "nvcr.io#nvidia/tritonserver:24.05-py3"},
]


@pytest.mark.parametrize("container", IMAGES)
def test_triton_gets_the_same_options_in_every_runtime(told: Path, container: dict[str, object]):
    run(told, **container)
    assert {
        "--id=chat.7.3",
        "--model-repository=/models/@chat",
    } <= set(words(told, "tritonserver"))


@pytest.mark.parametrize("container", IMAGES)
def test_triton_listens_where_nobody_but_its_user_comes(told: Path, container: dict[str, object]):
    run(told, **container)
    addresses = [one for one in words(told, "tritonserver") if "-address=" in one]
    assert [one.partition("=")[2].partition(":")[0] for one in addresses] == ["unix"] * 3
    assert words(told, "modes")[1] == "drwx------"


def test_nobody_clears_away_the_directory_of_a_replica_that_runs(told: Path):
    run(told)
    assert (told / "locked").exists()


def test_bare_triton_has_a_dev_shm_of_its_own(told: Path):
    run(told)
    assert words(told, "modes")[0] == "drwx------"


@pytest.mark.parametrize("container", IMAGES[1:])
def test_a_container_gets_a_dev_shm_of_its_own(told: Path, container: dict[str, object]):
    run(told, **container)
    mounts = (*words(told, "srun"), *words(told, "environment"))
    bound = re.search(r"(/dev/shm/slicewise\.[^:,]*):/dev/shm", "\n".join(mounts))
    assert bound is not None
    assert not Path(bound[1]).exists()


def test_the_door_s_certificate_is_told_for_this_run(told: Path):
    run(told)
    update, job, comment = words(told, "scontrol")
    assert (update, job) == ("update", "JobId=7_3")
    told_of = CERTIFICATE.fullmatch(comment.removeprefix("Comment="))
    assert told_of is not None
    assert told_of["run"] == "0"
    assert ssl.PEM_cert_to_DER_cert(pem(told_of["der"]))


def test_the_files_of_the_repository_are_named_as_apply_names_them(told: Path):
    repository = told / "it's models"
    for name in ("m/config.pbtxt", "m/1/model.py", "m/1/__pycache__/model.pyc", "b/1/ä b", "c/1/w"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(name)
    os.utime(repository / "c/1/w", ns=(1, 1_700_000_000_000_000_007))
    (repository / "link").symlink_to("m")
    digest = repository_digest(repository)
    (repository / "m/1/__pycache__/other.pyc").touch()
    assert repository_digest(repository) == digest
    repository = repository.rename(told / "models")
    run(told, model_repository=str(repository), model_digest="0" * 16)
    told_of = CERTIFICATE.fullmatch(words(told, "scontrol")[2].removeprefix("Comment="))
    assert told_of is not None
    assert told_of["files"] == digest
    (repository / "m/1/model.py").write_text("m/1/model.PY")
    assert repository_digest(repository) != digest
    (repository / "m/1/loop").symlink_to("../..")
    assert repository_digest(repository) is None


def test_adapters_of_a_service_with_some_are_not_among_these_files(told: Path):
    repository = told / "models"
    own = ("m/w", "m/adapter_config.json", "m/lora/adapter_config.json")
    for name in (*own, "lora/a/adapter_config.json", "lora/a/w", "lora/notes"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(name)
    digest = repository_digest(repository, but_adapters_of="m")
    adapters = {"legal": "lora/a"}
    run(told, model_repository=str(repository), model_digest="0" * 16, adapters=adapters)
    told_of = CERTIFICATE.fullmatch(words(told, "scontrol")[2].removeprefix("Comment="))
    assert told_of is not None
    assert told_of["files"] == digest != repository_digest(repository)
    (repository / "m/lora/w").touch()
    assert repository_digest(repository, but_adapters_of="m") == digest
    (repository / "m/w").write_text("another model")
    assert repository_digest(repository, but_adapters_of="m") != digest


def test_in_a_pool_only_the_model_s_own_files_are_named(told: Path):
    repository = told / "models"
    for name in ("m/config.pbtxt", "m/1/model.py", "m/1/__pycache__/x", "other/config.pbtxt"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(name)
    pooled = {"model_repository": str(repository), "pool": "small"}
    spec = with_files(service_spec({**VALUES, **pooled}))
    assert spec.model_digest == repository_digest(repository / "m")
    (repository / "other/config.pbtxt").write_text("another one")
    run(told, cache=told / "cache", model_digest=spec.model_digest, **pooled)
    told_of = CERTIFICATE.fullmatch(words(told, "scontrol")[2].removeprefix("Comment="))
    assert told_of is not None
    assert told_of["files"] == spec.model_digest
    # Without a folder to keep anything in it reads the repository itself.
    options = {f"--model-repository={repository}", "--load-model=m", "--strict-readiness=false"}
    assert options | {"--model-control-mode=explicit"} <= set(words(told, "tritonserver"))
    assert " weights=source 0." in (told / "log").read_text()


def test_files_that_cannot_be_seen_are_not_named(told: Path):
    run(told, model_repository=str(told / "none"), model_digest="0" * 16)
    told_of = CERTIFICATE.fullmatch(words(told, "scontrol")[2].removeprefix("Comment="))
    assert told_of is not None
    assert told_of["files"] is None


def test_without_its_ports_it_is_no_replica(told: Path):
    triton = told / "bin" / "tritonserver"
    triton.write_text(triton.read_text().replace('"$TOLD/scontrol"', '"$TOLD/never"'))
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        run(told, (port, port + 1))
    assert words(told, "scontrol")[-1] == "Comment=slicewise:run=0 ended with 137"
    assert (
        f"no door: the replica's ports {port} and {port + 1} can't be taken"
        in (told / "log").read_text()
    )


def test_without_an_address_it_is_no_replica(told: Path):
    (told / "bin" / "getent").write_text("#!/bin/sh\nexit 2\n")
    (told / "bin" / "getent").chmod(0o755)
    triton = told / "bin" / "tritonserver"
    triton.write_text(triton.read_text().replace('"$TOLD/scontrol"', '"$TOLD/never"'))
    run(told)
    assert words(told, "scontrol")[-1] == "Comment=slicewise:run=0 ended with 137"
    assert "no door: no address for node" in (told / "log").read_text()


@pytest.mark.parametrize("container", IMAGES[1:])
def test_the_dev_shm_of_a_job_that_was_killed_goes_with_the_next(
    told: Path, container: dict[str, object]
):
    left, used = (Path(tempfile.mkdtemp(prefix="slicewise.", dir="/dev/shm")) for _ in range(2))
    (left / "tensor").write_bytes(b"a request")
    holder = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_SH)
        for one in (left, used):
            os.utime(one, (0, 0))
        run(told, **container)
        assert not left.exists()
        assert used.exists()
    finally:
        os.close(holder)
        shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(used, ignore_errors=True)


@pytest.mark.parametrize("container", IMAGES)
def test_temporary_files_go_with_the_job(told: Path, container: dict[str, object]):
    triton = told / "bin" / "tritonserver"
    triton.write_text(triton.read_text().replace("env >", 'mktemp >"$TOLD/made"; env >', 1))
    run(told, **container)
    (made,) = (Path(one) for one in words(told, "made"))
    assert made.parent.name == "tmp"
    assert made.parent.parent.parent == Path("/tmp")
    assert not made.parent.parent.exists()


def test_a_log_is_cut_off_and_what_was_cut_off_is_kept(told: Path):
    triton = told / "bin" / "tritonserver"
    triton.write_text(
        f"""{triton.read_text()}
        for i in {{1..200}}; do echo this is said a lot; done
        until [ -s "$TOLD/log.1" ]; do sleep 0.1; done
        """
    )
    run(
        told,
        edits={f"LOG_BYTES={LOG_BYTES}": "LOG_BYTES=2000", "while sleep 10;": "while sleep 0.1;"},
    )
    cut_off = (told / "log.1").read_text()
    assert "starting on n1" in cut_off
    log = (told / "log").read_text()
    assert "Triton ended with 0" in log
    assert "starting on n1" not in log


def test_what_a_killed_triton_has_left_goes_when_no_other_may_use_it(told: Path, tmp_path: Path):
    """This process stands for another Triton of the user, which began long after ``left``.

    Not in /tmp itself: there, other tests' scripts find no Triton that may use what they see.
    """
    folder = tmp_path / "tmp"
    library = tmp_path / "libtriton_python.so"
    library.write_bytes(b"x" * mmap.PAGESIZE)
    left, used = (folder / f"python_env_{secrets.token_hex(3)}" for _ in range(2))
    users_own = folder / "python_env_of_a_user_1"
    for place in (used, users_own):
        place.mkdir(parents=True)
    (left / "lib").mkdir(parents=True)
    for place in (left, users_own):
        os.utime(place, (0, 0))
    find = 'find {} -maxdepth 1 -type d -user "$UID" -name \'python_env_'
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        run(told, edits={find.format("/tmp"): find.format(folder)})
    assert not left.exists()
    assert used.exists()
    assert users_own.exists()


@pytest.mark.parametrize("container", IMAGES)
def test_its_environment_is_as_it_was_written(told: Path, container: dict[str, object]):
    run(told, environment=ODD, **container)
    assert {f"{name}={value}" for name, value in ODD.items()} <= set(words(told, "environment"))


@pytest.mark.parametrize("container", IMAGES)
def test_no_neighbour_reads_the_environment_among_a_command_s_words(
    told: Path, container: dict[str, object]
):
    """Those of every process of the node everybody can read."""
    for program in ("unshare", "sh", "env"):
        real, stand_in = shutil.which(program), told / "bin" / program
        stand_in.write_text(
            f"""#!/bin/bash\nprintf '%s\\n' "$@" >>"$TOLD/words"\nexec {real} "$@"\n"""
        )
        stand_in.chmod(0o755)
    run(told, environment={"TOKEN": "hf_s3cret"}, **container)
    assert "TOKEN=hf_s3cret" in words(told, "environment")
    told_to_programs = [path for path in told.iterdir() if path.is_file()]
    assert not [
        path.name
        for path in told_to_programs
        if path.name != "environment" and "hf_s3cret" in path.read_text()
    ]


def test_the_environment_is_of_triton_alone(told: Path):
    srun = told / "bin" / "srun"
    srun.write_text(srun.read_text().replace("exec", 'env >"$TOLD/srun_has"; exec'))
    run(told, environment={"LD_PRELOAD_LATER": "x"})
    assert "LD_PRELOAD_LATER=x" in words(told, "environment")
    assert "LD_PRELOAD_LATER=x" not in words(told, "srun_has")


def test_apptainer_gives_it_the_gpu_and_the_models(told: Path):
    run(told, environment={"A": "1"}, **IMAGES[1])
    assert words(told, "apptainer")[:7] == [
        "exec",
        "--nv",
        "--bind",
        "/models/@chat:/models/@chat",
        "/images/triton.sif",
        "sh",
        "-c",
    ]


def test_pyxis_starts_the_step_in_the_image_with_the_models(told: Path):
    run(told, **IMAGES[2])
    options = words(told, "srun")
    assert "--container-image=nvcr.io#nvidia/tritonserver:24.05-py3" in options
    (mounts,) = (one for one in options if one.startswith("--container-mounts="))
    assert mounts.startswith("--container-mounts=/models/@chat:/models/@chat,/")


def test_without_a_container_srun_hears_of_none(told: Path):
    run(told)
    assert not any("container" in option for option in words(told, "srun"))


@pytest.fixture
def cache(told: Path) -> Path:
    """A folder of the node, and a repository in ``models``."""
    (told / "models" / "m" / "1").mkdir(parents=True)
    (told / "models" / "m" / "1" / "w").write_text("weights")
    folder = told / "local"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def weights_line(log: str, what: str = "weights") -> list[str]:
    """How the last server that was started has got its files: outcome, bytes, entry or reason."""
    *_, (outcome, size, where) = re.findall(
        rf" chat\.7\.3 {what}=(\w+) [0-9.]+ ([0-9]+) (.*)\n", log
    )
    return [outcome, size, where]


def marked(told: Path) -> str:
    """The marks of the last server that was started."""
    return "\n".join(words(told, "marks"))


@pytest.mark.parametrize("container", IMAGES)
def test_a_server_reads_its_model_on_the_node(
    told: Path, cache: Path, container: dict[str, object]
):
    """A second one too, which finds what the first has copied."""
    for expected in ("copied", "hit"):
        log = run(told, cache=cache, model_repository=str(told / "models"), **container)
        outcome, size, entry = weights_line(log)
        assert (outcome, size) == (expected, "7")
        assert Path(entry).parent == cache / str(os.geteuid())
        assert f"--model-repository={entry}/models" in words(told, "tritonserver")
        assert (Path(entry) / "models" / "m" / "1" / "w").read_text() == "weights"
        assert re.search(rf"^brought [0-9.]+ {expected} 7$", marked(told), re.MULTILINE)
        (told / "scontrol").unlink()
    if container:
        # Adapters, and what variables name, are read in the repository.
        told_of = ("srun",) if container["runtime"] == "pyxis" else ("apptainer", "environment")
        mounts = "\n".join(line for program in told_of for line in words(told, program))
        assert f"{told}/models:{told}/models" in mounts
        # Nobody else reads the copy while this one does, but the next start will.
        assert re.search(rf"[=,]{entry}/models:{entry}/models:ro(,|$)", mounts, re.MULTILINE)


@pytest.mark.parametrize("container", IMAGES[:2])
def test_vllm_is_told_a_path_of_its_model_that_is_the_same_everywhere(
    told: Path, cache: Path, container: dict[str, object]
):
    """It is part of the key of what vLLM compiles, which a home has for all nodes."""
    program = told / "bin" / "vllm"
    program.symlink_to("tritonserver")
    at_home = {"model_repository": str(told / "models"), "engine": "vllm", **container}
    _, _, entry = weights_line(run(told, cache=cache, **at_home))
    assert words(told, "tritonserver")[:2] == ["serve", "./m"]
    assert f"PWD={entry}/models" in words(told, "environment")
    (told / "scontrol").unlink()
    run(told, **at_home)
    assert words(told, "tritonserver")[:2] == ["serve", "./m"]
    assert f"PWD={told}/models" in words(told, "environment")


def image_read(told: Path, container: Mapping[str, object]) -> str:
    """The image that the runtime was told."""
    if container["runtime"] == "apptainer":
        return words(told, "apptainer")[4]
    (option,) = (one for one in words(told, "srun") if one.startswith("--container-image="))
    return option.partition("=")[2]


@pytest.fixture(params=["apptainer", "pyxis"])
def container(told: Path, request: pytest.FixtureRequest) -> dict[str, object]:
    """A container of an image that is a file beside others."""
    (told / "images").mkdir()
    (told / "images" / "other.sqsh").write_text("another image")
    image = told / "images" / "triton.sqsh"
    image.write_text("an image")
    return {"runtime": request.param, "image": str(image)}


def test_an_image_that_is_a_file_is_read_on_the_node(
    told: Path, cache: Path, container: dict[str, object]
):
    """One that has been replaced there is copied again."""
    image = Path(str(container["image"]))
    texts = ("an image", "an image", "a newer image")
    outcomes = (("copied", "copied"), ("hit", "hit"), ("copied", "hit"))
    for text, (expected, of_weights) in zip(texts, outcomes, strict=True):
        if image.read_text() != text:
            newer = image.with_name("newer")
            newer.write_text(text)
            newer.rename(image)
        log = run(told, cache=cache, model_repository=str(told / "models"), **container)
        outcome, size, entry = weights_line(log, "image")
        assert (outcome, size) == (expected, str(len(text)))
        assert weights_line(log)[0] == of_weights
        copy = Path(entry, "models", "triton.sqsh")
        assert image_read(told, container) == str(copy)
        assert copy.read_text() == text
        assert list(copy.parent.iterdir()) == [copy]
        # How long such a start takes: as one that copies, if it has copied either.
        assert re.search(rf"^brought [0-9.]+ {expected} 7$", marked(told), re.MULTILINE)
        (told / "scontrol").unlink()


@pytest.mark.parametrize("container", [{}, *IMAGES[2:]])
def test_a_replica_of_a_pool_finds_its_models_by_links(
    told: Path, cache: Path, container: dict[str, object]
):
    log = run(told, cache=cache, model_repository=str(told / "models"), pool="small", **container)
    assert re.search(r" chat\.7\.3 m: weights=source [0-9.]+ 7 later: ", log)
    assert re.search(r"^brought [0-9.]+ source 7 later$", marked(told), re.MULTILINE)
    (links,) = (
        Path(word.partition("=")[2])
        for word in words(told, "tritonserver")
        if word.startswith("--model-repository=")
    )
    *_, private, readonly, name = links.parts
    assert (readonly, name) == ("readonly", "models")
    # All that it is and does goes with the job.
    assert not links.parents[1].exists()
    assert not [p for p in processes() if private in p]
    if container:
        home = f"{cache}/{os.geteuid()}"
        mounts = "\n".join(words(told, "srun"))
        assert f"{told}/models:{told}/models,{home}:{home}:ro,{links.parents[1]}:" in mounts


@pytest.mark.parametrize("container", IMAGES[1:])
def test_a_container_cannot_change_what_the_job_runs_outside_of_it(
    told: Path, container: dict[str, object]
):
    run(told, **container)
    told_of = ("srun",) if container["runtime"] == "pyxis" else ("environment",)
    mounts = "\n".join(line for program in told_of for line in words(told, program))
    (private,) = set(re.findall(r"[=,]([^:=,]+slicewise-replica\.\w+):", mounts))
    # The later one lies over the one before.
    assert f"{private}:{private},{private}/readonly:{private}/readonly:ro," in mounts


def processes() -> Iterator[str]:
    """The words of all processes."""
    for words_of in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield words_of.read_text(errors="replace")


def test_whatever_ends_what_finds_them_the_server_of_a_pool_starts(told: Path, cache: Path):
    stand_in_for_weights(told, "exit 3", "pool_weights.py")
    log = run(told, cache=cache, model_repository=str(told / "models"), pool="small")
    assert weights_line(log) == ["source", "0", "failed: pool_weights.py has ended"]
    assert f"--model-repository={told}/models" in words(told, "tritonserver")


def test_a_replica_of_a_pool_reads_its_image_on_the_node(
    told: Path, cache: Path, container: dict[str, object]
):
    repository = str(told / "models")
    log = run(told, cache=cache, model_repository=repository, pool="small", **container)
    assert weights_line(log, "image")[0] == "copied"
    assert " m: weights=source " in log


def test_an_image_that_is_no_file_or_must_stay_is_read_where_it_is(
    told: Path, cache: Path, container: dict[str, object]
):
    at_home = {"cache": cache, "model_repository": str(told / "models")}
    for image, copies in ((told / "images", True), (Path(str(container["image"])), False)):
        log = run(told, **at_home, image_copies=copies, **container | {"image": str(image)})
        assert image_read(told, container) == str(image)
        assert "image=" not in log
        assert weights_line(log)[0] != "source"
        (told / "scontrol").unlink()


def test_what_a_server_reads_is_locked_for_as_long_as_its_job_runs(told: Path, cache: Path):
    triton = told / "bin" / "tritonserver"
    look = 'flock --nonblock "$TOLD/local"/*/* true || : >"$TOLD/kept"'
    triton.write_text(f"{triton.read_text()}\n{look}\n")
    _, _, entry = weights_line(run(told, cache=cache, model_repository=str(told / "models")))
    assert (told / "kept").exists()
    # What Slurm would kill, such as a sleep, keeps it for a second.
    subprocess.run(("flock", "--timeout", str(PATIENCE_S), entry, "true"), check=True)


def test_without_a_copy_the_server_reads_the_repository(told: Path, cache: Path):
    repository = str(told / "models")
    cache.chmod(0o777)
    log = run(told, cache=cache, model_repository=repository)
    why = f"{cache} has mode 0777: others can replace what is in it"
    assert weights_line(log) == ["source", "0", f"folder: {why}"]
    assert re.search(r"^brought [0-9.]+ source 0 folder$", marked(told), re.MULTILINE)
    assert f"--model-repository={repository}" in words(told, "tritonserver")


@pytest.mark.parametrize(
    ("flock", "why"),
    [
        ("echo 'flock: no such program' >&2; exit 127", "flock: no such program"),
        ("exit 1", "another job has it"),
    ],
)
def test_a_copy_that_cannot_be_locked_is_not_read(told: Path, cache: Path, flock: str, why: str):
    """It could be removed while it is."""
    stand_in = told / "bin" / "flock"
    stand_in.write_text(f'#!/bin/bash\n[ "$1" != --shared ] || [ $# = 2 ] || {{ {flock}; }}\n')
    stand_in.chmod(0o755)
    log = run(told, cache=cache, model_repository=str(told / "models"))
    outcome, _, where = weights_line(log)
    (entry,) = (cache / str(os.geteuid())).iterdir()
    assert (outcome, where) == ("source", f"locked: {entry} can't be locked: {why}")
    assert re.search(r"^brought [0-9.]+ source 7 locked$", marked(told), re.MULTILINE)


def stand_in_for_weights(told: Path, text: str, name: str = "weights.py") -> None:
    python = told / "bin" / "python3"
    rest = 'exec /usr/bin/python3 "$@"'
    python.write_text(f"#!/bin/bash\ncase $1 in */{name}) {text} ;; esac\n{rest}\n")
    python.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exit 3", "failed: weights.py ended with 3"),
        ('echo "hit 0.001 7 $TOLD/none"; exit', "removed: {told}/none was removed to make room"),
    ],
)
def test_whatever_fails_there_the_server_starts(told: Path, cache: Path, text: str, reason: str):
    stand_in_for_weights(told, text)
    log = run(told, cache=cache, model_repository=str(told / "models"))
    outcome, _, where = weights_line(log)
    assert (outcome, where) == ("source", reason.format(told=told))
    assert f"--model-repository={told}/models" in words(told, "tritonserver")


def test_a_job_that_is_told_to_end_while_it_copies_starts_no_server(told: Path, cache: Path):
    stand_in_for_weights(told, "kill -TERM $PPID; exec sleep 600")
    log = run(told, cache=cache, model_repository=str(told / "models"))
    assert "told to end" in log
    assert not (told / "tritonserver").exists()
