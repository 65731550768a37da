"""Files and commands of people who do this work elsewhere, and the right answer to each.

One table: a name, what is put into an empty directory, and what must come of it. Inputs are made
here, as small as shows the fault.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from builders.nodes import a_node
from builders.settings import site_settings

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import PartitionView
from slicewise.cluster.language.service import service_spec
from slicewise.cluster.language.slurm.account_dump import parse_account_dump
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.settings.file import Settings
from slicewise.launcher.services.model_repository import require_runnable
from slicewise.simulation.cli.inputs import demand, read_site
from slicewise.simulation.history.formats import read_history
from slicewise.simulation.history.requests import read_requests
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.past_requests import Replayable
from slicewise.slurm_plugin.cli.commands.quota_propose import proposal_text
from slicewise.slurm_plugin.rules.quota.quota_file import quota_updates
from slicewise.slurm_plugin.rules.site.answers import Answers, guessed, unknown_types
from slicewise.slurm_plugin.rules.site.proposed_files import SlurmsOwn, settings_text

Case = Callable[[Path], str]
"""Makes its files in a directory, and returns what was said: "" if all is well."""


def weights(names: Iterable[str], missing: str = "") -> Case:
    """A published model whose index names these files, of which one may be missing."""

    def said(place: Path) -> str:
        named = [f"{one}.safetensors" for one in names]
        (place / "m").mkdir()
        index = {"weight_map": {f"t{number}": one for number, one in enumerate(named)}}
        (place / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
        (place / "m" / "config.json").write_text("{}")
        for one in named:
            if one != f"{missing}.safetensors":
                (place / "m" / one).touch()
        service = {"name": "s", "tenant": "t", "model_repository": str(place), "model": "m"}
        try:
            require_runnable(service_spec(service | {"engine": "vllm", "profile": "1g.10gb"}))
        except InvalidInputError as error:
            return error.refusal.message
        return ""

    return said


def _shown(job: HistoryJob) -> str:
    """``101 at 1761438600 started 1761438610 ran 2400 of 3600``; a run is known to the second."""
    return (
        f"{job.job_id} at {job.submit_s:.0f} started {job.started_s or 0:.0f}"
        f" ran {job.run_s:.0f} of {job.time_limit_s}"
    )


def jobs(*lines: str) -> Case:
    """A history of jobs: which there are, how many lines were not read, what was assumed."""

    def said(place: Path) -> str:
        file = place / "jobs.txt"
        file.write_text("\n".join(lines))
        try:
            found = read_history(file)
        except InvalidInputError as error:
            return error.refusal.message
        shown = ", ".join(map(_shown, found.jobs))
        return f"{shown}; {found.unread} unread; {' '.join(found.assumed)}"

    return said


def gpu_prices(*nodes: Mapping[str, int]) -> Case:
    """What setup proposes for such nodes: models, slices of each type, what it leaves out."""

    def said(_: Path) -> str:
        seen = [a_node(f"n{number}", gpus=gpus) for number, gpus in enumerate(nodes)]
        config = {"ClusterName": "c", "SlurmctldHost[0]": "head"}
        known = guessed(config, [PartitionView("gpu", {}, "")], seen)
        unknown = unknown_types(seen)
        left_out = [f"left out: {kind}" for one in unknown for kind in one.types]
        if "gpus" not in known:
            return "; ".join(left_out)
        text = settings_text(Answers.model_validate(known), SlurmsOwn(), unknown)
        settings = Settings.model_validate(tomllib.loads(text))
        assert all(one in text for kinds in unknown for one in kinds.types)
        prices = [
            f"{settings.models[kind]} {kind} {cost / 1000:g}"
            for kind, cost in settings.costs.items()
        ]
        return "; ".join((*prices, *left_out))

    return said


def simulated(nodes: int, cpus: int, *lines: str) -> Case:
    """A history on a cluster of so many nodes: over how many nodes each of its jobs is spread."""

    def said(place: Path) -> str:
        (place / "jobs.swf").write_text("\n".join(lines))
        (place / "site.toml").write_text(
            f'name = "c"\n[partitions.gpu]\n[[nodes]]\nnames = "n[1-{nodes}]"\ncpus = {cpus}\n'
            'gpus = { a100 = 4 }\n[gpus."A100-80GB"]\nwhole = ["a100"]\n[tenants.a]\nnominal = 7\n'
        )
        site = read_site(place / "site.toml")
        found = demand(site, place / "jobs.swf", start_s=None, days=None, seed=1)
        can = Replayable(site.cluster, site.settings.costs)
        replays = [can.of(number, job, 0.0) for number, job in enumerate(found.jobs)]
        return ", ".join(
            one if isinstance(one, str) else f"{one.request.nodes} of {one.request.cpus}"
            for one in replays
        )

    return said


def requests(*lines: str) -> Case:
    """A trace of requests: when they come, and the tokens of a block."""

    def said(place: Path) -> str:
        file = place / "trace.jsonl"
        file.write_text("\n".join(lines))
        found = read_requests(file)
        return f"{[round(one.at_s, 3) for one in found.requests]}, {found.block_tokens} a block"

    return said


SACCT = "JobID|JobIDRaw|User|Account|Partition|Submit|Eligible|Start|End|State"
PLAIN = f"{SACCT}|Timelimit|Elapsed|ReqTRES|AllocTRES"
GPU = "cpu=4,gres/gpu=1,mem=8G,node=1"
DAY = "2025-10-01T00:00"


def quotas(*dump: str) -> Case:
    """A dump of accounts with limits: the tables of the file that is proposed of it."""

    def said(_: Path) -> str:
        settings = site_settings(types=["1g.10gb"])
        accounts = parse_account_dump("\n".join(("Cluster - 'c':", *dump)))
        text = proposal_text(accounts, {}, settings, Millislices(1000))
        found, faults = quota_updates("q.toml", text, {}, settings)
        faults.check()
        return ", ".join(f"{one.tenant} {one.nominal_millislices}" for one in found)

    return said


CASES: dict[str, tuple[Case, str]] = {
    "an account in capitals, as another tool wrote it": (
        quotas(
            "Parent - 'root'",
            "Account - 'bio':GrpTRES=gres/gpu=5",
            "Account - 'LAB':GrpTRES=gres/gpu=4",
            "Parent - 'LAB'",
            "User - 'Mixed.Case':DefaultAccount='LAB'",
        ),
        "bio 5000, lab 4000",
    ),
    "an H200's 1g.18gb, of which a process sees 16 GiB": (
        gpu_prices({"nvidia_h200_1g.16gb": 7}),
        "H200-141GB nvidia_h200_1g.16gb 1",
    ),
    "an A100's 3g.40gb, of which a process sees 39 GiB": (
        gpu_prices({"nvidia_a100_1g.10gb": 3, "nvidia_a100_3g.39gb": 1}),
        "A100-80GB nvidia_a100_1g.10gb 1; A100-80GB nvidia_a100_3g.39gb 3.5",
    ),
    "the memory stands in the GPU's name": (
        gpu_prices({"nvidia_a100_80gb_pcie_1g.10gb": 2}),
        "A100-80GB nvidia_a100_80gb_pcie_1g.10gb 1",
    ),
    "seven on a node, of which an A100 of 40 GB has four": (
        gpu_prices({"nvidia_a100_1g.10gb": 7}),
        "A100-80GB nvidia_a100_1g.10gb 1",
    ),
    "28 on a node, which would fill seven boards of 40 GB": (
        gpu_prices({"a100_1g.10gb": 28}),
        "A100-80GB a100_1g.10gb 1",
    ),
    "four that fill a board of 40 GB, or are on one of 80 GB": (
        gpu_prices({"a100_1g.10gb": 4}),
        "left out: a100_1g.10gb",
    ),
    "a site's prefix with a dot, and whole GPUs elsewhere": (
        gpu_prices({"a100l": 4}, {"a100l.1g.10gb": 3, "a100l.3g.40gb": 1}),
        "A100-80GB a100l.1g.10gb 1; A100-80GB a100l.3g.40gb 3.5; A100-80GB a100l 7",
    ),
    "an H100 of 80 GB, whole and cut": (
        gpu_prices({"nvidia_h100_80gb_hbm3": 2, "nvidia_h100_80gb_hbm3_4g.40gb": 1}),
        "H100-80GB nvidia_h100_80gb_hbm3_4g.40gb 4; H100-80GB nvidia_h100_80gb_hbm3 7",
    ),
    "whole GPUs of the same node say whose instances have no name before their size": (
        gpu_prices({"h100-80gb": 6, "1g.10gb": 7, "2g.20gb": 2}, {"1g.10gb": 7}),
        "H100-80GB 1g.10gb 1; H100-80GB 2g.20gb 2; H100-80GB h100-80gb 7",
    ),
    "engines behind the size": (
        gpu_prices({"mig-1g.10gb.me": 1, "mig-3g.40gb": 1}),
        "A100-80GB mig-1g.10gb.me 1; A100-80GB mig-3g.40gb 3.5",
    ),
    "graphics behind the size": (
        gpu_prices({"rtx_pro_6000-1g.24gb.gfx": 4}),
        "RTX-PRO-6000-Blackwell-96GB rtx_pro_6000-1g.24gb.gfx 1.75",
    ),
    "capital letters and a site's suffix": (
        gpu_prices({"NVIDIA_A100_1G.5GB": 7}, {"H100_94_3G.47GB_debug": 2}),
        "A100-40GB NVIDIA_A100_1G.5GB 1; H100-94GB-NVL H100_94_3G.47GB_debug 3.5",
    ),
    "memory as a driver of another month rounds it": (
        gpu_prices({"nvidia_b200_1g.20gb": 7}, {"nvidia_gh200_480gb_1g.11gb": 7}),
        "B200-180GB nvidia_b200_1g.20gb 1; H100-96GB/GH200-96GB nvidia_gh200_480gb_1g.11gb 1",
    ),
    "two kinds of boards in one node": (
        gpu_prices({"a100_1g.5gb": 7, "a100_3g.40gb": 2, "a100_1g.10gb": 1}),
        "a100_1g.5gb 1; A100-80GB a100_3g.40gb 3.5; left out: a100_1g.10gb",
    ),
    "the GPU's name behind the size": (
        gpu_prices({"1g.10gb-a100-80gb": 2}, {"mig_1g_12gb.h100.nvl": 3}),
        "A100-80GB 1g.10gb-a100-80gb 1; H100-94GB-NVL mig_1g_12gb.h100.nvl 1",
    ),
    "parts of GPUs without a size": (
        gpu_prices({"h200": 8}, {"a100_mig": 4, "a100-1g": 7, "mi300x_cpx": 8}),
        "H200-141GB h200 7; left out: a100_mig; left out: a100-1g; left out: mi300x_cpx",
    ),
    "GPUs that the table lacks, of which others have instances of that size": (
        gpu_prices(
            {"nvidia_rtx_pro_5000_72gb_blackwell_1g.18gb": 4},
            {"rtx_pro_4500_1g.16gb": 2, "rtx_pro_4500": 1},
        ),
        (
            "RTX_PRO_4500 rtx_pro_4500 7;"
            " left out: nvidia_rtx_pro_5000_72gb_blackwell_1g.18gb; left out: rtx_pro_4500_1g.16gb"
        ),
    ),
    "parts by their memory, by words and by NVIDIA's vGPU profiles": (
        gpu_prices(
            {"a100_20gb": 2, "a100_80gb": 2, "a100_2g20": 1},
            {"half_a100": 4, "a40-8q": 6, "grid_a100d-1-10c": 7, "a100-shared": 8},
        ),
        (
            "A100-80GB a100_80gb 7; left out: a100_20gb; left out: a100_2g20; left out: half_a100;"
            " left out: a40-8q; left out: grid_a100d-1-10c; left out: a100-shared"
        ),
    ),
    "a board with one memory of those that its family has": (
        gpu_prices({"nvidia_a100x_1g.10gb": 4}, {"rtxpro6000_1g.24gb": 4}),
        "A100-80GB nvidia_a100x_1g.10gb 1; RTX-PRO-6000-Blackwell-96GB rtxpro6000_1g.24gb 1.75",
    ),
    "no board has such a profile": (
        gpu_prices({"l40s": 2, "new_1g.99gb": 7, "1c.3g.40gb": 1, "a1001g.10gb": 1}),
        "L40S l40s 7; left out: new_1g.99gb; left out: 1c.3g.40gb; left out: a1001g.10gb",
    ),
    "shards 0 to 124 of 130, all that there are": (
        weights(f"model-{number:05d}-of-00130" for number in range(125)),
        "",
    ),
    "shard 77 of 163 is missing, six digits behind -of-": (
        weights((f"model-{n:05d}-of-000163" for n in range(1, 164)), "model-00077-of-000163"),
        "no model-00077-of-000163.safetensors.",
    ),
    "shard 30 of 61 is missing, numbers without padding": (
        weights((f"model-{n}-of-61" for n in range(1, 62)), "model-30-of-61"),
        "no model-30-of-61.safetensors.",
    ),
    "an array with more tasks than sacct's column has room for": (
        jobs(
            PLAIN,
            f"20_[1,17,230,...]|20|u|a|gpu|{DAY}:00|{DAY}:00|Unknown|Unknown|PENDING|01:00:00"
            f"|00:00:00|{GPU}|",
        ),
        (
            ", ".join(3 * ["20 at 1759276800 started 0 ran 3600 of 3600"])
            + "; 0 unread; Of arrays whose list of tasks sacct cuts"
        ),
    ),
    "a job of a federation that another cluster started": (
        jobs(
            f"{PLAIN}|Cluster",
            f"67108875|67108875|u|a|gpu|{DAY}:00|{DAY}:00|Unknown|Unknown|REVOKED|02:00:00"
            f"|00:00:00|{GPU}||north",
            f"67108875|67108875|u|a|gpu|{DAY}:00|{DAY}:00|{DAY}:10|{DAY}:40|COMPLETED|02:00:00"
            f"|00:00:30|{GPU}|{GPU}|south",
        ),
        "67108875 at 1759276800 started 1759276810 ran 30 of 7200; 0 unread; Times without a UTC",
    ),
    "steps alone": (
        jobs(
            PLAIN,
            f"11.batch|11.batch|||gpu|{DAY}:00|{DAY}:00|{DAY}:10|{DAY}:40|COMPLETED||00:00:30||{GPU}",
        ),
        "no job follows; of its lines 1 are left out: they are steps of jobs",
    ),
    "a job over the end of summer time, by times with their offsets": (
        jobs(
            PLAIN,
            "11|11|u|a|gpu|2025-10-26T02:30:00+0200|2025-10-26T02:30:00+0200"
            f"|2025-10-26T02:30:10+0200|2025-10-26T02:10:10+0100|COMPLETED|01:00:00|00:40:00|{GPU}|",
        ),
        "11 at 1761438600 started 1761438610 ran 2400 of 3600; 0 unread; ",
    ),
    "time limits and runs as people export them, of jobs that ended, run and wait": (
        jobs(
            PLAIN,
            *(
                f"{number}|{number}|u|a|gpu|{DAY}:00|{DAY}:00|{rest}|{GPU}|{gpus}"
                for number, rest, gpus in (
                    (1, f"{DAY}:10|2025-10-01T01:00:10|COMPLETED|02:00:00|01:00:00", GPU),
                    (2, f"{DAY}:10|Unknown|RUNNING|1-00:00:00|03:00:00", GPU),
                    (3, "Unknown|Unknown|PENDING|12:00:00|00:00:00", ""),
                    (4, f"None|{DAY[:-2]}05:00|CANCELLED by 9|Partition_Limit|00:00:00", ""),
                    (5, f"{DAY}:30|2025-10-01T00:20:30|OUT_OF_MEMORY|UNLIMITED|00:20:00", GPU),
                )
            ),
        ),
        (
            "1 at 1759276800 started 1759276810 ran 3600 of 7200,"
            " 2 at 1759276800 started 1759276810 ran 10800 of 86400,"
            " 3 at 1759276800 started 0 ran 43200 of 43200,"
            " 4 at 1759276800 started 0 ran 300 of None,"
            " 5 at 1759276800 started 1759276830 ran 1200 of None;"
            " 0 unread; Times without a UTC offset"
        ),
    ),
    "the 26 columns of Open XDMoD": (
        jobs(
            f"31|31|alpha|gpu|phys|hpc|100|u|7|{DAY}:00|{DAY}:00|{DAY}:10|2025-10-01T01:00:10"
            f"|01:00:00|0:0|COMPLETED|1|4|4|8G|PER_NODE:gres/gpu:1|{GPU}|{GPU}|02:00:00|n1|train"
        ),
        "31 at 1759276800 started 1759276810 ran 3600 of 7200; 0 unread; The file names no columns",
    ),
    "columns that nobody knows, and no names of them": (
        jobs(f"31|gpu|{DAY}:00|{DAY}:10|COMPLETED|{GPU}"),
        "add a first line with their names",
    ),
    "512, 128 and 32 processors on nodes of 64": (
        simulated(
            *(64, 64),
            "; UnixStartTime: 1640995200",
            "; MaxProcs: 4096",
            *(
                f"{n} {60 * n} 0 600 {cpus} -1 -1 {cpus} 900 -1 1 3 1 -1 1 -1 -1 -1"
                for n, cpus in enumerate((512, 128, 32))
            ),
        ),
        "8 of 64, 2 of 64, 1 of 32",
    ),
    "a job that was swapped out, and one without times": (
        jobs(
            "; UnixStartTime: 820454400",
            "1 0 10 300 8 -1 -1 8 600 -1 1 1 1 -1 1 -1 -1 -1",
            "1 0 10 100 8 -1 -1 8 600 -1 2 1 1 -1 1 -1 -1 -1",
            "1 -1 50 200 8 -1 -1 8 600 -1 3 1 1 -1 1 -1 -1 -1",
            "2 60 5 20 4 -1 -1 4 60 -1 0 2 1 -1 1 -1 -1 -1",
            "3 70 -1 -1 4 -1 -1 4 60 -1 5 2 1 -1 1 -1 -1 -1",
        ),
        (
            "1 at 820454400 started 820454410 ran 300 of 600,"
            " 2 at 820454460 started 820454465 ran 20 of 60; 1 unread"
        ),
    ),
    "numbers with commas, keys with spaces, and jobs before the time is said": (
        jobs(
            "1 0 10 300 8 -1 -1 8 0 -1 1 1 1 -1 1 -1 -1 -1",
            " ; UnixStartTime : 820454400",
            "2 0 10 300 8 -1 -1 8 600 -1 1 1 1 -1 1 -1 -1 -1",
        ),
        (
            "1 at 0 started 10 ran 300 of None,"
            " 2 at 820454400 started 820454410 ran 300 of 600; 0 unread;"
            " No comment says when time 0 was: times of 1 jobs"
        ),
    ),
    "1,024 processors on 64 nodes, which is no 1": (
        simulated(
            *(64, 64),
            "; UnixStartTime: 1640995200",
            "; MaxNodes: 64",
            "; MaxProcs: 1,024",
            "1 0 0 600 32 -1 -1 32 900 -1 1 3 1 -1 1 -1 -1 -1",
        ),
        "1 of 32",
    ),
    "blocks of 16 without keys of its own": (
        requests(
            *(
                f'{{"timestamp": {30.1 * n}, "input_length": {tokens}, "output_length": 1,'
                f' "hash_ids": {[*range(blocks)]}}}'
                for n, (tokens, blocks) in enumerate(((40, 3), (9, 1), (600, 38)))
            )
        ),
        "[0.0, 30.1, 60.2], 16 a block",
    ),
    "prompts of two million tokens, and two columns of times": (
        requests("timestamp,arrival_s,input_length,output_length", "900000,5,2e6,1", "1,6.5,7,1"),
        "[0.0, 1.5], 0 a block",
    ),
    "a trace in seconds and blocks of 16, by its own keys": (
        requests(
            *(
                f'{{"chat_id": {n}, "parent_chat_id": -1, "timestamp": {30.1 * n}, "turn": 1,'
                ' "input_length": 5, "output_length": 1, "type": "text", "hash_ids": [1]}'
                for n in range(3)
            )
        ),
        "[0.0, 30.1, 60.2], 16 a block",
    ),
    "a trace in milliseconds and blocks of 512": (
        requests(
            *(
                f'{{"timestamp": {3000 * n}, "input_length": 5, "output_length": 1,'
                ' "hash_ids": [1]}'
                for n in range(3)
            )
        ),
        "[0.0, 3.0, 6.0], 512 a block",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_right_answer_comes_of_it(name: str, tmp_path: Path) -> None:
    case, expected = CASES[name]
    said = case(tmp_path)
    assert expected in said
    assert bool(expected) == bool(said)
