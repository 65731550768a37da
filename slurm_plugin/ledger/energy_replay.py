"""SQL that compares what boards took with its parts."""

_ENERGY = """
WITH parts AS (
    SELECT cluster, to_timestamp(hour_s)::text AS at, node, gpu_uuid, measure, seen_by, energy_mj
      FROM slicewise.energy_hours
     UNION ALL
    SELECT cluster, day::text, node, gpu_uuid, measure, '', energy_mj FROM slicewise.energy_days
), boards AS (
    SELECT cluster, to_timestamp(hour_s)::text AS at, node, gpu_uuid, measure, seen_by, energy_mj
      FROM slicewise.energy_boards
     UNION ALL
    SELECT cluster, day::text, node, gpu_uuid, measure, '', sum(energy_mj)
      FROM slicewise.energy_board_days GROUP BY 1, 2, 3, 4, 5
), differences AS (
    SELECT cluster, at, node, gpu_uuid, coalesce(b.energy_mj, 0) AS board,
           coalesce(p.energy_mj, 0) AS parts
      FROM boards b
      FULL JOIN (SELECT cluster, at, node, gpu_uuid, measure, seen_by, sum(energy_mj) AS energy_mj
                   FROM parts GROUP BY 1, 2, 3, 4, 5, 6) AS p
     USING (cluster, at, node, gpu_uuid, measure, seen_by)
)
SELECT count(*) AS seen, coalesce(sum(abs(board - parts)), 0) AS difference,
       (array_agg(format('energy of %s of %s on %s, %s: it took %s mJ, its parts are %s',
                         gpu_uuid, node, cluster, at, board, parts))
        FILTER (WHERE board <> parts))[1:10] AS faults
  FROM differences
"""
"""What jobs and nobody have of a board's hour or day is what the board took."""

CHECKS = (_ENERGY,)
