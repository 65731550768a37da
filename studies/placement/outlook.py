"""Computes what the free parts of GPUs are worth to the requests that are expected.

All values are tables over the board's occupancies, so nothing is estimated: the only guess is
the mix of profiles that will be asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import comb

from slicewise.cluster.language.gpus.layouts import Geometry, geometry
from slicewise.cluster.language.gpus.mig_profiles import Board, cost_millislices

_NEXT = 16
"""Number of coming requests that count. Of 4, 16 and 64, this accepted most in replays."""


@dataclass(frozen=True)
class Outlook:
    """A board and a mix of demand.

    Attributes:
        expected: profiles that are asked for, in the order of all sequences here.
        places: by occupancy: how many instances of each profile would fit if nothing else came.
        unserved: by occupancy: the share of the demand for profiles that do not fit even once.
        stranded: by occupancy: free memory slices × that share: slices that are free in vain. This
            is the measure of FGD (fragmentation gradient descent), exact for MIG.
        served_millislices: for each profile, at index ``n``: the cost of those next requests that
            ``n`` places in the whole cluster are expected to serve. It ends where more places
            would serve no more.
    """

    geometry: Geometry
    expected: tuple[str, ...]
    places: Mapping[int, tuple[int, ...]]
    unserved: Mapping[int, float]
    stranded: Mapping[int, float]
    served_millislices: tuple[tuple[float, ...], ...]

    def losses(self, places: Sequence[int]) -> Sequence[Sequence[float]]:
        """For each profile, the millislices lost by 0, 1, 2... places fewer than ``places``.

        ``places``: the places for each profile in the whole cluster.
        """
        return [
            [_at(served, have) - _at(served, have - fewer) for fewer in range(most + 1)]
            for served, have, most in zip(
                self.served_millislices, places, self.places[0], strict=True
            )
        ]


def outlook(board: Board, mix: Mapping[str, float]) -> Outlook:
    """Build the outlook for requests that come in these proportions of profiles.

    Profiles that the board lacks do not count. If none is left, all profiles are equally likely.
    """
    geo, shares = geometry(board), _shares(board, mix)
    unserved = {
        occupancy: sum(share for name, share in shares.items() if name not in room)
        for occupancy, room in geo.room.items()
    }
    return Outlook(
        geometry=geo,
        expected=tuple(shares),
        places=_places(geo, tuple(shares)),
        unserved=unserved,
        stranded={one: geo.free_slices(one) * share for one, share in unserved.items()},
        served_millislices=tuple(
            _served(share, int(cost_millislices(board, name, Fraction(1))))
            for name, share in shares.items()
        ),
    )


def _at(served: Sequence[float], places: int) -> float:
    return served[min(places, len(served) - 1)]


def _shares(board: Board, mix: Mapping[str, float]) -> Mapping[str, float]:
    asked = {name: mix[name] for name in board.profiles if mix.get(name, 0) > 0}
    weights = asked or dict.fromkeys(board.profiles, 1.0)
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def _places(geo: Geometry, names: tuple[str, ...]) -> Mapping[int, tuple[int, ...]]:
    @cache
    def most(occupancy: int, name: str) -> int:
        room = geo.room[occupancy].get(name, ())
        return max((1 + most(after, name) for _, after in room), default=0)

    return {occupancy: tuple(most(occupancy, name) for name in names) for occupancy in geo.room}


def _served(share: float, cost_millislices: int) -> tuple[float, ...]:
    """The millislices that 0, 1, 2... places are expected to serve.

    The n-th place serves a request if at least n of the next requests are for that profile.
    """
    chance_of = [
        comb(_NEXT, number) * share**number * (1 - share) ** (_NEXT - number)
        for number in range(_NEXT + 1)
    ]
    served = [0.0]
    for number in range(1, _NEXT + 1):
        served.append(served[-1] + cost_millislices * sum(chance_of[number:]))
    return tuple(served)
