"""Tests Slurm's reasons in plain words."""

import pytest
from stand_ins.scripted import slurm_reasons

from slicewise.cluster.language.jobs import SHAPES_NODE
from slicewise.slurm_plugin.rules.explain.headroom import SLURM_REASONS, Cause
from slicewise.slurm_plugin.rules.explain.reasons import REASONS, translate


def test_every_reason_that_slicewise_causes_is_known_with_its_cause():
    for cause, text in SLURM_REASONS.items():
        qos = "slicewise_a_borrowed" if cause is Cause.BORROWED_QOS else "slicewise_a"
        if text and cause is not Cause.MODEL_LIMIT:
            assert translate(text, qos).cause is cause


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("(Resources)", "Resources"),
        ("ReqNodeNotAvail, UnavailableNodes:node[1-2]", "ReqNodeNotAvail"),
        ("ReqNodeNotAvail,_May_be_reserved_for_other_job", "ReqNodeNotAvail"),
        ("job requeued in held state", "job_requeued_in_held_state"),
    ],
)
def test_details_and_blanks_do_not_hide_a_reason(shown: str, name: str):
    assert translate(shown, "normal") is REASONS[name]


def test_who_waits_until_a_gpu_is_cut_is_told_so():
    shown = f"ReqNodeNotAvail, UnavailableNodes:gpu07,{SHAPES_NODE}"
    assert translate(shown, "normal").words == "no GPU is now cut into what it asks for"
    assert translate(shown, "normal").cause is Cause.NONE_FREE


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("AssocGrpCpuLimit", "its account's limit allows no more CPUs"),
        ("QOSMaxJobsPerUserLimit", "its QOS' limit allows no more running jobs of one user"),
        ("QOSGrpMemLimit", "its QOS' limit allows no more memory"),
        ("QOSMinGRES", "its QOS' limit allows at least this many GPUs"),
        (
            "AssocGrpGRESRunMinutes",
            "its account's limit allows no more GPUs × minutes that running jobs may still take",
        ),
        ("QOSMaxBillingPerJob", "its QOS' limit allows no more slices of one job"),
        ("MaxCpuPerAccount", "its QOS' limit allows no more CPUs of one account"),
        (
            "QOSMaxWallDurationPerJobLimit",
            "its QOS' limit allows no more running time of one job",
        ),
    ],
)
def test_limits_that_others_set_are_read_from_their_parts(name: str, words: str):
    found = translate(name, "normal")
    assert found.words == f"{words} ({name})"
    assert "Slicewise has not set this limit" in found.hint
    assert found.cause is None


def test_minutes_have_two_names():
    words = translate("MaxGRESRunMinsPerUser", "normal").words
    end = "GPUs × minutes that running jobs may still take of one user (MaxGRESRunMinsPerUser)"
    assert words == f"its QOS' limit allows no more {end}"


def test_every_limit_that_slurm_names_is_read_from_its_parts():
    """But for what they limit where Slurm does not know it either, and names of three older kinds
    that it no longer shows.
    """
    limits = [name for name in slurm_reasons() if name.startswith(("Assoc", "QOS", "Max"))]
    unread = {
        name
        for name in limits
        if "Unknown" not in name and translate(name, "normal").words.startswith("Slurm says")
    }
    assert unread == {
        *(f"Association{what}Limit" for what in ("Job", "Resource", "Time")),
        *(f"QOS{what}Limit" for what in ("Job", "Resource", "Time")),
        "MaxMemPerLimit",
        "MaxPoweredUpNodes",
    }


def test_a_budget_binds_our_qos_alone():
    for qos in ("slicewise_a", "slicewise_a_borrowed"):
        assert translate("QOSGrpBillingRunMinutes", qos).cause is Cause.BUDGET
        assert translate("AssocGrpBillingRunMinutes", qos).cause is None
    assert translate("QOSGrpBillingRunMinutes", "long").cause is None


@pytest.mark.parametrize("text", ["", "Max", "AssocGrp", "QOSGrpWeird", "n/a"])
def test_what_nobody_knows_is_shown_as_it_is(text: str):
    assert translate(text, "normal").words == f"Slurm says {text!r}"
