"""Tests what observing shows: sums, sentences, hints."""

from builders.tenants import policy_of, tenant

from slicewise.slurm_plugin.cli.views import observed as present
from slicewise.slurm_plugin.rules.common.observations import (
    DAY_S,
    LentBetween,
    Observations,
    QuotaUse,
    Submissions,
)
from slicewise.slurm_plugin.rules.explain.observed import (
    ObservedLoan,
    ObservedRefusal,
    ObservedReport,
    ObservedType,
    first_day_s,
    observed_report,
    tenant_words,
)

HOUR = 3_600_000
POLICY = policy_of(tenant("nlp", 4000), tenant("vision", 3000))


def submitted(tenant: str, code: str = "", many: int = 1, **more: object) -> Submissions:
    given: dict[str, object] = {
        "day_s": DAY_S,
        "mode": "observe",
        "user": "alice",
        "gpu_type": "1g.10gb",
        "is_borrowed": False,
        "moved_qos": 0,
        "moved_type": 0,
        "asked_millislices": 0,
    }
    return Submissions(tenant=tenant, code=code, submissions=many, **(given | more))  # type: ignore[arg-type]


SEEN = Observations(
    (
        submitted("vision", many=4, moved_qos=3, asked_millislices=4000),
        submitted("vision", many=2, is_borrowed=True, moved_type=1, day_s=2 * DAY_S),
        submitted("vision", "SW-GRES", 5, gpu_type="", mode="advise"),
        submitted("vision", "SW-GRES", 1, gpu_type="", day_s=2 * DAY_S),
        submitted("guest", "SW-QUOTA-NONE", 7, user="carol"),
    ),
    (
        LentBetween(DAY_S, "nlp", "vision", 2 * HOUR, 1, 500),
        LentBetween(2 * DAY_S, "nlp", "vision", HOUR, 0, 0),
    ),
    (
        QuotaUse(DAY_S, "nlp", 3600, 4 * HOUR, 4 * HOUR, 4 * HOUR, 0),
        QuotaUse(2 * DAY_S, "vision", 7200, 6 * HOUR, 0, 0, 5 * HOUR),
    ),
)


def report(found: Observations = SEEN, used: int = 3 * HOUR) -> ObservedReport:
    return observed_report(found, {"vision": used} if used else {}, POLICY, DAY_S)


def test_what_days_have_shown_is_summed_by_tenant_code_type_and_loan():
    found = report()
    assert (found.days, found.modes) == (2, {"advise": 5, "observe": 14})
    assert found.refusals == (
        ObservedRefusal("SW-QUOTA-NONE", "guest", "carol", 7),
        ObservedRefusal("SW-GRES", "vision", "alice", 6),
    )
    assert found.types == (
        ObservedType("", 6, 6, 0, 0),
        ObservedType("1g.10gb", 13, 7, 1, 4000),
    )
    assert found.loans == (ObservedLoan("nlp", "vision", 3 * HOUR, 1, 500),)
    assert (found.idle_wanted_millislice_s, found.lent_share) == (4 * HOUR, 0.75)
    names = [(one.tenant, one.has_quota) for one in found.tenants]
    assert names == [("guest", False), ("nlp", True), ("vision", True)]
    vision = found.tenants[2]
    assert (vision.submissions, vision.refused, vision.moved_qos) == (12, 6, 3)
    assert (vision.moved_type, vision.on_borrowed) == (1, 2)
    assert (vision.borrowed_millislice_s, vision.recalled_millislices) == (3 * HOUR, 500)


def test_each_tenant_gets_a_sentence():
    guest, nlp, vision = map(tenant_words, report().tenants)
    assert guest == (
        "guest has no quota: 7 submissions, 7 refused, 0 moved to another QOS;"
        " used 0.0 slice-hours."
    )
    assert "lends 3.0" in nlp
    assert vision == (
        "vision: 12 submissions, 6 refused, 3 moved to another QOS, 2 on borrowed quota;"
        " used 3.0 of 6.0 guaranteed slice-hours (50%), lends 0.0, borrows 3.0."
    )


def test_hints_name_what_to_do_next():
    assert report().hints == (
        "guest has no quota (7 refused): slicewise tenant-quota set guest --nominal N",
        "SW-GRES (6 refused): a type in --gres; or [admission] untyped, [shared] in slicewise.toml",
    )
    unlent = Observations(SEEN.submissions, (), SEEN.quota)
    assert "4.0 idle slice-hours were wanted by others" in report(unlent).hints[-1]


def test_a_refusal_that_few_sites_see_has_the_words_of_its_code():
    """Without links: the reader has a terminal."""
    (hint,) = report(Observations((submitted("vision", "SW-WITHOUT-GPU"),))).hints
    assert hint.startswith("SW-WITHOUT-GPU (1 refused): ")
    assert "(install)" in hint
    (unknown,) = report(Observations((submitted("vision", "SW-NEW"),))).hints
    assert unknown.startswith("SW-NEW (1 refused): Use one version of Slicewise")


def test_many_accounts_without_quota_are_counted():
    many = tuple(submitted(f"a{nth}", "SW-QUOTA-NONE") for nth in range(6))
    assert report(Observations(many)).hints[-1].startswith("2 more accounts have no quota")


def test_where_nothing_was_recorded_it_says_how_to_find_out_why():
    found = report(Observations(), used=0)
    assert (found.days, found.lent_share, first_day_s(Observations())) == (0, None, None)
    assert "slicewise admission status" in found.hints[0]
    assert "Submissions decided: none" in present.head_text(found)


def test_the_first_day_is_that_of_any_record():
    assert first_day_s(SEEN) == DAY_S
    assert first_day_s(Observations(quota=SEEN.quota[1:])) == 2 * DAY_S


def test_what_is_shown_ends_with_the_hints():
    lines = list(present.sentences(report()))
    assert lines[0] == "Of 4.00 idle slice-hours that others wanted, 75% would have been lent."
    assert lines[-3] == "To do next:"
    assert all(line.startswith("- ") for line in lines[-2:])
