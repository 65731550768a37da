"""Measures what a submission costs slurmctld: without a plugin, with one that echoes, with ours.

The three variants take turns in short blocks, so that other load on the machine affects all three.
"""

import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from slicewise.cluster.rpc.messages import VERSION, SubmitRequest
from slicewise.sandbox.cluster import Sandbox
from slicewise.slurm_plugin.cli.commands.admission import MODULE
from slicewise.slurm_plugin.lua.site_script import Wiring, minimal

NONE, ECHO, SLICEWISE = "none", "echo", "slicewise"
VARIANTS = (NONE, ECHO, SLICEWISE)
QUESTION = SubmitRequest(
    v=VERSION,
    op="submit",
    token="0123456789abcdef",  # noqa: S106 -- no secret: what a question looks like
    module="2.1",
    mode="enforce",
    uid=0,
    default_account="vision",
    partition="gpu",
    name="x.sh",
    gres="gres:gpu:1g.10gb:1",
    tasks=1,
    min_nodes=1,
    cpus_per_task=1,
    time_limit_min=5,
)
"""A question as slicewise.lua sends it."""

_USER = "alice"
_SBATCH = "sbatch --hold --parsable --output=/dev/null --time=5 --gres=gpu:1g.10gb:1"
_SDIAG = re.compile(r"REQUEST_SUBMIT_BATCH_JOB\s.*?count:(\d+).*?total_time:(\d+)")
_RESAMPLES = 4000
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Totals:
    """sdiag's row of submissions: their number, and their total microseconds in slurmctld."""

    count: int
    total_us: int

    def mean_ms(self, earlier: "Totals") -> float:
        """Mean milliseconds of a submission since ``earlier``."""
        return (self.total_us - earlier.total_us) / (self.count - earlier.count) / 1000


@dataclass
class Submitted:
    """Mean milliseconds of a submission by variant and block; each round has all variants.

    ``unanswered``: number of slicewise.lua's questions that got no answer.
    """

    blocks: Mapping[str, list[float]] = field(
        default_factory=lambda: {variant: [] for variant in VARIANTS}
    )
    unanswered: int = 0

    def figures(self, seed: int) -> Mapping[str, object]:
        """Means, their 95 % confidence intervals, and the ratio of what each plugin adds."""
        means = {variant: statistics.fmean(self.blocks[variant]) for variant in VARIANTS}
        return {
            **{f"submit_ms_{variant}": self._mean(variant, seed) for variant in VARIANTS},
            "added_vs_echo": added_ratio(means),
            "added_vs_echo_ci95": self._interval(added_ratio, seed),
            "questions_unanswered": self.unanswered,
        }

    def _mean(self, variant: str, seed: int) -> Mapping[str, object]:
        interval = self._interval(lambda means: means[variant], seed)
        return {"mean": statistics.fmean(self.blocks[variant]), "ci95": interval}

    def _interval(self, of: Callable[[Mapping[str, float]], float], seed: int) -> list[float]:
        """Bootstrap over rounds: the blocks of one round stay together."""
        choose, rounds = random.Random(seed), range(len(self.blocks[NONE]))  # noqa: S311
        samples = []
        for _ in range(_RESAMPLES):
            chosen = choose.choices(rounds, k=len(rounds))
            means = {v: statistics.fmean(self.blocks[v][n] for n in chosen) for v in VARIANTS}
            samples.append(of(means))
        cuts = statistics.quantiles(samples, n=40)
        return [cuts[0], cuts[-1]]


def added_ratio(means: Mapping[str, float]) -> float:
    """What slicewise adds to a submission, divided by what the echoing plugin adds."""
    return (means[SLICEWISE] - means[NONE]) / (means[ECHO] - means[NONE])


def measure(rounds: int, submissions: int, seed: int) -> Submitted:
    """Measure ``rounds`` rounds of three blocks, of ``submissions`` each, in a new sandbox."""
    with _sandbox() as sandbox, _echo(sandbox) as socket:
        bench = _Bench(sandbox, _scripts(sandbox, socket), submissions)
        measured, order = Submitted(), random.Random(seed)  # noqa: S311 -- an order, no secret
        for _ in range(rounds):
            for variant in order.sample(VARIANTS, k=len(VARIANTS)):
                measured.blocks[variant].append(bench.block(variant))
        log = sandbox.layout.log / "slurmctld.log"
        measured.unanswered = log.read_text(encoding="utf-8").count("slicewise: no answer")
        return measured


@dataclass(frozen=True)
class _Bench:
    sandbox: Sandbox
    scripts: Mapping[str, str]
    submissions: int

    def block(self, variant: str) -> float:
        """Submit one block with that variant; return the mean milliseconds of a submission."""
        self._switch(variant)
        before = self._totals()
        self._submit("x.sh", self.submissions)
        after = self._totals()
        self.sandbox.run("root", ("scancel", "--quiet", f"--user={_USER}"))
        return after.mean_ms(before)

    def _switch(self, variant: str) -> None:
        """Take the plugin out and put it in again, so that slurmctld loads the variant's script.

        Raises AssertionError if a test submission shows another variant.
        """
        self._plugin(on=False)
        script = self.sandbox.layout.etc / "job_submit.lua"
        script.write_text(self.scripts[variant], encoding="utf-8")
        self._plugin(on=variant != NONE)
        job = self._submit("which", 1)
        shown = self.sandbox.run("root", ("scontrol", "show", "job", job)).stdout
        mark = {NONE: "", ECHO: "echo", SLICEWISE: "slicewise:1"}[variant]
        found = re.search(r"AdminComment=(\S*)", shown)
        if (found[1] if found else "") != mark:
            raise AssertionError((variant, shown))

    def _plugin(self, *, on: bool) -> None:
        conf = self.sandbox.layout.slurm_conf
        text = conf.read_text(encoding="utf-8")
        line = "JobSubmitPlugins" if on else "#JobSubmitPlugins"
        conf.write_text(re.sub("^#?JobSubmitPlugins", line, text, flags=re.MULTILINE))
        self.sandbox.run("root", ("scontrol", "reconfigure"))

    def _submit(self, name: str, count: int) -> str:
        loop = f"for n in $(seq {count}); do {_SBATCH} --job-name={name} --wrap=true; done"
        return self.sandbox.run(_USER, ("bash", "-euc", loop)).stdout.split()[-1]

    def _totals(self) -> Totals:
        found = _SDIAG.search(self.sandbox.run("root", ("sdiag",)).stdout)
        return Totals(int(found[1]), int(found[2])) if found else Totals(0, 0)


@contextmanager
def _sandbox() -> Iterator[Sandbox]:
    """A sandbox without launcher, with a quota; slurmctld soon forgets ended jobs."""
    sandbox = Sandbox.up(Path(mkdtemp(prefix="slicewise-bench-")), progress=print)
    try:
        sandbox.stop("launcher")
        sandbox.run("root", ("slicewise", "tenant-quota", "set", "vision", "--nominal", "7"))
        conf = sandbox.layout.slurm_conf
        text = conf.read_text(encoding="utf-8")
        conf.write_text(re.sub(r"MinJobAge=\d+", "MinJobAge=2", text), encoding="utf-8")
        yield sandbox
    finally:
        sandbox.down()


@contextmanager
def _echo(sandbox: Sandbox) -> Iterator[Path]:
    """Run the echo server as SlurmUser; yield its socket."""
    socket = sandbox.layout.run_dir / "echo.sock"
    source = Path(__file__).with_name("echo.py").read_text(encoding="utf-8")
    sandbox.start("echo", "slurm", ("/usr/bin/python3", "-c", source, str(socket)))
    deadline_s = time.monotonic() + _PATIENCE_S
    while not socket.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    try:
        yield socket
    finally:
        with suppress(ProcessLookupError):
            sandbox.stop("echo")


def _scripts(sandbox: Sandbox, socket: Path) -> Mapping[str, str]:
    echo = Path(__file__).with_name("echo.lua").read_text(encoding="utf-8")
    question = QUESTION.model_dump_json(exclude_defaults=True)
    return {
        NONE: "",
        ECHO: echo.replace("@QUESTION@", question).replace("@SOCKET@", str(socket)),
        SLICEWISE: slicewise_script(sandbox),
    }


def slicewise_script(sandbox: Sandbox) -> str:
    """A site's minimal job_submit.lua, in mode enforce."""
    layout = sandbox.layout
    wiring = Wiring(
        sandbox.state.program.project / "slicewise" / "slurm_plugin" / "lua" / MODULE.name,
        layout.run_dir / "admission" / "admission.sock",
        layout.etc / "off",
        ("gpu",),
    )
    return minimal(wiring).replace('"observe"', '"enforce"')


def rounds_text(blocks: Mapping[str, Sequence[float]]) -> Mapping[str, list[float]]:
    """The blocks' milliseconds for the report, rounded to the microsecond."""
    return {variant: [round(ms, 3) for ms in values] for variant, values in blocks.items()}
