"""Draws loans as flows: lenders on the left, borrowers on the right, each as high as its slices.

A table beside it has the same loans: the drawing is for the eye.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from slicewise.cluster.language.printable import printable
from slicewise.cluster.language.units import slices_words
from slicewise.slurm_plugin.rules.pages.words import shortened
from slicewise.slurm_plugin.rules.quota.loan_lines import LoanLine

_MOST = 12
"""Flows that are drawn; those left out are the smallest."""
_WIDTH, _NAMES, _BAR, _SPACE = 640, 180, 10, 6
"""Widths of the drawing, of the names on each side, of a bar at flows' ends, and beside a bar."""
_SLICE, _LEAST, _GAP, _TALLEST = 10.0, 3.0, 14.0, 400.0
"""Heights of a slice, of the smallest flow, between two tenants, and of all flows at most."""
_LONGEST = 22
"""Characters of a name that fit."""


def tenant_words(name: str) -> str:
    """The tenant's name; "" are those that the reader may not read."""
    return name or "other tenants"


def loans_of(loans: Iterable[LoanLine], tenant: str) -> Sequence[LoanLine]:
    """The loans from and to a tenant."""
    return [loan for loan in loans if tenant in (loan.lender, loan.borrower)]


def loan_map(loans: Sequence[LoanLine]) -> Markup:
    """The largest loans, drawn; those that are recalled have a class of their own."""
    drawn = sorted(loans, key=lambda loan: -loan.amount_millislices)[:_MOST]
    whole = sum(flow.amount_millislices for flow in drawn)
    heights = [_high(flow.amount_millislices, whole) for flow in drawn]
    lenders = _places((flow.lender for flow in drawn), heights)
    borrowers = _places((flow.borrower for flow in drawn), heights)
    left, right = _NAMES, _WIDTH - _NAMES
    begun: defaultdict[tuple[str, str], float] = defaultdict(float)
    flows = []
    for flow, high in zip(drawn, heights, strict=True):
        out, into = ("lender", flow.lender), ("borrower", flow.borrower)
        y, to_y = lenders[flow.lender][0] + begun[out], borrowers[flow.borrower][0] + begun[into]
        begun[out] += high
        begun[into] += high
        flows.append(_flow(flow, (left, y), (right, to_y), high))
    height = max(
        (y + high for side in (lenders, borrowers) for y, high in side.values()), default=0
    )
    return Markup(
        '<svg class="loans" role="img" aria-label="{}" viewBox="0 0 {} {:.0f}">{}{}{}</svg>'
    ).format(
        f"{len(drawn)} of {len(loans)} loans, from lenders on the left to borrowers on the right",
        *(_WIDTH, height + _GAP),
        Markup("").join(flows),
        _ends(lenders, left - _BAR, left - _BAR - _SPACE, "end"),
        _ends(borrowers, right, right + _BAR + _SPACE, "start"),
    )


_Places = Mapping[str, tuple[float, float]]
"""Top and height of each tenant's bar, by its name."""


def _high(amount: int, whole: int) -> float:
    return max(_LEAST, min(amount / 1000 * _SLICE, _TALLEST * amount / whole))


def _places(names: Iterable[str], heights: Iterable[float]) -> _Places:
    sums: dict[str, float] = {}
    for name, high in zip(names, heights, strict=True):
        sums[name] = sums.get(name, 0.0) + high
    ends, y = {}, _GAP / 2
    for name, high in sums.items():
        ends[name] = (y, high)
        y += high + _GAP
    return ends


def _ends(places: _Places, x: float, text_x: float, anchor: str) -> Markup:
    return Markup("").join(
        Markup(
            '<rect class="end" x="{}" y="{:.1f}" width="{}" height="{:.1f}"/>'
            '<text x="{}" y="{:.1f}" text-anchor="{}">{}</text>'
        ).format(*(x, y, _BAR, high, text_x, y + high / 2 + 4, anchor), _short(tenant_words(name)))
        for name, (y, high) in places.items()
    )


def _flow(
    flow: LoanLine, start: tuple[float, float], end: tuple[float, float], high: float
) -> Markup:
    (x, y), (to_x, to_y) = start, end
    middle = (x + to_x) / 2
    path = (
        f"M{x} {y:.1f}C{middle} {y:.1f} {middle} {to_y:.1f} {to_x} {to_y:.1f}"
        f"V{to_y + high:.1f}C{middle} {to_y + high:.1f} {middle} {y + high:.1f} {x} {y + high:.1f}Z"
    )
    recalled = ", recalled" if flow.is_recalled else ""
    words = (
        f"{tenant_words(flow.lender)} lends {slices_words(flow.amount_millislices)} to"
        f" {tenant_words(flow.borrower)}{recalled}"
    )
    return Markup('<path class="{}" d="{}"><title>{}</title></path>').format(
        "flow recalled" if flow.is_recalled else "flow", path, shortened(printable(words))
    )


def _short(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
