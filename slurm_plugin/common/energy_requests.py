"""What users ask the daemon about joules: who took how many, and how that is known."""

from typing import Annotated

from pydantic import Field

from slicewise.cluster.rpc.message import Asks, Message, Request, TenantText, WholeAnswer
from slicewise.slurm_plugin.rules.accounting.energy import EnergyGroup


class EnergyLine(Message):
    """A sum of the joules of boards, in millijoules.

    Attributes:
        day, node, tenant, person, service: what it is about; "" is what is nobody's, and on lines
            by service jobs that are none. Of these, what the line is not about is "" too.
        run: the job as Slurm shows it, with the ``_`` of an array; "" on other lines.
        started_s: when it began, in Unix seconds; 0 on other lines, and where it is not known.
        energy_mj: what runs took: the sum of the next three.
        counter_mj, power_mj: measured, by boards' counters or by their power times time.
        model_mj: not measured: by the table of boards' watts, as if runs worked all the time.
        shared_mj: what of the measured is a part of a board that several jobs held, by activity or
            slices, or is unchecked: of boards of which the doctor has a finding.
        idle_mj: measured, and nobody's.
        unknown_mj: measured, of jobs that the ledger does not have, as of types without a price.
        tokens: of a service, those of the same days; None on other lines.
        carbon_g: grams of CO2; None without a factor.
    """

    day: str = ""
    node: str = ""
    tenant: str = ""
    person: str = ""
    service: str = ""
    run: str = ""
    started_s: int = 0
    energy_mj: int
    counter_mj: int
    power_mj: int
    model_mj: int
    shared_mj: int
    idle_mj: int
    unknown_mj: int
    tokens: int | None = None
    carbon_g: float | None = None


class EnergyAnswer(WholeAnswer):
    """Joules of some days.

    Attributes:
        power_mw: what all boards with a meter draw now; None without one, and for who sees not all.
    """

    lines: tuple[EnergyLine, ...]
    power_mw: int | None = None


class EnergyRequest(Request, Asks[EnergyAnswer], get="energy-use"):
    """Asks for the joules of days that begin from ``since_s`` up to ``until_s``, by the time zone
    of tariffs; without one by the ledger's.

    A user sees the runs of the user's tenants. Operators see all, and what is nobody's.
    """

    by: EnergyGroup = "tenant"
    tenant: TenantText | None = None
    since_s: Annotated[int, Field(ge=0, le=2**40)]
    until_s: Annotated[int, Field(ge=0, le=2**40)]
