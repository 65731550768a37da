"""Draws slices to scale: the cluster's by state, and each GPU with its MIG instances.

Pictures are SVG without styles of their own, since the page's policy forbids these; classes name
what a part is, and the page's one style sheet colours it. Every part says in words what it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_names import short_name
from slicewise.cluster.language.palette import STATES
from slicewise.cluster.language.printable import printable
from slicewise.cluster.language.units import slices_text
from slicewise.cluster.rpc.overview_messages import GpuNow, InstanceNow, SlicesByState, TenantNow
from slicewise.slurm_plugin.rules.pages.rows import named
from slicewise.slurm_plugin.rules.pages.words import shortened

_WIDE, _HIGH = 1000, 18
"""The view box of a bar; the page stretches it."""
_SLICE, _ROW, _GAP = 52, 24, 2
"""Width and height of a memory slice, and the gap between instances."""
_SLICES_A_LINE = 8
"""Memory slices on a line where it is not known how they lie on GPUs."""
_LETTER = 7
"""Width of a letter."""
_FEWEST = 3
"""Letters of a name that is cut off: fewer say nothing."""


_MOST_GPUS = 128
"""GPUs that are drawn; of a larger cluster those with trouble or use."""


@dataclass(frozen=True)
class NodeGpus:
    """A node with its GPUs. ``condition`` is that of the node."""

    node: str
    condition: str
    gpus: tuple[GpuNow, ...]

    @property
    def instances(self) -> tuple[InstanceNow, ...]:
        """Those of all its GPUs."""
        return tuple(instance for gpu in self.gpus for instance in gpu.instances)


@dataclass(frozen=True)
class NodesShown:
    """The nodes that are drawn, by name.

    Attributes:
        matching: number of the nodes whose names have what was asked for.
        whole: number of all nodes.
    """

    nodes: tuple[NodeGpus, ...]
    matching: int
    whole: int


def nodes_shown(gpus: Iterable[GpuNow], wanted: str) -> NodesShown:
    """The nodes that are drawn of those whose names have a text: first those in trouble, then
    those in use, as many as there is room for; one at least.
    """
    by_node: dict[str, list[GpuNow]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    matching = named(by_node, wanted, str)
    nodes = [NodeGpus(name, by_node[name][0].condition, tuple(by_node[name])) for name in matching]
    nodes.sort(key=_first_shown)
    drawn: list[NodeGpus] = []
    room = _MOST_GPUS
    for node in nodes:
        room -= len(node.gpus)
        if drawn and room < 0:
            break
        drawn.append(node)
    return NodesShown(tuple(sorted(drawn, key=lambda node: node.node)), len(nodes), len(by_node))


def _first_shown(node: NodeGpus) -> tuple[int, int, str]:
    held = sum(instance.is_held for instance in node.instances)
    return _CONDITIONS.index(node.condition), -held, node.node


_CONDITIONS = ("down", "draining", "reserved", "powering up", "up", "powered down")


def state_bar(slices: SlicesByState) -> Markup:
    """A bar of the whole capacity, divided by state."""
    amounts = [(name, int(getattr(slices, f"{name}_millislices"))) for name in STATES]
    return _bar(amounts, slices.capacity_millislices)


def share_bar(tenant: TenantNow) -> Markup:
    """A bar of what a tenant has in use of its limit, and how much of it on loan."""
    in_use, on_loan = tenant.in_use_millislices, tenant.on_loan_millislices
    limit = tenant.limit_millislices
    whole = max(in_use, tenant.nominal_millislices if limit is None else limit)
    return _bar([("used", in_use - on_loan), ("lent", on_loan), ("idle", whole - in_use)], whole)


def _bar(amounts: Sequence[tuple[str, int]], whole: int) -> Markup:
    words = ", ".join(
        f"{slices_text(amount)} {STATES[name].word}" for name, amount in amounts if amount
    )
    parts, at = [], 0.0
    for name, amount in amounts:
        width = _WIDE * amount / whole if whole else 0.0
        if width:
            parts.append(_rect(name, at, 0, width, _HIGH))
        at += width
    return Markup(
        '<svg class="bar" role="img" aria-label="{}" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none">{}</svg>'
    ).format(words or "nothing", _WIDE, _HIGH, Markup("").join(parts))


def _rect(name: str, x: float, y: float, width: float, height: float) -> Markup:
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
        name, f"{x:.1f}", f"{y:.1f}", f"{width:.1f}", f"{height:.1f}"
    )


def board_map(gpu: GpuNow) -> Markup:
    """A GPU as long as its memory slices, with each instance where it lies; of a node that was not
    surveyed its instances one after another.
    """
    lines = tuple(_lines(gpu))
    slices = max((length for length, _ in lines), default=1)
    drawn = [
        part for row, (length, placed) in enumerate(lines) for part in _line(row, length, placed)
    ]
    held = sum(instance.is_held for instance in gpu.instances)
    return Markup(
        '<svg class="board" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">'
        "{}</svg>"
    ).format(
        f"{held} of {len(gpu.instances)} instances held",
        *(slices * _SLICE, len(lines) * _ROW, slices * _SLICE, len(lines) * _ROW),
        Markup("").join(drawn),
    )


def layout_map(placed: Sequence[Placement]) -> Markup:
    """The instances of a GPU by their profiles, where they lie."""
    instances = [
        (placement.start, InstanceNow(gres_type=placement.profile, size=placement.size))
        for placement in placed
    ]
    length = max((placement.start + placement.size for placement in placed), default=1)
    return Markup(
        '<svg class="board" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">'
        "{}</svg>"
    ).format(
        _inert(", ".join(placement.profile for placement in placed) or "no instances"),
        *(length * _SLICE, _ROW, length * _SLICE, _ROW),
        Markup("").join(_line(0, length, instances)),
    )


_Placed = Sequence[tuple[int, InstanceNow]]


def _lines(gpu: GpuNow) -> Iterator[tuple[int, _Placed]]:
    if gpu.gpu is not None:
        yield gpu.memory_slices, [(instance.start or 0, instance) for instance in gpu.instances]
        return
    line: list[tuple[int, InstanceNow]] = []
    at = 0
    for instance in gpu.instances:
        if line and at + instance.size > _SLICES_A_LINE:
            yield at, line
            line, at = [], 0
        line.append((at, instance))
        at += instance.size
    if line:
        yield at, line


def _line(row: int, length: int, placed: _Placed) -> Iterator[Markup]:
    top = row * _ROW
    yield _rect("uncut", 0, top + 1, length * _SLICE, _ROW - _GAP)
    for start, instance in placed:
        x, width = start * _SLICE, instance.size * _SLICE - _GAP
        kind = "idle" if not instance.is_held else "lent" if instance.is_borrowed else "used"
        fitting = _fitting(instance, (width - 4) // _LETTER)
        yield Markup(
            '<g><title>{}</title>{}<text x="{}" y="{}" text-anchor="middle">{}</text></g>'
        ).format(
            _inert(_words(instance)),
            _rect(kind, x, top + 1, width, _ROW - _GAP),
            *(f"{x + width / 2:.1f}", top + _ROW - 8, _inert(fitting)),
        )


def _fitting(instance: InstanceNow, letters: int) -> str:
    """What a part says within so many letters; "" if there is no room for anything that helps."""
    if not instance.is_held:
        label = short_name(instance.gres_type)
        label = label if len(label) <= letters else label.partition(".")[0]
        return label if len(label) <= letters else ""
    label = instance.service.partition("/")[2] or instance.job or "held"
    if len(label) <= letters:
        return label
    return f"{label[: letters - 1]}…" if letters > _FEWEST else ""


def _words(instance: InstanceNow) -> str:
    if not instance.is_held:
        return f"{instance.gres_type}: free"
    who = instance.service or instance.tenant
    job = f"job {instance.job}" if instance.job else "a job that you may not see"
    loan = f", {STATES['lent'].word}" if instance.is_borrowed else ""
    return f"{instance.gres_type}: {job}{f' of {who}' if who else ''}{loan}"


def _inert(text: str) -> str:
    return shortened(printable(text))
