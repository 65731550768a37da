"""Tests who may ask a service beside its owner: how a file and a script say it."""

import pytest
from builders.service_specs import a_spec

from slicewise.cluster.language.audience import MOST_AUDIENCE, audience_of
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import can_follow, directives_of_script, spec_of_directives

MANY = [f"t{number:02d}" for number in range(MOST_AUDIENCE)]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (["vision"], "vision"),
        (["Vision", "nlp", "vision"], "nlp,vision"),
        ("*", "*"),
        (["*"], "*"),
        ("nlp,vision", "nlp,vision"),
        (MANY, ",".join(MANY)),
    ],
)
def test_an_audience_has_one_form_in_a_script(written: object, text: str):
    spec = a_spec(audience=written)
    assert spec.values()["audience"] == text
    directives = directives_of_script(spec.directives())
    assert spec_of_directives(directives) == spec
    assert audience_of(directives) == frozenset(text.split(","))


@pytest.mark.parametrize(
    "written",
    [
        *([], "", ["*", "vision"], "vision,*", ["vision", ""], "vision,", [*MANY, "one-more"]),
        *(["a b"], ["a/b"], ["a,b/"], ["../x"], "a\n", 7, [7], True, {"vision": True}, ["-a"]),
    ],
)
def test_what_is_no_audience_is_refused(written: object):
    with pytest.raises(InvalidInputError, match='audience: "\\*" for all tenants, or a list of 1'):
        a_spec(audience=written)


def test_another_form_in_a_script_is_refused_by_naming_the_simplest():
    directives = directives_of_script(a_spec(audience=["nlp", "vision"]).directives())
    with pytest.raises(InvalidInputError, match="audience=vision,nlp has a simpler form"):
        spec_of_directives({**directives, "audience": "vision,nlp"})


def test_a_script_that_says_none_or_nothing_readable_opens_nothing():
    for text in ("", "vision,", "nlp,vision,nlp", "Vision", "*,vision", ",".join([*MANY, "z"])):
        assert audience_of({"audience": text}) == frozenset(), text
    assert audience_of({}) == frozenset()


def test_replicas_stay_if_only_the_audience_differs():
    closed, opened, wider = a_spec(), a_spec(audience=["nlp"]), a_spec(audience="*")
    assert can_follow(closed.values(), opened.values())
    assert can_follow(wider.values(), closed.values())
    assert not can_follow(opened.values(), opened.values())
    assert not can_follow(closed.values(), a_spec(audience="*", memory_mib=77).values())
    loads = a_spec(adapters={"a": "x"})
    assert can_follow(loads.values(), a_spec(adapters={"b": "y"}, audience="*").values())
