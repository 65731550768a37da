"""Tests the cluster file: the example, what it may leave out, and what is refused."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.simulation.rules.cluster import NodeFailures
from slicewise.simulation.snapshot.cluster_file import read_cluster_file

pytestmark = pytest.mark.usefixtures("clock")

EXAMPLE = Path(__file__).parents[4] / "etc" / "simulated-cluster.toml"
MANY = 3_000
"""Accounts, each below the next."""
SMALL = """
name = "small"
[partitions.gpu]
[[nodes]]
names = "n[1-2]"
gpus = { a100 = 2 }
[gpus."A100-80GB"]
whole = ["a100"]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_example():
    site = read_cluster_file(EXAMPLE)
    cluster = site.cluster
    assert len(cluster.nodes) == 20
    assert sum(node.gpus.get("a100", 0) for node in cluster.nodes) == 128
    assert cluster.nodes[-1].name == "mig04"
    assert (cluster.nodes[0].weight, cluster.nodes[-1].weight) == (1, 10)
    assert cluster.accounts == {"vision": "root", "nlp": "root", "course": "root"}
    assert (cluster.shares, cluster.max_time_s) == ({"vision": 2}, {"gpu": 604_800})
    assert cluster.scheduling.weights.fair_share == 10_000
    assert site.ledger.policy["course"].quota.borrowing_limit_millislices == 56_000
    # Its quotas fit into what it has.
    costs = site.settings.costs
    has = sum(costs[kind] * n for node in cluster.nodes for kind, n in node.gpus.items())
    assert sum(one.quota.nominal_millislices for one in site.ledger.tenants.values()) <= has


def test_slurm_may_preempt_the_youngest_first_and_kill_later(tmp_path: Path):
    text = f"{SMALL}\n[scheduling]\npreempts_youngest_first = true\nkill_wait_s = 60\n"
    cluster = read_cluster_file(written(tmp_path, text)).cluster
    assert cluster.scheduling.preempts_youngest_first
    assert cluster.scheduling.kill_wait_s == 60


def test_what_is_left_out_is_as_slurm_has_it(tmp_path: Path):
    site = read_cluster_file(written(tmp_path, SMALL))
    assert [node.partitions for node in site.cluster.nodes] == [frozenset({"gpu"})] * 2
    assert site.cluster.scheduling.weights.age == 0
    assert not site.cluster.scheduling.preempts_youngest_first
    assert (site.ledger.tenants, site.cluster.accounts, site.cluster.max_time_s) == ({}, {}, {})
    assert site.settings.cluster.partitions == ("gpu",)


def test_accounts_of_tenants_stand_as_they_do(tmp_path: Path):
    text = SMALL + (
        "[tenants.org]\nnominal = 14.5\n[tenants.lab]\nnominal = 7\nparent = 'org'\n"
        "[accounts.guest]\nparent = 'lab'\n"
    )
    site = read_cluster_file(written(tmp_path, text))
    assert site.cluster.accounts == {"org": "root", "lab": "org", "guest": "lab"}
    assert site.ledger.tenants["org"].quota.nominal_millislices == 14_500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "name: Field required"),
        ("[", "is not TOML"),
        ("a = " + "[" * 10_000, "is not TOML"),
        (f"colour = 1\n{SMALL}", "no key colour"),
        (f"{SMALL}\n[scheduling]\ninterval = 1\n", "scheduling.interval: Extra"),
        (f"{SMALL}\n[scheduling]\nbackfill_s = 0\n", "scheduling.backfill_s"),
        (SMALL.replace("n[1-2]", "n[1-"), "no list of hosts"),
        (SMALL.replace("n[1-2]", "n[1-200000]"), "too many"),
        (SMALL.replace("n[1-2]", "n1,n1x,n1"), "n1,n1x,n1 names none, one twice"),
        (SMALL.replace("a100 = 2", "a100 = 0"), "nodes.0.gpus.a100"),
        (SMALL.replace("[partitions.gpu]", "[partitions.gpu]\nmax_time = 'long'"), "max_time"),
        (SMALL.replace('names = "n', 'partitions = ["cpu"]\nnames = "n'), "no [partitions.cpu]"),
        (SMALL.replace('whole = ["a100"]', 'types = ["9g"]'), "gpus"),
        (f"{SMALL}\n[lending]\ngrace_s = -1\n", "lending.grace_s"),
        (f"{SMALL}\n[database]\nurl_file = '/x'\n", "no key database"),
        (f"{SMALL}\n[accounts.a]\nparent = 'b'\n", "accounts.a: no account b"),
        (f"{SMALL}\n[accounts.a]\nparent = 'b'\n[accounts.b]\nparent = 'a'\n", "accounts.a"),
        (f"tenants = 1\n{SMALL}", "tenants: write tables"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str):
    path = written(tmp_path, text)
    with pytest.raises(InvalidInputError) as caught:
        read_cluster_file(path)
    assert caught.value.refusal.code == "SW-INPUT-FILE"
    assert said in caught.value.refusal.message
    assert str(path) in caught.value.refusal.message


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[tenants.a]\nnominal = -1\n", "[tenants.a]"),
        ("[tenants.a]\nnominal = 1\nparent = 'b'\n", "[tenants.a]"),
        ("[tenants.a]\nquota = 1\n", "no such key: quota"),
    ],
)
def test_a_tenant_that_no_ledger_would_take_is_refused(tmp_path: Path, table: str, said: str):
    with pytest.raises(InvalidInputError) as caught:
        read_cluster_file(written(tmp_path, SMALL + table))
    assert caught.value.refusal.code == "SW-INPUT-FILE"
    assert said in caught.value.refusal.message


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path):
    with pytest.raises(InvalidInputError, match="No such file"):
        read_cluster_file(tmp_path / "none.toml")
    path = written(tmp_path, "#" * (1 << 22) + "\n")
    with pytest.raises(InvalidInputError, match="more than 4194304 bytes"):
        read_cluster_file(path)


def test_a_long_line_of_accounts_takes_no_more_steps_for_each(tmp_path: Path):
    """Each was compared with all others, and its line walked up to its end."""
    text = "\n".join(f"a{n} = {{ parent = 'a{n + 1}' }}" for n in range(MANY))
    file = written(tmp_path, f"{SMALL}\n[accounts]\n{text}\na{MANY} = {{}}\n")
    steps = Counter[str]()

    def count(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if "tomllib" in frame.f_code.co_filename:
            return None
        steps[event] += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        site = read_cluster_file(file)
    finally:
        sys.settrace(before)
    assert len(site.cluster.accounts) == MANY + 1
    assert MANY < steps["line"] < 100 * MANY


MIG = """
name = "small"
[partitions.gpu]
[[nodes]]
names = "n[1-2]"
gpus = { "1g.10gb" = 8, "3g.40gb" = 2 }
boards = 4
[gpus."A100-80GB"]
types = ["1g.10gb", "3g.40gb"]
[repartition]
allowed = true
"""


def test_nodes_whose_gpus_are_cut_again_have_boards_and_pads(tmp_path: Path):
    node = read_cluster_file(written(tmp_path, MIG)).cluster.nodes[0]
    assert node.boards is not None
    assert [len(layout) for layout in node.boards.layouts] == [5, 5, 0, 0]
    assert node.gpus == {"pad0": 5, "1g.10gb": 8, "pad13": 6, "3g.40gb": 2, "pad21": 7}
    fewest = read_cluster_file(written(tmp_path, MIG.replace("boards = 4", ""))).cluster.nodes[0]
    assert fewest.gpus == {"pad0": 1, "1g.10gb": 8, "pad9": 1, "3g.40gb": 2, "pad12": 2}
    never = read_cluster_file(written(tmp_path, MIG.replace("true", "false"))).cluster.nodes[0]
    assert (never.boards, never.gpus) == (None, {"1g.10gb": 8, "3g.40gb": 2})


def test_boards_that_are_too_few_are_refused(tmp_path: Path):
    with pytest.raises(
        InvalidInputError, match=r"nodes.boards: the instances of .* do not fit on 1"
    ):
        read_cluster_file(written(tmp_path, MIG.replace("boards = 4", "boards = 1")))


def test_failures_are_said_in_days_and_hours(tmp_path: Path):
    assert read_cluster_file(written(tmp_path, SMALL)).cluster.failures is None
    text = f"{SMALL}\n[failures]\nmean_days = 100\n"
    found = read_cluster_file(written(tmp_path, text)).cluster.failures
    assert found == NodeFailures(100 * 86_400, 12 * 3600)
    with pytest.raises(InvalidInputError, match="mean_days"):
        read_cluster_file(written(tmp_path, text.replace("100", "0")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenants.a]\nnominal = 1\n", "it is a file of quotas"),
        ('[service]\nname = "chat"\n', "it is a service's file"),
        ("[daemon]\n", "it is a slicewise.toml"),
        ('name = "small"\n[tenants.a]\nnominal = 1\n', "partitions: Field required"),
    ],
)
def test_a_file_of_another_kind_is_called_by_its_name(tmp_path: Path, text: str, said: str):
    with pytest.raises(InvalidInputError, match=said) as error:
        read_cluster_file(written(tmp_path, text))
    assert error.value.refusal.code == "SW-INPUT-FILE"
