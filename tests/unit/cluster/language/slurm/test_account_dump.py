"""Tests that the dumps of sacctmgr and of ColdFront are read, and that nothing is guessed."""

from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.account_dump import (
    DumpedAccount,
    account_limits,
    parse_account_dump,
)

ASSETS = Path(__file__).parents[4] / "assets"


def test_a_dump_of_sacctmgr_has_its_accounts_places_and_limits_of_gpus():
    text = (ASSETS / "slurm" / "sacctmgr-dump-22.05.cfg").read_text()
    assert parse_account_dump(text) == (
        DumpedAccount(
            "cf_phys",
            "root",
            {"gres/gpu:1g.10gb": 3, "gres/gpu": 4},
            {"gres/gpu": 60000},
        ),
        DumpedAccount("guest", "root"),
        DumpedAccount("nlp", "root"),
        DumpedAccount("vision", "root"),
        DumpedAccount("cf_optics", "cf_phys", {"gres/gpu:3g.40gb": 2}),
    )


def test_account_names_know_no_case():
    head = "Cluster - 'c'\nParent - 'root'\n"
    text = f"{head}Account - 'TEST':GrpTRES=gres/gpu=4\nParent - 'Test'\nAccount - 'Sub'\n"
    assert parse_account_dump(text) == (
        DumpedAccount("test", "root", {"gres/gpu": 4}),
        DumpedAccount("sub", "test"),
    )
    twice = f"{head}Account - 'TEST':GrpTRES=gres/gpu=4\nAccount - 'test'\n"
    with pytest.raises(InvalidInputError, match="Lines 3 and 4 are one account, test"):
        parse_account_dump(twice)


def test_coldfront_1_1_tears_the_name_of_a_gpu_type_and_such_limits_are_not_guessed():
    found = parse_account_dump((ASSETS / "coldfront" / "sandbox.cfg").read_text())
    by_name = {one.account: one for one in found}
    assert by_name["physics"].grp_tres_mins == {"gres/gpu": 60000}
    assert by_name["lasers"] == DumpedAccount("lasers", "physics", {"gres/gpu": 3})
    assert by_name["typed"].unread
    assert by_name["typed"].grp_tres == {}


@pytest.mark.parametrize(
    ("specs", "held", "unread"),
    [
        ("GrpTRES='gres/gpu:1g.10gb=3,mem=500G':QOS='+normal'", {"gres/gpu:1g.10gb": 3}, 0),
        ("Description='Bob's lab: a':GrpTRES=gres/gpu:tesla=2,cpu=4", {"gres/gpu:tesla": 2}, 0),
        ("GRPTRES=gres/gpu=4:GrpTRES=gres/gpu=5:", {"gres/gpu": 5}, 0),
        ("GrpTRES=gres/gpu=-1,billing=7", {"billing": 7}, 0),
        ("GrpTRES+=gres/gpu=4", {}, 1),
        ("GrpTRES=gres/gpu=many", {}, 1),
        ("GrpTRES='gres/gpu:1g.10gb=3,gres/gpu:QOS='+normal':3g.40gb=2'", {}, 1),
        ("GrpTRES=gres/gpu:Fairshare=5:1g.10gb=3", {"gres/gpu:Fairshare": 5}, 1),
        ("", {}, 0),
    ],
)
def test_specs_of_an_account(specs: str, held: dict[str, int], unread: int):
    found = account_limits("a", "", [specs])
    assert (found.parent, found.grp_tres, len(found.unread)) == ("root", held, unread)


def test_specs_of_several_allocations_count_together():
    found = account_limits("a", "b", ["GrpTRES=gres/gpu=4", "GrpTRESMins=gres/gpu=60:Fairshare=1"])
    assert (found.grp_tres, found.grp_tres_mins) == ({"gres/gpu": 4}, {"gres/gpu": 60})


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "Account - 'a'\n", "Cluster - 'c'\nAccount: a\n", "{}"]
)
def test_what_is_no_dump_is_refused(text: str):
    with pytest.raises(InvalidInputError, match="SW-INPUT-FILE"):
        parse_account_dump(text)
