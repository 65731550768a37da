"""Keeps what was submitted of services, so that their users can see it and go back to it."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import BigInteger, cast, func, insert, select
from sqlalchemy.dialects.postgresql import ARRAY

from slicewise.cluster.rpc.read_messages import GenerationRecord
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.tables import service_generations

MOST, MOST_OF_ALL = 100, 1000
"""Generations of a name that are read at once, the newest ones: of a tenant, and of all tenants."""


class Generations(LedgerPart):
    """Generations of services. Each is a row of its own, written once."""

    def record(self, generations: Sequence[GenerationRecord]) -> None:
        """Write those that are not there yet, in this order.

        Slurm may give an array job id again: another script under it is another generation. The
        time of submission says nothing, as Slurm changes it when tasks are requeued.
        """
        of = service_generations.c
        ids = [generation.array_job_id for generation in generations]
        mine = select(of.array_job_id, of.directives).where(
            of.cluster == self._cluster, of.array_job_id.in_(ids)
        )
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            known = ((row.array_job_id, row.directives) for row in connection.execute(mine))
            missing = not_recorded(generations, known)
            rows = [
                {"cluster": self._cluster, **generation_record.model_dump()}
                for generation_record in missing
            ]
            if rows:
                connection.execute(insert(service_generations), rows)

    def named(self, name: str, tenants: Collection[str] | None) -> tuple[GenerationRecord, ...]:
        """The newest generations of services of that name, the newest first.

        ``tenants``: those whose services are read; None is all. One tenant's many generations leave
        room for another's few.
        """
        of = service_generations.c
        wanted = [of.cluster == self._cluster, of.name == name]
        if tenants is not None:
            wanted.append(of.tenant.in_(tenants))
        place = func.row_number().over(partition_by=of.tenant, order_by=of.id.desc())
        placed = select(service_generations, place.label("place")).where(*wanted).subquery()
        latest = (
            select(placed)
            .where(placed.c.place <= MOST)
            .order_by(placed.c.id.desc())
            .limit(MOST_OF_ALL)
        )
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            rows = connection.execute(latest).mappings().all()
        fields = GenerationRecord.model_fields
        return tuple(
            GenerationRecord.model_validate({key: row[key] for key in fields}) for row in rows
        )

    def forget(self, before_s: float, living: Collection[int], most: int) -> int:
        """Delete at most ``most`` old generations of which no replica ever ran; return how many.

        A generation is old if it was recorded before ``before_s``, and 90 days ago. Those of the
        arrays ``living`` stay. It looks at all runs, so it may take long.
        """
        forget = func.slicewise.forget_generations(
            self._cluster, func.to_timestamp(before_s), cast(list(living), ARRAY(BigInteger)), most
        )
        with writing(self._engine) as connection:
            return int(connection.execute(select(forget)).scalar_one())


def not_recorded(
    generations: Iterable[GenerationRecord], known: Iterable[tuple[int, Mapping[str, str]]]
) -> tuple[GenerationRecord, ...]:
    """The generations, in their order, whose array job id has none of the same directives.

    ``known`` are array job ids with directives, as recorded.
    """
    of_array: defaultdict[int, list[Mapping[str, str]]] = defaultdict(list)
    for array_job_id, directives in known:
        of_array[array_job_id].append(directives)
    return tuple(
        generation
        for generation in generations
        if generation.directives not in of_array[generation.array_job_id]
    )
