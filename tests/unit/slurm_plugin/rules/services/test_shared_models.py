"""Tests which service a model's name means for each tenant: own, aliases, shared, ambiguous."""

from collections.abc import Mapping, Sequence

from builders.service_views import a_service
from builders.tenants import policy_of, tenant
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.model_names import meaning
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.rpc.order_messages import ServiceOrder
from slicewise.slurm_plugin.rules.quota.tenants import ancestors
from slicewise.slurm_plugin.rules.services.shared_models import model_entries

# site
# ├ lab ─ vision ─ robots
# └ nlp
POLICY = policy_of(
    tenant("site"),
    tenant("lab", parent="site"),
    tenant("vision", parent="lab"),
    tenant("robots", parent="vision"),
    tenant("nlp", parent="site"),
)


def service(key: str, audience: str = "", array: int = 1, **more: object) -> ServiceView:
    owner, _, name = key.partition("/")
    directives = {"audience": audience} if audience else {}
    return a_service(tenant=owner, name=name, directives=directives, array_job_id=array, **more)


def meant(
    services: Sequence[ServiceView], aliases: Mapping[str, str] | None = None
) -> Mapping[str, Mapping[str, str | None]]:
    """What each name means for each tenant."""
    entries = model_entries(POLICY, services, aliases or {})
    names = {
        *(view.name for view in services),
        *(f"{view.tenant}/{view.name}" for view in services),
        *(aliases or {}),
    }
    return {asker: {name: meaning(entries, asker, name) for name in names} for asker in POLICY}


def test_a_tenant_in_the_audience_stands_for_all_below_it():
    found = meant([service("nlp/chat", "lab")])
    for asker in ("lab", "vision", "robots"):
        assert found[asker] == {"chat": "nlp/chat", "nlp/chat": "nlp/chat"}
    assert found["site"] == {"chat": "site/chat", "nlp/chat": None}


def test_without_an_audience_there_are_no_entries():
    assert model_entries(POLICY, [service("nlp/chat"), service("lab/chat")], {}) == {}


def test_who_is_not_in_the_audience_has_only_his_own():
    found = meant([service("nlp/chat", "vision"), service("lab/chat")])
    assert found["lab"]["chat"] == "lab/chat"
    assert found["lab"]["nlp/chat"] is None
    # What a tenant has is not for those below it unless it says so.
    assert found["robots"]["lab/chat"] is None


def test_an_own_service_wins_over_those_that_others_share():
    found = meant([service("nlp/chat", "*"), service("vision/chat")])
    assert found["vision"]["chat"] == "vision/chat"
    assert found["vision"]["nlp/chat"] == "nlp/chat"
    # Of those below it the own one is nobody's.
    assert found["robots"] == {"chat": "nlp/chat", "nlp/chat": "nlp/chat", "vision/chat": None}


def test_a_name_that_two_owners_share_means_neither():
    found = meant([service("nlp/chat", "*"), service("lab/chat", "vision")])
    assert found["site"]["chat"] == "nlp/chat"
    for asker in ("vision", "robots"):
        assert found[asker]["chat"] == f"{asker}/chat"
        assert found[asker]["nlp/chat"] == "nlp/chat"
        assert found[asker]["lab/chat"] == "lab/chat"
    everybody = model_entries(POLICY, [service("nlp/chat", "*"), service("lab/chat", "*")], {})
    assert "*,chat" not in everybody
    assert meaning(everybody, "nlp", "chat") == "nlp/chat"


def test_an_alias_names_one_of_several_and_opens_nothing():
    services = [service("nlp/chat", "*"), service("lab/chat", "vision"), service("site/own")]
    aliases = {"chat": "lab/chat", "gpt-4": "lab/chat", "mine": "site/own", "gone": "nlp/gone"}
    found = meant(services, aliases)
    assert found["robots"]["chat"] == found["robots"]["gpt-4"] == "lab/chat"
    assert (found["site"]["chat"], found["site"]["gpt-4"]) == ("nlp/chat", "site/gpt-4")
    assert found["site"]["mine"] == "site/own"
    assert found["robots"]["mine"] == "robots/mine"
    assert found["lab"]["gpt-4"] == "lab/chat"
    assert not any("gone" in key for key in model_entries(POLICY, services, aliases))


def test_an_own_service_wins_over_an_alias():
    found = meant([service("nlp/chat", "*"), service("lab/gpt")], {"gpt": "nlp/chat"})
    assert (found["lab"]["gpt"], found["vision"]["gpt"]) == ("lab/gpt", "nlp/chat")


def test_the_newest_generation_says_who_may_ask_and_one_that_ends_is_left_out():
    newest = [service("nlp/chat", "*", array=7), service("nlp/chat", array=9)]
    assert model_entries(POLICY, newest, {}) == {}
    ends = service("nlp/chat", "*", order=ServiceOrder(delete_s=5))
    assert model_entries(POLICY, [ends], {}) == {}


def test_what_is_no_tenant_is_nobody():
    assert model_entries(POLICY, [service("nlp/chat", "gone,root")], {}) == {}
    assert model_entries(POLICY, [service("nlp/chat", "vision,lab")], {}) == {}, "not canonical"


def test_entries_are_few_however_many_tenants_there_are():
    groups = [tenant(f"g{group:02d}") for group in range(16)]
    below = [tenant(f"t{number:03d}", parent=f"g{number % 16:02d}") for number in range(1000)]
    audience = ",".join(group.name for group in groups)
    services = [
        *(service(f"t{number:03d}/m{number}", audience) for number in range(100)),
        *(service(f"t{number:03d}/a{number}", "*") for number in range(100)),
    ]
    entries = model_entries(policy_of(*groups, *below), services, {})
    assert len(entries) == 100 * 16 * 2 + 100 * 2 + 1016
    assert meaning(entries, "t999", "m7") == "t007/m7"


TENANTS = tuple(POLICY)
NAMES = ("a", "b")


@st.composite
def shared(draw: st.DrawFn) -> tuple[list[ServiceView], dict[str, str]]:
    keys = [f"{owner}/{name}" for owner in TENANTS for name in NAMES]
    audience = st.one_of(
        st.just(""),
        st.just("*"),
        st.sets(st.sampled_from(TENANTS), min_size=1).map(lambda names: ",".join(sorted(names))),
    )
    chosen = draw(st.sets(st.sampled_from(keys)))
    services = [service(key, draw(audience)) for key in sorted(chosen)]
    aliases = draw(st.dictionaries(st.sampled_from(("a", "x", "y/Z")), st.sampled_from(keys)))
    return services, aliases


def plainly(
    services: Sequence[ServiceView], aliases: Mapping[str, str], asker: str, model: str
) -> str | None:
    """What a name means, by looking through all services."""
    itself = {asker, *ancestors(POLICY, asker), "*"}
    open_to = {
        f"{view.tenant}/{view.name}": set(view.directives.get("audience", "").split(","))
        for view in services
    }
    mine = {key for key in open_to if key.startswith(f"{asker}/")}
    usable = mine | {key for key, audience in open_to.items() if audience & itself}
    if model in usable:
        return model
    if f"{asker}/{model}" in mine:
        return f"{asker}/{model}"
    if aliases.get(model) in usable:
        return aliases[model]
    others = {key for key in usable if key.partition("/")[2] == model}
    return next(iter(others)) if len(others) == 1 else None


@given(shared())
def test_names_mean_what_a_look_through_all_services_says(
    world: tuple[list[ServiceView], dict[str, str]],
):
    services, aliases = world
    entries = model_entries(POLICY, services, aliases)
    there = {f"{view.tenant}/{view.name}" for view in services}
    for asker in TENANTS:
        for model in ("a", "b", "x", "y/Z", *(f"{owner}/a" for owner in TENANTS)):
            found = meaning(entries, asker, model)
            found = found if found in there else None
            assert found == plainly(services, aliases, asker, model), (asker, model, entries)
