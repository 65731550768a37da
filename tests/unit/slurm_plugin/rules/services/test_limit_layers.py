"""Tests which limits hold where several ranks have set some."""

from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.rpc.limit_messages import LimitChangeRequest, LimitRank, RequestLimits
from slicewise.slurm_plugin.rules.services.limit_layers import RANKS, changed_layers, together

Layers = dict[LimitRank, RequestLimits]

_NUMBER = st.none() | st.integers(0, 9)
_MODELS = st.none() | st.lists(st.sampled_from(("a/x", "a/y", "b/z")), unique=True).map(tuple)
LIMITS = st.builds(
    RequestLimits,
    concurrent=_NUMBER,
    tokens_per_month=_NUMBER,
    models=_MODELS,
    is_exact=st.booleans(),
)
CHANGES = st.builds(
    LimitChangeRequest,
    limits=LIMITS.map(lambda limits: limits.model_copy(update={"is_exact": False})),
    is_exact=st.none() | st.booleans(),
    lifted=st.frozensets(st.sampled_from(("concurrent", "models", "tokens_per_minute"))),
)
LAYERS = st.dictionaries(st.sampled_from(RANKS), LIMITS)


def is_tighter(one: RequestLimits, other: RequestLimits) -> bool:
    """Whether the first lets in nothing that the second does not."""
    for name in ("concurrent", "tokens_per_month"):
        mine, its = getattr(one, name), getattr(other, name)
        if its is not None and (mine is None or mine > its):
            return False
    if other.models is not None and (one.models is None or not {*one.models} <= {*other.models}):
        return False
    return one.is_exact or not other.is_exact


@given(LAYERS)
def test_what_holds_is_no_looser_than_any_layer(layers: Layers) -> None:
    held = together(layers.values())
    assert all(is_tighter(held, layer) for layer in layers.values())
    assert together([held, held]) == held


@given(LAYERS, CHANGES, st.sampled_from(RANKS))
def test_nobody_loosens_what_a_higher_rank_has_set(
    layers: Layers, change: LimitChangeRequest, rank: LimitRank
) -> None:
    after = {**layers, **changed_layers(layers, change, rank)}
    higher = RANKS[RANKS.index(rank) + 1 :]
    assert all(after.get(one) == layers.get(one) for one in higher)
    assert is_tighter(
        together(after.values()), together(layers[one] for one in higher if one in layers)
    )


@given(LAYERS, CHANGES)
def test_what_an_operator_sets_is_what_holds(layers: Layers, change: LimitChangeRequest) -> None:
    held = together({**layers, **changed_layers(layers, change, "operator")}.values())
    for name in ("concurrent", "tokens_per_month"):
        if (wanted := getattr(change.limits, name)) is not None:
            assert getattr(held, name) == wanted
    if "models" in change.named:
        wanted = change.limits.models
        assert held.models == (None if wanted is None else tuple(sorted(wanted)))
