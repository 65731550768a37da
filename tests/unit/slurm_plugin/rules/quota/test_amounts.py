import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota import amounts
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    MAX_NOMINAL_MILLISLICES,
    Quota,
)

QUOTA = Quota(Millislices(6000), type_limits={"3g.40gb": 2}, model_limits={"GONE": Millislices(7)})
TYPES, MODELS = ("1g.10gb", "3g.40gb"), ("A100-80GB",)


@pytest.mark.parametrize(
    ("text", "millislice_s"),
    [
        ("0", 0),
        ("1", 3_600_000),
        ("0.5", 1_800_000),
        ("0.00001", 36),
        ("0.0000025", 9),
        ("1000000000", MAX_BUDGET_MILLISLICE_S),
    ],
)
def test_slice_hours_are_read_exactly(text: str, millislice_s: int):
    assert amounts.budget_amount(text, "--amount") == millislice_s


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("-1", "SW-VALUE"),
        ("0.000001", "SW-VALUE"),
        ("1e3", "SW-VALUE"),
        ("nan", "SW-VALUE"),
        ("1/3", "SW-VALUE"),
        ("", "SW-VALUE"),
        ("١", "SW-VALUE"),
        ("\udcff", "SW-VALUE"),
        ("all", "SW-VALUE"),
        ("9" * 400, "SW-VALUE"),
        ("1000000001", "SW-VALUE"),
    ],
)
def test_what_is_no_exact_amount_is_refused_and_named(text: str, code: str):
    with pytest.raises(InvalidInputError, match=code) as refused:
        amounts.budget_amount(text, "--amount")
    assert refused.value.refusal.message.startswith("--amount: ")
    assert refused.value.refusal.hint


def test_an_adjustment_has_a_sign():
    assert SLICES.amount("-2.5", "--amount") == -9_000_000
    assert SLICES.amount("+2.5", "--amount") == 9_000_000


def test_the_word_for_no_bound_is_the_largest_amount():
    assert amounts.budget_amount("all", "--carry-over", "all") == MAX_BUDGET_MILLISLICE_S
    assert amounts.limit_from_text("unlimited", "--lending-limit") == MAX_NOMINAL_MILLISLICES
    assert amounts.limit_text(MAX_NOMINAL_MILLISLICES) == "unlimited"
    assert amounts.limit_text(3500) == "3.5"


def test_limits_are_set_and_lifted_one_by_one():
    texts = ("1g.10gb=7", "A100-80GB=3.5", "GONE=none")
    assert amounts.limits_from_texts(texts, QUOTA, TYPES, MODELS) == amounts.TypeLimits(
        types={"1g.10gb": 7, "3g.40gb": 2}, models={"A100-80GB": Millislices(3500)}
    )
    assert amounts.limits_from_texts(("3g.40gb=none",), QUOTA, TYPES, MODELS).types == {}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1g.10gb", "SW-VALUE"),
        ("1g.10gb=", "SW-VALUE"),
        ("1g.10gb=-1", "SW-VALUE"),
        ("1g.10gb=1.5", "SW-VALUE"),
        ("2g.20gb=1", "SW-VALUE"),
        ("2g.20gb=none", "SW-VALUE"),
        ("GONE=3", "SW-VALUE"),
        ("A100-80GB=many", "SW-VALUE"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(text: str, code: str):
    with pytest.raises(InvalidInputError, match=code):
        amounts.limits_from_texts((text,), QUOTA, TYPES, MODELS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("GONE=3", "no GPU type or model is called 'GONE'"),
        ("1g.10gb=two", "'two' is not a count"),
        ("1g.10gb", "it has no =COUNT"),
    ],
)
def test_what_is_wrong_about_a_limit_is_said(text: str, why: str):
    with pytest.raises(InvalidInputError, match=why):
        amounts.limits_from_texts((text,), QUOTA, TYPES, MODELS)


def test_a_period_that_does_not_exist_is_refused_with_those_that_do():
    assert amounts.period_from_text("week") == "week"
    with pytest.raises(InvalidInputError, match="SW-VALUE") as refused:
        amounts.period_from_text("year")
    assert refused.value.refusal.hint == f"Choose one of: {', '.join(Period)}."


def test_guarantees_by_type_are_read_beside_those_that_stay():
    quota = Quota(Millislices(6000), type_nominals={"3g.40gb": 2, "gone": 1})

    def read(*texts: str) -> object:
        return amounts.type_nominals_from_texts(texts, quota, TYPES)

    assert read("1g.10gb=0") == {"1g.10gb": 0, "3g.40gb": 2, "gone": 1}
    assert read("3g.40gb=none", "gone=none") == {}
    for text in ("A100-80GB=7", "1g.10gb=-1", "1g.10gb", "gone=2"):
        with pytest.raises(InvalidInputError, match=r"--type-nominal .* names: 1g\.10gb, 3g\.40gb"):
            read(text)
    with pytest.raises(InvalidInputError, match="no GPU type is called 'A100-80GB'"):
        read("A100-80GB=7")


def test_a_type_that_is_named_twice_is_refused():
    """The last one held, and the first was dropped without a word."""
    both = ("1g.10gb=2", "3g.40gb=1", "1g.10gb=3")
    with pytest.raises(InvalidInputError, match=r"--type-nominal names '1g\.10gb' twice"):
        amounts.type_nominals_from_texts(both, QUOTA, TYPES)
    with pytest.raises(InvalidInputError, match=r"'1g\.10gb=2' and '1g\.10gb=none'"):
        amounts.limits_from_texts(("1g.10gb=2", "1g.10gb=none"), QUOTA, TYPES, MODELS)


def test_how_many_instances_a_limit_may_have_is_said():
    with pytest.raises(InvalidInputError, match="COUNT: 0 to 1000000"):
        amounts.limits_from_texts((f"1g.10gb={10**26}",), QUOTA, TYPES, MODELS)
