"""Property: every GPU is cut legally, and no request that fits is refused."""

from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.gpus.layouts import geometry
from slicewise.cluster.language.gpus.mig_profiles import Board, board
from studies.placement.outlook import outlook
from studies.placement.pool import Gpu, Instance, Pool

BOARDS = [board(model) for model in ("A30-24GB", "A100-80GB", "RTX-PRO-6000-Blackwell-96GB")]
MIXES = [{}, {"1g.10gb": 5.0, "3g.40gb": 2.0, "7g.80gb": 1.0}]
OUTLOOKS = {(on.model, n): outlook(on, mix) for on in BOARDS for n, mix in enumerate(MIXES)}
EVENTS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "free"]), st.integers(0, 1000)), max_size=40
)


def fits_somewhere(on: Board, gpus: dict[str, Gpu], profile: str) -> bool:
    """Asked of the layouts themselves, not of tables."""
    layouts = set(geometry(on).layouts)
    places = [one for one in geometry(on).placements if one.profile == profile]
    held = [frozenset(one.placement for one in gpu.instances) for gpu in gpus.values()]
    return any(have | {one} in layouts for have in held for one in places if one not in have)


@given(st.sampled_from(BOARDS), st.integers(0, 1), st.integers(1, 3), EVENTS)
def test_every_state_is_a_layout_and_what_fits_gets_a_place(
    on: Board, mix: int, count: int, events: list[tuple[str, int]]
):
    layouts, names = set(geometry(on).layouts), sorted(on.profiles)
    pool, gpus = Pool(OUTLOOKS[on.model, mix]), {str(n): Gpu(str(n), "n") for n in range(count)}
    for gpu in gpus.values():
        pool.put(gpu)
    for at_s, (event, number) in enumerate(events):
        if event == "ask":
            profile = names[number % len(names)]
            spot = pool.best([profile])
            assert (spot is not None) == fits_somewhere(on, gpus, profile)
            if spot is None:
                continue
            assert spot.placement.profile == profile
            changed = (*spot.gpu.instances, Instance(spot.placement, at_s))
            name = spot.gpu.name
        else:
            name = str(number % count)
            changed = gpus[name].instances[1:]
        gpus[name] = Gpu(name, "n", changed)
        pool.put(gpus[name])
        assert frozenset(one.placement for one in changed) in layouts
