"""What ``slicewise top`` shows and how keys change it, as values."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

View = Literal["attention", "tenants", "services", "GPUs", "waiting", "loans"]
VIEWS: tuple[View, ...] = get_args(View)

MOST_TYPED = 64
"""Characters of a filter."""
_UP, _DOWN = frozenset({"up", "k"}), frozenset({"down", "j"})
_PAGE = 10


@dataclass(frozen=True)
class Rows:
    """What a key may be about: the rows of the view, as they are shown.

    Attributes:
        about: of each row what ``slicewise why`` can be asked about: of a GPU each of its seats.
        sorts: number of columns by which they can be sorted.
    """

    about: tuple[tuple[str, ...], ...]
    sorts: int

    def at(self, row: int, seat: int) -> str:
        """What ``why`` is asked about there; "" for nothing."""
        names = self.about[row] if 0 <= row < len(self.about) else ()
        return names[min(seat, len(names) - 1)] if names else ""


@dataclass(frozen=True)
class TopState:
    """The state of the screen.

    Attributes:
        row, seat: what is selected: a row, and of a GPU one of its instances.
        sort: the column by which rows are sorted; None for their own order.
        filter: rows must have this text; ``is_typing`` while the user types it.
        about: what the open explanation is about; "" if none is open.
        scroll: lines of it that were scrolled away.
        has_ended: whether the user wants to leave.
    """

    view: View = "tenants"
    row: int = 0
    seat: int = 0
    sort: int | None = None
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    about: str = ""
    scroll: int = 0
    has_ended: bool = False


def pressed(state: TopState, key: str, rows: Rows) -> TopState:
    """Return the state after a key: a character, or a name such as ``up`` or ``enter``."""
    if key == "interrupt":
        return replace(state, has_ended=True)
    if state.is_typing:
        return _typed(state, key)
    return _in_explanation(state, key) if state.about else _in_table(state, key, rows)


def _in_table(state: TopState, key: str, rows: Rows) -> TopState:
    if (view := _view(state, key)) is not None:
        return TopState(view=view, filter=state.filter)
    everything = replace(state, filter="", row=0)
    changed = {
        "q": replace(state, has_ended=True),
        "enter": replace(state, about=rows.at(state.row, state.seat), scroll=0),
        "/": replace(state, is_typing=True),
        "escape": everything,
        "backspace": everything,
        "s": replace(state, sort=_next_sort(state.sort, rows.sorts), row=0),
        "r": replace(state, is_reversed=not state.is_reversed, row=0),
    }
    return changed.get(key) or within(_moved(state, key, len(rows.about)), rows)


def within(state: TopState, rows: Rows) -> TopState:
    """Return the state with a selection that exists in these rows."""
    row = max(0, min(state.row, len(rows.about) - 1))
    seats = len(rows.about[row]) if rows.about else 0
    return replace(state, row=row, seat=max(0, min(state.seat, seats - 1)))


def _view(state: TopState, key: str) -> View | None:
    if key in {"tab", "back-tab"}:
        step = 1 if key == "tab" else -1
        return VIEWS[(VIEWS.index(state.view) + step) % len(VIEWS)]
    is_number = key.isascii() and key.isdigit() and 1 <= int(key) <= len(VIEWS)
    return VIEWS[int(key) - 1] if is_number else None


def _next_sort(sort: int | None, count: int) -> int | None:
    following = 0 if sort is None else sort + 1
    return following if following < count else None


def _typed(state: TopState, key: str) -> TopState:
    match key:
        case "enter":
            return replace(state, is_typing=False)
        case "escape":
            return replace(state, is_typing=False, filter="", row=0)
        case "backspace":
            return replace(state, filter=state.filter[:-1], row=0)
    if len(key) == 1 and key.isprintable() and len(state.filter) < MOST_TYPED:
        return replace(state, filter=state.filter + key, row=0)
    return state


def _in_explanation(state: TopState, key: str) -> TopState:
    if key in {"q", "escape", "backspace", "enter", "left"}:
        return replace(state, about="", scroll=0)
    moved = _step(key, state.scroll, 1 << 16)
    return replace(state, scroll=max(0, state.scroll if moved is None else moved))


def _moved(state: TopState, key: str, count: int) -> TopState:
    if key in {"left", "right"}:
        return replace(state, seat=max(0, state.seat + (1 if key == "right" else -1)))
    moved = _step(key, state.row, count - 1)
    return state if moved is None else replace(state, row=moved)


def _step(key: str, at: int, last: int) -> int | None:
    if key in _UP or key in _DOWN:
        return at + (1 if key in _DOWN else -1)
    steps = {"page-up": at - _PAGE, "page-down": at + _PAGE, "home": 0, "end": last}
    return steps.get({"g": "home", "G": "end", " ": "page-down"}.get(key, key))
