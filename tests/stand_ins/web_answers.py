"""Answers of a daemon that the page's server shows, made up: as large, and as hostile, as asked."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from builders.service_views import a_generation

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.findings import Severity
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    Repartition,
    RepartitionState,
    RepartitionStep,
    RepartitionStepOutcome,
    RepartitionStepRecord,
)
from slicewise.cluster.language.keep_warm import WarmDay
from slicewise.cluster.language.meters import OUTPUT_TOKENS, REQUESTS, TOKENS
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.rebalances import (
    RebalanceRun,
    RunOutcome,
    StepName,
    StepOutcome,
    StepRecord,
)
from slicewise.cluster.language.starts import MOMENTS, Moment, StartTrace
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.history_messages import HistoryAnswer, HistoryRequest, HistorySeries
from slicewise.cluster.rpc.journal_messages import (
    RebalancesAnswer,
    RepartitionsAnswer,
)
from slicewise.cluster.rpc.key_messages import KeyMadeAnswer, KeysAnswer, KeyView
from slicewise.cluster.rpc.limit_messages import LimitsAnswer
from slicewise.cluster.rpc.message import Answer, DoneAnswer, Request
from slicewise.cluster.rpc.overview_messages import (
    AttentionItem,
    GpuNow,
    InstanceNow,
    MonthNow,
    OtherTenants,
    OverviewAnswer,
    QueueAnswer,
    QueuedNow,
    ServiceNow,
    SlicesByState,
    TenantThisMonth,
)
from slicewise.cluster.rpc.read_messages import (
    GenerationsAnswer,
    PooledModelNow,
    PoolModelsAnswer,
    PriorityAnswer,
    PriorityTerm,
    ServiceStarts,
    ServiceStartsAnswer,
    WhyAnswer,
    WhyRow,
    WhyTable,
)
from slicewise.cluster.rpc.web_messages import WhoamiAnswer
from slicewise.slurm_plugin.common.energy_requests import EnergyAnswer, EnergyLine
from slicewise.slurm_plugin.common.explain_requests import QuotaPlanAnswer
from slicewise.slurm_plugin.common.ledger_requests import (
    SharesAnswer,
    StatementAnswer,
    TenantsAnswer,
)
from slicewise.slurm_plugin.common.tariff_requests import ChargesAnswer
from slicewise.slurm_plugin.common.usage_requests import TokenLine, TokenUsageAnswer
from slicewise.slurm_plugin.rules.accounting.charge_lines import Charged, ChargeLine
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.accounting.overview import (
    BudgetStatus,
    TenantInTree,
    token_budget_status,
)
from slicewise.slurm_plugin.rules.accounting.types import ShareLine
from slicewise.slurm_plugin.rules.explain.change_report import (
    ChangeReport,
    Impact,
    ImpactKind,
    LoanPlan,
    TenantPlan,
    TenantSide,
)
from slicewise.slurm_plugin.rules.quota.loan_lines import LoanLine
from slicewise.slurm_plugin.rules.quota.type_limits import TypeOfQuota
from slicewise.slurm_plugin.rules.quota.types import Budget, Quota

NOW_S = 1_795_752_000
"""27 November 2026, 04:00 UTC."""
HOUR_S, DAY_S = 3600, 86_400
MONTH_S = 1_793_491_200
"""The begin of that month, UTC."""
_ENTRIES = 50
"""Entries of a journal in one answer of the daemon's."""


class Answers:
    """A made-up cluster: ``tenants`` and as many services and nodes; ``extra`` is in every text."""

    def __init__(self, tenants: int = 2, extra: str = "", *, now_s: float = NOW_S) -> None:
        self.count, self.extra, self.now_s = tenants, extra, now_s
        self.is_operator = self.has_charges = True
        self.asked: list[tuple[str, Request]] = []
        self.refused: dict[type[Request], InvalidInputError] = {}

    async def ask(self, user: str, request: Request) -> Answer:
        """Answer as the daemon would; raises what ``refused`` has for such a request."""
        self.asked.append((user, request))
        if type(request) in self.refused:
            raise self.refused[type(request)]
        answer: Answer = getattr(self, type(request).__name__.removesuffix("Request").lower())(
            request
        )
        return answer

    def name(self, number: int) -> str:
        """A tenant's name."""
        known = ("vision", "nlp", "speech", "robotics", "climate")
        text = known[number] if number < len(known) else f"group-{number:04}"
        return text + self.extra

    def whoami(self, _: Request) -> WhoamiAnswer:
        """See ``ask``, as of all below."""
        return WhoamiAnswer(is_operator=self.is_operator)

    def overview(self, _: Request) -> OverviewAnswer:
        parts = {"used": 7000, "lent": 2000, "idle": 4000, "draining": 1000, "down": 0}
        amounts: dict[str, Any] = {
            f"{name}_millislices": one * self.count for name, one in parts.items()
        }
        return OverviewAnswer(
            cluster="site",
            observed_s=self.now_s,
            complete=True,
            mode="enforce",
            slices=SlicesByState(capacity_millislices=14_000 * self.count, **amounts),
            tenants=tuple(self.tree_row(number) for number in range(self.count)),
            services=tuple(map(self.service, range(self.count))),
            gpus=tuple(self.gpu(number) for number in range(2 * self.count)),
            waiting=(),
            month=self.month() if self.count else None,
            attention=(
                AttentionItem(
                    severity=Severity.WARNING,
                    code="SW-NODE-DOWN",
                    about="node-0001",
                    what=f"Node node-0001 is down{self.extra}",
                    command="scontrol show node node-0001",
                ),
            ),
        )

    def month(self) -> MonthNow:
        """Money and joules of each tenant, and nobody's."""
        nobody = TenantThisMonth(tenant="", energy_mj=36_000_000_000, measured_mj=36_000_000_000)
        tenants = (
            TenantThisMonth(
                tenant=self.name(number),
                millionths=1_368_827 * (number + 1),
                energy_mj=4_321_000_000 * (number + 1),
                measured_mj=4_000_000_000,
            )
            for number in range(self.count)
        )
        return MonthNow(
            month="2026-11",
            zone="Europe/Berlin",
            currency="EUR",
            seen_s=NOW_S - 300,
            tenants=(nobody, *tenants),
        )

    def service(self, number: int) -> ServiceNow:
        states: Any = ("ready", "failing", "asleep", "waking")
        return ServiceNow(
            tenant=self.name(number),
            name=f"chat{self.extra}",
            user="alice",
            condition=states[number % 4],
            ready=number % 5,
            starting=number % 2,
            min_replicas=0,
            max_replicas=6,
            desired_replicas=number % 6,
            why=f"backlog of {number} requests{self.extra}",
            backlog=number * 3,
            in_flight=2,
            rate_per_s=12.5 + number,
            p95_ms=220.0 + number,
            warm_replicas=number / 2,
            warm_days=(WarmDay("2026-11-30", 11_520_000, number),) * (number % 2),
        )

    def gpu(self, number: int) -> GpuNow:
        conditions: Any = ("up", "up", "down", "draining")
        instances = (
            InstanceNow(
                gres_type="a100_3g.40gb",
                size=4,
                start=0,
                is_held=number % 3 != 2,
                job=str(810 + number),
                tenant=self.name(number // 2),
                service=f"{self.name(number // 2)}/chat{self.extra}",
            ),
            *(
                InstanceNow(
                    gres_type="a100_1g.10gb",
                    size=1,
                    start=start,
                    is_held=start < 6,
                    job=f"9{number}{start}",
                    tenant="nlp",
                    is_borrowed=start == 4,
                )
                for start in range(4, 8)
            ),
        )
        node = number // 8
        return GpuNow(
            node=f"node-{node:04}",
            gpu=number % 8,
            condition=conditions[node % 4],
            memory_slices=8,
            instances=instances,
        )

    def tree_row(self, number: int) -> TenantInTree:
        has_parent = number > 1 and number % 3 != 0
        return TenantInTree(
            name=self.name(number),
            depth=int(has_parent),
            nominal_millislices=4000,
            borrowed_millislices=2000 if number % 2 else 0,
            lent_millislices=0 if number % 2 else 2000,
            limit_millislices=6000 if number % 2 else 2000,
            in_use_millislices=5000 if number % 2 else 1500,
            on_loan_millislices=1000 if number % 2 else 0,
            waiting_jobs=number % 4,
            waiting_millislices=1000 * (number % 4),
            payer=self.name(number) if number < 3 else "",
            left_millislice_s=400 * 3_600_000 if number < 3 else None,
            resets_s=MONTH_S + 30 * DAY_S,
            parent=self.name(number // 3 * 3) if has_parent else "",
            children=(),
            quota=Quota(Millislices(4000)),
            own_in_use_millislices=1500,
            token_payer=self.name(number) if number == 1 else "",
            types=(
                TypeOfQuota(
                    gres_type="1g.10gb", limit=6, guaranteed=4, in_use=5, guaranteed_in_use=3
                ),
                TypeOfQuota(gres_type="3g.40gb", limit=2, in_use=1, guaranteed_in_use=1),
                TypeOfQuota(gres_type="7g.80gb", guaranteed=0, in_use=0, guaranteed_in_use=0),
            )
            if number % 4 == 0
            else (),
        )

    def tenants(self, request: Any) -> TenantsAnswer:
        until = request.after + 500
        page = [self.tree_row(number) for number in range(request.after, min(until, self.count))]
        loans = [
            LoanLine(
                lender=self.name(number),
                borrower=self.name(number + 1),
                amount_millislices=2000 if number % 4 else 3500,
                is_recalled=number % 6 == 2,
                since_s=NOW_S - 5000,
                until_s=NOW_S + 600,
            )
            for number in range(request.after, min(until, self.count), 2)
        ]
        return TenantsAnswer(
            now_s=NOW_S,
            tenants=tuple(page),
            others=OtherTenants(
                tenants=3,
                nominal_millislices=9000,
                in_use_millislices=4000,
                waiting_jobs=2,
                waiting_millislices=2000,
            ),
            loans=tuple(loans),
            budgets=tuple(
                BudgetStatus(
                    tenant=one.name,
                    budget=Budget(Period.MONTH, MillisliceSeconds(1000 * 3_600_000)),
                    left=400 * 3_600_000,
                    reserved=20 * 3_600_000,
                    used=None,
                    rate=5000,
                    ends_s=NOW_S + 3 * DAY_S,
                    period_start_s=MONTH_S,
                    resets_s=MONTH_S + 30 * DAY_S,
                )
                for one in page
                if one.payer
            )
            + tuple(
                token_budget_status(
                    tenant.name,
                    Budget(Period.MONTH, 2_000_000, meter=TOKENS.name),
                    *(1_234_567, None),
                    now_s=NOW_S,
                    zone="UTC",
                )
                for tenant in page
                if tenant.token_payer
            ),
            more=until if until < self.count else None,
        )

    def history(self, request: Any) -> HistoryAnswer:
        assert isinstance(request, HistoryRequest)
        span_s = request.until_s - request.since_s
        step_s = next(one for one in (10, 300, 1800, 3600) if span_s <= 1000 * one)
        times_s = tuple(range(request.since_s, request.until_s, step_s))
        places = range(len(times_s))
        about_cluster = {
            "used": 6000,
            "lent": 2000,
            "idle": 4000,
            "draining": 1000,
            "down": 1000,
        }
        about_tenant = {
            "nominal": 4000,
            "in_use": 3000,
            "borrowed": 1000,
            "lent": 500,
            "waiting": 700,
            "budget_left": 0,
        }
        about_service = {"ready": 3, "desired": 4, "backlog": 20, "p95": 230, "requests": 12}
        is_service = "/" in request.about and not request.about.endswith("/")
        chosen = about_service if is_service else about_tenant
        chosen = about_cluster if request.about == "cluster" else chosen

        def values(name: str, base: int) -> tuple[float | None, ...]:
            if name == "budget_left":
                return tuple(
                    (1000 - (at_s - MONTH_S) / HOUR_S * 0.95) * 3_600_000 for at_s in times_s
                )
            wave = [base * (1 + (at // 40 + len(name)) % 5 / 5) for at in places]
            return tuple(None if 300 < at < 320 else one for at, one in enumerate(wave))

        return HistoryAnswer(
            about=request.about,
            step_s=step_s,
            times_s=times_s,
            samples=(step_s // 10,) * len(times_s),
            series=tuple(
                HistorySeries(name=name, unit="millislices", values=values(name, base))
                for name, base in chosen.items()
            ),
            zone="UTC",
        )

    def why(self, request: Any) -> WhyAnswer:
        return WhyAnswer(
            about=request.about,
            headline=f"{request.about} may start 2 more slices{self.extra}",
            sentences=(f"It waits for a GPU{self.extra}.",),
            tables=(
                WhyTable(
                    heading="What it holds",
                    rows=(WhyRow(what=f"job 814{self.extra}", gpus="1g.10gb", ends_s=NOW_S),),
                ),
            ),
            hints=(f"Ask for less{self.extra}.",),
        )

    def generations(self, request: Any) -> GenerationsAnswer:
        return GenerationsAnswer(
            generations=(
                a_generation(
                    814,
                    submitted_s=NOW_S - 9000,
                    tenant=request.tenant,
                    name=request.name,
                    directives={"model": f"bert{self.extra}", "max_replicas": "6"},
                ),
            )
        )

    def servicestarts(self, request: Any) -> ServiceStartsAnswer:
        """A wake of seven seconds, and one that goes on."""
        took_s = (0.04, 0.0, 0.11, 0.7, 0.35, 0.2, 0.4, 4.1, 0.5, 0.12, 0.48)
        at_s = (NOW_S - 900 + sum(took_s[:number]) for number in range(len(took_s) + 1))
        moments = (moment for moment in MOMENTS if moment not in {"booted", "ended"})
        woken = StartTrace(
            *(814, 0, dict(zip(moments, at_s, strict=True)), "ready"), node=f"gpu1{self.extra}"
        )
        begun_s: dict[Moment, float] = {"desired": NOW_S - 5.0, "released": NOW_S - 4.8}
        starting = StartTrace(814, 1, begun_s, seen_s=float(NOW_S))
        starts = ServiceStarts(tenant=request.tenant, name=request.name, starts=(woken, starting))
        return ServiceStartsAnswer(services=(starts,))

    def poolmodels(self, request: Any) -> PoolModelsAnswer:
        """A replica that the service shares with others; none of those of vision shares."""
        place = {"array_job_id": 814, "slot": 0, "node": f"gpu1{self.extra}"}
        own = PooledModelNow(
            service=request.name, model=f"m{self.extra}", state="ready", in_flight=2, **place
        )
        loading = PooledModelNow(service="ner", model="m2", state="loading", load_s=2.5, **place)
        why = f"CUDA out of memory{self.extra}"
        refused = PooledModelNow(service="wide", model="m3", state="refused", why=why, **place)
        absent = PooledModelNow(service=f"none{self.extra}", model="m4")
        is_shared = request.tenant != "vision"
        return PoolModelsAnswer(models=(own, loading, refused, absent) if is_shared else ())

    def priority(self, request: Any) -> PriorityAnswer:
        return PriorityAnswer(
            job=request.job,
            tenant="vision",
            tasks=1,
            job_class="normal",
            wait_s=600,
            terms=(PriorityTerm(name="share", value=0.5, weight=10, points=500),),
            site_factor=500,
            factors=(),
            max=10_000,
            quantum=10,
            wait_full_s=600,
            full_s=NOW_S,
            ahead=3,
            ahead_own=1,
            others_at_most=0,
        )

    def queue(self, request: Any) -> QueueAnswer:
        numbers = range(request.after + 1, min(request.after + 501, self.count * 3 + 1))
        rows = [
            QueuedNow(
                job=str(7000 + number),
                tenant=self.name(number % self.count),
                user=f"alice{self.extra}",
                gpus={"a100_1g.10gb": 2},
                tasks=1 + number % 3,
                cost_millislices=2000,
                since_s=NOW_S - 60 * number,
                reason="Resources",
                position=number,
                why=f"for a free GPU{self.extra}",
                start_s=NOW_S + 600 if number % 2 else None,
                start="Slurm's plan" if number % 2 else "no estimate while it waits for quota",
            )
            for number in numbers
        ]
        more = numbers[-1] if numbers and numbers[-1] < self.count * 3 else None
        return QueueAnswer(
            observed_s=self.now_s,
            complete=True,
            rows=tuple(rows),
            other_jobs=4,
            other_millislices=9000,
            more=more,
        )

    def rebalances(self, _: Request) -> RebalancesAnswer:
        steps = (
            StepRecord(
                step=StepName.LEND,
                outcome=StepOutcome.DONE,
                started_s=NOW_S - 100,
                ended_s=NOW_S - 99.69,
                saw={"idle_millislices": 4000, "tenants": 2},
                did=(f"vision lends 2 slices to nlp{self.extra}", "nlp gives back 1 slice"),
            ),
            StepRecord(
                step=StepName.COMPILE,
                outcome=StepOutcome.FAILED,
                started_s=NOW_S - 99,
                ended_s=NOW_S - 97.8,
                saw={},
                why=f"sacctmgr: Connection refused{self.extra}",
            ),
        )
        runs = tuple(
            RebalanceRun(
                run_id=number,
                author="root",
                host="head",
                outcome=(RunOutcome.FAILED, RunOutcome.DONE)[number % 2],
                started_s=NOW_S - 100,
                ended_s=NOW_S - 98.4,
                steps=steps,
            )
            for number in range(41 + min(self.count, _ENTRIES), 41, -1)
        )
        return RebalancesAnswer(runs=runs, more=runs[-1].run_id)

    def repartitions(self, _: Request) -> RepartitionsAnswer:
        names = ("reserve", "move", "cut", "tell") * max(1, min(self.count, 100) // 4)
        one = Repartition(
            repartition_id=7,
            node="node-0001",
            gpu="GPU-8c5c0f1e-0000-0000-0000-000000000001",
            before=(Placement(profile="7g.80gb", start=0, size=8),),
            after=(
                Placement(profile="4g.40gb", start=0, size=4),
                Placement(profile="3g.40gb", start=4, size=4),
            ),
            moves=("vision/chat slot 2",),
            reason=f"3 jobs wait for 3g.40gb{self.extra}",
            gain_millislice_s=9_000_000,
            drained_millislice_s=300_000,
            author="root",
            state=RepartitionState.ROLLED_BACK,
            error=f"slurmd did not answer{self.extra}",
            started_s=NOW_S - 900,
            ended_s=NOW_S - 800,
            steps=tuple(
                RepartitionStepRecord(
                    step=RepartitionStep(step),
                    direction=Direction.FORWARD,
                    outcome=RepartitionStepOutcome.DONE,
                    started_s=NOW_S - 900 + number,
                    ended_s=NOW_S - 898.5 + number,
                    words=f"{step} of GPU 0{self.extra}",
                )
                for number, step in enumerate(names)
            ),
        )
        return RepartitionsAnswer(
            repartitions=tuple(
                replace(one, repartition_id=number)
                for number in range(6 + min(self.count, _ENTRIES), 6, -1)
            )
        )

    def shares(self, request: Any) -> SharesAnswer:
        lines = tuple(
            ShareLine(
                start_s=MONTH_S,
                day="2026-11-01",
                tenant=self.name(number),
                payer=self.name(number),
                service=f"{self.name(0)}/chat",
                shared_millislice_s=MillisliceSeconds(7200 * 100 if number else 0),
                relieved_millislice_s=MillisliceSeconds(0 if number else 7200 * 100),
                requests=40,
                prompt_tokens=9000,
                cached_prompt_tokens=100,
                output_tokens=700,
            )
            for number in range(min(self.count, 2))
            if request.since_s <= MONTH_S < request.until_s
        )
        of_pool = tuple(
            replace(
                lines[0],
                service=f"{self.name(0)}/{service}",
                relieved_millislice_s=MillisliceSeconds(0),
                requests=0,
                pooled_millislice_s=MillisliceSeconds(amount),
            )
            for service, amount in (("chat", -1_800_000), ("code", 1_800_000))
            if lines
        )
        return SharesAnswer(lines=(*lines, *of_pool))

    def statement(self, request: Any) -> StatementAnswer:
        first = 0 if request.after is None else request.after.job_id + 1
        last = min(first + 2000, self.count * 4)
        rows: list[Mapping[str, Any]] = [
            {
                "run": {
                    "key": {"cluster": "site", "job_id": number, "start_s": MONTH_S + number * 60},
                    "tenant": self.name(number % self.count),
                    "user": f"alice{self.extra}",
                    "task": str(number),
                    "gres": {"a100_1g.10gb": 2},
                    "cost_millislices": 2000,
                    "payer": self.name(number % self.count),
                },
                "end_s": MONTH_S + number * 60 + 7200,
                "used_millislice_s": 7200 * 2000,
                "waived_millislice_s": 0,
                "reserved_millislice_s": 0,
                "service": f"chat{self.extra}" if number % 2 else "",
            }
            for number in range(first, last)
        ]
        more = None
        if last < self.count * 4:
            more = {"tenant": "x", "start_s": 0, "job_id": last - 1, "now_s": NOW_S}
        return StatementAnswer.model_validate({"now_s": NOW_S, "rows": tuple(rows), "more": more})

    def charges(self, request: Any) -> ChargesAnswer:
        """A day of each tenant's service, of which the next asks some, and a night at half price.

        Without tenants there is no tariff.
        """
        day = {"start_s": MONTH_S, "end_s": MONTH_S + DAY_S, "day": "2026-11-01"}
        price = Decimal("0.35")
        lines = []
        for number in range(self.count):
            name = self.name(number)
            if request.tenant not in (None, name) or not self.has_charges:
                continue
            of = Charged(
                **day,
                payer=name,
                tenant=name,
                service=f"chat{self.extra}",
                user=f"alice{self.extra}",
                gpu_types=("1g.10gb",),
                price=price,
            )
            night = replace(of, start_s=MONTH_S + DAY_S, day="2026-11-02", price=price / 2)
            words = replace(
                of,
                kind="request",
                gpu_types=(),
                owner=self.name((number + 1) % self.count),
                meter=OUTPUT_TOKENS.name,
                price=Decimal("0.4"),
                list_price=Decimal("0.6"),
            )
            lines += [
                ChargeLine(of, (number + 1) * 7_200_001),
                ChargeLine(replace(night, service=""), 3_600_000),
                ChargeLine(words, 1_234_567, 493_827),
                ChargeLine(replace(words, meter=REQUESTS.name, list_price=None), 400, 0),
            ]
        budget = MoneyBudgetStatus(self.name(0), 500_000_000, 93_750_000, 0.8, MONTH_S + 30 * DAY_S)
        return ChargesAnswer(
            currency="EUR" if self.count else "",
            zone="Europe/Berlin",
            now_s=NOW_S,
            lines=tuple(lines),
            budgets=(budget,) if request.tenant in (None, self.name(0)) and self.count else (),
        )

    def energy(self, request: Any) -> EnergyAnswer:
        def line(number: int, **about: str) -> EnergyLine:
            taken_mj = 4_321_000_000 * (number + 1)
            return EnergyLine(
                **about,
                energy_mj=taken_mj,
                counter_mj=taken_mj // 10 * 9,
                power_mj=0,
                model_mj=taken_mj - taken_mj // 10 * 9,
                shared_mj=taken_mj // 3,
                idle_mj=0,
                unknown_mj=0,
                tokens=1_234_567 if request.by == "service" else None,
                carbon_g=382.5 * (number + 1),
            )

        numbers = range(self.count)
        if request.by == "service":
            chat = f"{request.tenant}/chat{self.extra}"
            return EnergyAnswer(lines=(line(0), line(1, service=chat)) if self.count else ())
        nothing = {"energy_mj": 0, "shared_mj": 0, "idle_mj": 36_000_000_000}
        idle = line(0).model_copy(update=nothing)
        lines = tuple(line(number, tenant=self.name(number)) for number in numbers)
        return EnergyAnswer(lines=(idle, *lines) if lines else ())

    def keylist(self, _: Request) -> KeysAnswer:
        keys = tuple(
            KeyView(
                key_id=f"{number:012x}",
                tenant=self.name(number % self.count),
                name=("laptop", "notebook", "ci")[number % 3],
                created_by="alice",
                person="alice",
                created_s=NOW_S - (1 + number) * DAY_S,
                service=("", "chat")[number % 2],
                expires_s=NOW_S + DAY_S * (number - 1) if number % 3 else None,
                used_s=NOW_S - HOUR_S if number else None,
            )
            for number in range(self.count)
        )
        tenants = tuple(self.name(number) for number in range(self.count))
        return KeysAnswer(keys=keys, tenants=tenants, unprotected=tenants[:1])

    def keycreate(self, _: Request) -> KeyMadeAnswer:
        return KeyMadeAnswer(person="alice")

    def keyrevoke(self, _: Request) -> DoneAnswer:
        return DoneAnswer()

    def limitchange(self, _: Request) -> DoneAnswer:
        return DoneAnswer()

    def limits(self, _: Request) -> LimitsAnswer:
        tenant = {"tenant": self.name(0), "limits": {"tokens_per_month": 200_000_000}}
        person = {"tenant": self.name(0), "person": "alice", "limits": {"concurrent": 8}}
        models = {"models": ["vision/chat"], "requests_per_minute": 60}
        key = {"tenant": self.name(0), "key_id": f"{0:012x}", "limits": models}
        return LimitsAnswer.model_validate({"limits": (tenant, person, key)})

    def tokenusage(self, request: Any) -> TokenUsageAnswer:
        about = {
            "day": [{"day": f"2026-11-{1 + number % 27:02}"} for number in range(self.count)],
            "service": [
                {"service": f"{self.name(number)}/chat{self.extra}"} for number in range(self.count)
            ],
        }.get(
            request.by,
            [
                {"tenant": self.name(number), "person": "alice", "key_id": f"{number:012x}"}
                for number in range(self.count)
            ],
        )
        lines = tuple(
            TokenLine(
                **words,
                requests=31 * (1 + number),
                prompt_tokens=123_456 * (1 + number),
                cached_prompt_tokens=23_456 * number,
                output_tokens=7_890 * (1 + number),
                first_token_ms=180.4 + number if number % 4 != 3 else None,
            )
            for number, words in enumerate(about)
        )
        return TokenUsageAnswer(lines=lines)

    def quotaplan(self, _: Request) -> QuotaPlanAnswer:
        def side(nominal: int) -> TenantSide:
            return TenantSide(
                nominal_millislices=nominal,
                guaranteed_millislices=Millislices(nominal),
                lent_millislices=Millislices(0),
                borrowed_millislices=Millislices(1000),
                limit_millislices=Millislices(nominal + 1000),
            )

        change = ChangeReport(
            changes=(f"vision: nominal 6 slices (was 4 slices){self.extra}",),
            tenants=(
                TenantPlan(self.name(0), 0, side(4000), side(6000)),
                TenantPlan(self.name(1), 1, None, side(1000)),
            ),
            unchanged=self.count - 1,
            loans=(LoanPlan("nlp", "vision", before_millislices=2000, after_millislices=0),),
            harms=(
                Impact(
                    kind=ImpactKind.REPLICA,
                    tenant="nlp",
                    about="nlp/chat",
                    amount_millislices=1000,
                    words=f"a borrowed replica would be drained{self.extra}",
                ),
            ),
            warnings=(),
            hidden=(),
            ended_windows=(),
            needs_overcommit=True,
        )
        return QuotaPlanAnswer(change=change)
