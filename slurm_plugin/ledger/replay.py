"""SQL that replays every transfer and compares the result with what is stored."""

from collections.abc import Sequence
from typing import Any

from slicewise.slurm_plugin.rules.accounting.types import Verification

SETTING = """
SELECT set_config('work_mem', '64MB', true), set_config('jit', 'off', true),
       set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true)
"""

_TRANSFERS = """
SELECT 0 AS seen, coalesce(sum(t.amount), 0) AS difference,
       (array_agg(format('transfer %s (%s of run %s): from or to a wrong account',
                         t.id, t.kind, t.run_id)))[1:10] AS faults
  FROM slicewise.transfers t
  LEFT JOIN slicewise.runs r ON r.id = t.run_id
  LEFT JOIN slicewise.accounts d ON d.id = t.debit_account_id
  LEFT JOIN slicewise.accounts c ON c.id = t.credit_account_id
 WHERE t.budget_entry_id IS NULL AND t.share_entry_id IS NULL
   AND ((t.kind, d.kind, c.kind) IN (
            ('reserve', 'available', 'reserved'),
            ('extend', 'available', 'reserved'),
            ('post', 'reserved', 'used'),
            ('void', 'reserved', 'available'),
            ('reverse', 'used', 'reserved'),
            ('waive', 'operator', 'waived'),
            ('use', 'available', 'used'))
        AND (d.cluster, d.meter) = (r.cluster, r.meter)
        AND (c.cluster, c.meter) = (r.cluster, r.meter)
        AND d.tenant = CASE WHEN d.kind IN ('used', 'waived', 'operator') THEN r.tenant
                            ELSE coalesce(r.payer, r.tenant) END
        AND c.tenant = CASE WHEN c.kind IN ('used', 'waived', 'operator') THEN r.tenant
                            ELSE coalesce(r.payer, r.tenant) END) IS NOT TRUE
"""
"""Each transfer of a run moves between the accounts that its kind names, of payer and tenant."""

_RUNS = """
WITH replayed AS (
    SELECT run_id,
           sum(CASE WHEN kind IN ('reserve', 'extend', 'reverse') THEN amount
                    WHEN kind IN ('waive', 'use') THEN 0 ELSE -amount END) AS reserved
      FROM (SELECT * FROM slicewise.transfers WHERE run_id IS NOT NULL
             ORDER BY run_id, number) AS in_order
     GROUP BY run_id
), compared AS (
    SELECT run_id, o.run_id AS open_id, coalesce(r.reserved, 0) AS reserved,
           coalesce(o.reserved, 0) AS stored,
           coalesce(o.posted, 0) AS stored_posted,
           CASE WHEN o.run_id IS NULL THEN 0 ELSE (
               SELECT coalesce(sum(CASE t.kind WHEN 'post' THEN t.amount
                                               ELSE -t.amount END), 0)
                 FROM slicewise.transfers t
                WHERE t.run_id = o.run_id AND t.kind IN ('post', 'reverse')) END AS posted
      FROM replayed r FULL JOIN slicewise.open_reservations o USING (run_id)
), differences AS (
    SELECT *, abs(reserved - stored) + greatest(-reserved, 0) + abs(posted - stored_posted)
              AS difference
      FROM compared
)
SELECT count(open_id) AS seen, coalesce(sum(difference), 0) AS difference,
       (array_agg(format('run %s: its transfers leave %s reserved and %s posted, stored are %s, %s',
                         run_id, reserved, posted, stored, stored_posted))
        FILTER (WHERE difference <> 0))[1:10] AS faults
  FROM differences
"""
"""What a run's transfers leave is its open reservation, and never below zero."""

_ACCOUNTS = """
WITH moved AS (
    SELECT debit_account_id, credit_account_id, sum(amount) AS amount
      FROM slicewise.transfers GROUP BY 1, 2
), replayed AS (
    SELECT account_id, sum(debits) AS debits, sum(credits) AS credits
      FROM (SELECT debit_account_id AS account_id, amount AS debits, 0 AS credits FROM moved
             UNION ALL SELECT credit_account_id, 0, amount FROM moved) AS legs
     GROUP BY 1
), differences AS (
    SELECT a.*, r.debits, r.credits, b.debits AS stored_debits, b.credits AS stored_credits,
           abs(coalesce(r.debits, 0) - coalesce(b.debits, 0))
           + abs(coalesce(r.credits, 0) - coalesce(b.credits, 0)) AS difference
      FROM slicewise.accounts a
      FULL JOIN replayed r ON r.account_id = a.id
      FULL JOIN slicewise.balances b ON b.account_id = coalesce(a.id, r.account_id)
)
SELECT count(*) AS seen,
       coalesce(sum(difference), 0)
       + (SELECT coalesce(sum(abs(amount)), 0)
            FROM (SELECT sum(stored_debits - stored_credits) AS amount
                    FROM differences GROUP BY meter) AS meters) AS difference,
       (array_agg(format('account %s of %s on %s, %s: its transfers are %s debits, %s credits, '
                         'stored are %s, %s', kind, tenant, cluster, meter, debits, credits,
                         stored_debits, stored_credits))
        FILTER (WHERE difference <> 0))[1:10] AS faults
  FROM differences
"""
"""The sums over each account are its balance; over those of a meter debits equal
credits."""

_SETTLED = """
WITH replayed AS (
    SELECT run_id, count(*) AS transfers, min(number) AS first, max(number) AS last,
           sum(CASE kind WHEN 'post' THEN amount WHEN 'waive' THEN amount
                         WHEN 'reverse' THEN -amount ELSE 0 END) AS used,
           (max(ARRAY[number, until_s]))[2] AS end_s
      FROM slicewise.transfers WHERE run_id IS NOT NULL GROUP BY run_id
), differences AS (
    SELECT r.id, r.tenant, r.task, p.transfers, p.first, p.last, p.used,
           r.cost_millislices * greatest(p.end_s - r.start_s, 0) AS allotted,
           CASE WHEN p.run_id IS NULL OR p.first <> 1 OR p.last <> p.transfers THEN 1
                WHEN o.run_id IS NULL AND r.meter = 'slice-seconds'
                THEN abs(p.used - r.cost_millislices * greatest(p.end_s - r.start_s, 0))
                ELSE 0 END AS difference
      FROM slicewise.runs r
      LEFT JOIN replayed p ON p.run_id = r.id
      LEFT JOIN slicewise.open_reservations o ON o.run_id = r.id
)
SELECT count(*) AS seen, coalesce(sum(difference), 0) AS difference,
       (array_agg(CASE WHEN transfers IS NULL
                       THEN format('run %s (%s of %s): has no transfer', id, task, tenant)
                       WHEN first <> 1 OR last <> transfers
                       THEN format('run %s (%s of %s): %s transfers, numbered from %s to %s',
                                   id, task, tenant, transfers, first, last)
                       ELSE format('run %s (%s of %s): settled at %s, Slurm allotted %s',
                                   id, task, tenant, used, allotted) END)
        FILTER (WHERE difference <> 0))[1:10] AS faults
  FROM differences
"""
"""A run's transfers are numbered without a gap; once settled, used + waived is cost × seconds, of
slices: only they cost by the second."""

BY_INDEX = """
SELECT set_config(name, 'off', true)
  FROM unnest(ARRAY['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'enable_material'])
       AS name
"""
"""For ``SEALS``: the planner expects far more transfers of a seal than it has."""

SEALS = """
WITH chain AS (
    SELECT id, last_transfer_id, hash, lag(hash, 1, '') OVER in_order AS previous,
           lag(last_transfer_id, 1, 0::bigint) OVER in_order AS behind,
           seals AS seal, lag(seals) OVER in_order AS seal_behind,
           (last_change_id, last_window_id, last_window_end_id, last_tariff_id)
           IS DISTINCT FROM (lag(last_change_id, 1, 0::bigint) OVER in_order,
                             lag(last_window_id, 1, 0::bigint) OVER in_order,
                             lag(last_window_end_id, 1, 0::bigint) OVER in_order,
                             lag(last_tariff_id, 1, 0::bigint) OVER in_order) AS has_policy
      FROM slicewise.seals WINDOW in_order AS (ORDER BY id)
), broken AS (
    SELECT s.*
      FROM chain s
     CROSS JOIN LATERAL (
           SELECT string_agg(
                      ROW(t.id, t.run_id, t.number, t.kind, t.debit_account_id,
                          t.credit_account_id, t.amount, t.until_s, t.recorded_at,
                          t.budget_entry_id, t.share_entry_id)::text
                      || CASE WHEN r.id IS NULL THEN '' ELSE
                             ROW(r.cluster, r.meter, r.job_id, r.start_s, r.tenant, r.payer,
                                 r.user_name, r.task, r.gres, r.cost_millislices)::text END
                      || CASE WHEN b.id IS NULL THEN '' ELSE
                             ROW(b.cluster, b.tenant, b.meter, b.kind, b.amount,
                                 b.period_start_s, b.author, b.reason, b.recorded_at,
                                 b.key)::text END
                      || CASE WHEN h.id IS NULL THEN '' ELSE
                             ROW(h.run_id, h.hour_s, h.number, h.day, h.tenant, h.payer, h.part,
                                 h.service, h.replica_of, h.amount, h.recorded_at)::text END,
                      E'\\n' ORDER BY t.id) AS said
             FROM slicewise.transfers t
             LEFT JOIN slicewise.runs r ON r.id = CASE t.number WHEN 1 THEN t.run_id END
             LEFT JOIN slicewise.budget_entries b ON b.id = t.budget_entry_id
             LEFT JOIN slicewise.share_entries h ON h.id = t.share_entry_id
            WHERE t.id > s.behind AND t.id <= s.last_transfer_id) AS there
     WHERE sha256(s.previous || convert_to(coalesce(there.said, '')
                  || CASE WHEN s.has_policy THEN slicewise.sealed_policy(s.seal_behind, s.seal)
                          ELSE '' END, 'UTF8')) <> s.hash
)
SELECT (SELECT coalesce(sum(transfers), 0) FROM slicewise.seals) AS seen,
       count(*) AS difference,
       (array_agg(format('seal %s: transfers %s to %s, their runs, budget entries or shares, or '
                         'the changes of quotas or tariffs between them, are not what was sealed',
                         id, behind + 1, last_transfer_id) ORDER BY id))[1:10]
       AS faults
  FROM broken
"""
"""Each seal is the hash of what is stored.

This writes out what ``slicewise.seal_hash`` computes: calling it for each of very many small seals
takes twenty times as long. ``SETTING`` fixes how times are written, and ``BY_INDEX`` how rows are
looked up."""

NEWEST_SEAL = "SELECT encode(hash, 'hex') FROM slicewise.seals ORDER BY id DESC LIMIT 1"
NEWEST_SEALED = "SELECT coalesce(max(last_transfer_id), 0) FROM slicewise.seals"

GIVEN_NUMBERS = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END, log_cnt FROM {sequence}"
SEALS_SEQUENCE = "SELECT pg_get_serial_sequence('slicewise.seals', 'id')"

CUT_OFF = """
WITH newest AS (
    SELECT coalesce(max(id), 0) AS id, coalesce(max(last_transfer_id), 0) AS last_transfer_id,
           coalesce(max(last_change_id), 0) AS last_change_id,
           coalesce(max(last_window_id), 0) AS last_window_id,
           coalesce(max(last_window_end_id), 0) AS last_window_end_id,
           coalesce(max(last_tariff_id), 0) AS last_tariff_id
      FROM slicewise.seals
), cut AS (
    SELECT id FROM newest
     WHERE CAST(:given AS bigint) > id + CASE CAST(:logged AS bigint) WHEN 0 THEN 32 ELSE 0 END
       AND NOT EXISTS (SELECT FROM slicewise.transfers t WHERE t.id > newest.last_transfer_id)
       AND NOT EXISTS (SELECT FROM slicewise.quota_changes c WHERE c.id > newest.last_change_id)
       AND NOT EXISTS (SELECT FROM slicewise.quota_windows w WHERE w.id > newest.last_window_id)
       AND NOT EXISTS (SELECT FROM slicewise.quota_window_ends e
                        WHERE e.id > newest.last_window_end_id)
       AND NOT EXISTS (SELECT FROM slicewise.tariffs t WHERE t.id > newest.last_tariff_id)
)
SELECT 0 AS seen, count(*) AS difference,
       array_agg(format('seals end with %s, and %s had been made: the newest were deleted, with '
                        'all that was booked then', id, CAST(:given AS bigint))) AS faults
  FROM cut
"""
"""The end of the chain is not cut off: PostgreSQL never takes a number back.

If a seal's transaction failed, its rows are still to be sealed, so a missing number counts only if
nothing is unsealed. ``:given`` is read before the look at everything else, so that
seals made in between are no fault. ``:logged`` is 0 after a crash of PostgreSQL, which then skips
up to 32 numbers."""

HAS_SEAL = "SELECT EXISTS (SELECT FROM slicewise.seals WHERE encode(hash, 'hex') = :seal)"

_BUDGET_ENTRIES = """
WITH differences AS (
    SELECT b.*, abs(b.amount - coalesce(sum(
               CASE WHEN (d.kind, c.kind) IN (('granted', 'available'), ('available', 'granted'))
                     AND (t.kind = 'grant') = (d.kind = 'granted')
                     AND (d.cluster, d.tenant, d.meter) = (b.cluster, b.tenant, b.meter)
                     AND (c.cluster, c.tenant, c.meter) = (b.cluster, b.tenant, b.meter)
                    THEN CASE t.kind WHEN 'grant' THEN t.amount
                                     ELSE -t.amount END
               END), 0)) AS difference
      FROM slicewise.budget_entries b
      LEFT JOIN slicewise.transfers t ON t.budget_entry_id = b.id
      LEFT JOIN slicewise.accounts d ON d.id = t.debit_account_id
      LEFT JOIN slicewise.accounts c ON c.id = t.credit_account_id
     GROUP BY b.id
)
SELECT count(*) AS seen, coalesce(sum(difference), 0) AS difference,
       (array_agg(format('budget entry %s (%s of %s): its transfer differs by %s',
                         id, kind, tenant, difference))
        FILTER (WHERE difference <> 0))[1:10] AS faults
  FROM differences
"""
"""Each budget entry has a transfer of its amount, none if it is zero."""

_SHARES = """
WITH parties AS (
    SELECT e.id, e.run_id, abs(e.amount) AS amount, r.cluster, r.meter, x.tenant, x.payer,
           CASE WHEN e.amount > 0 THEN x.kind ELSE x.taken_back END AS kind
      FROM slicewise.share_entries e
      JOIN slicewise.runs r ON r.id = e.run_id
     CROSS JOIN LATERAL (
           VALUES ('share', 'relieve', e.tenant, coalesce(e.payer, e.tenant)),
                  ('relieve', 'share', r.tenant, coalesce(r.payer, r.tenant)))
           AS x (kind, taken_back, tenant, payer)
     WHERE e.tenant <> r.tenant
), booked AS (
    SELECT t.share_entry_id, t.kind, t.amount, d.cluster, d.meter,
           CASE t.kind WHEN 'share' THEN c.tenant ELSE d.tenant END AS tenant,
           CASE t.kind WHEN 'share' THEN d.tenant ELSE c.tenant END AS payer
      FROM slicewise.transfers t
      LEFT JOIN slicewise.accounts d ON d.id = t.debit_account_id
      LEFT JOIN slicewise.accounts c ON c.id = t.credit_account_id
     WHERE t.share_entry_id IS NOT NULL
       AND (d.cluster, d.meter) = (c.cluster, c.meter)
       AND (t.kind, d.kind, c.kind) IN (('share', 'available', 'used'),
                                        ('relieve', 'used', 'available'))
), faults AS (
    SELECT coalesce(p.amount, b.amount, 1) AS difference,
           format('share %s: it is not what its transfers say',
                  coalesce(p.id, b.share_entry_id)) AS text
      FROM parties p
      FULL JOIN booked b
        ON (b.share_entry_id, b.kind, b.amount, b.cluster, b.meter, b.tenant, b.payer)
           = (p.id, p.kind, p.amount, p.cluster, p.meter, p.tenant, p.payer)
     WHERE p.id IS NULL OR b.share_entry_id IS NULL
     UNION ALL
    SELECT abs(h.amount - coalesce(sum(e.amount), 0)),
           format('hour %s of run %s: its shares are %s, it had %s', h.hour_s, h.run_id,
                  coalesce(sum(e.amount), 0), h.amount)
      FROM slicewise.shared_hours h
      LEFT JOIN slicewise.share_entries e USING (run_id, hour_s)
     GROUP BY h.run_id, h.hour_s
    HAVING h.amount <> coalesce(sum(e.amount), 0)
     UNION ALL
    SELECT -sum(e.amount),
           format('hour %s of run %s: the share of %s is below zero', hour_s, run_id, tenant)
      FROM slicewise.share_entries e
     GROUP BY run_id, hour_s, tenant, part HAVING sum(e.amount) < 0
)
SELECT (SELECT count(*) FROM slicewise.share_entries) AS seen,
       coalesce(sum(difference), 0) AS difference, (array_agg(text ORDER BY text))[1:10] AS faults
  FROM faults
"""
"""Each share of another's run has exactly its two transfers; those of an hour are together what
the run had in it."""

_SHARE_DAYS = """
WITH entered AS (
    SELECT r.cluster, e.day, e.tenant, coalesce(e.payer, e.tenant) AS payer, r.tenant AS owner,
           coalesce(r.payer, r.tenant) AS owner_payer,
           coalesce(sum(e.amount) FILTER (WHERE e.part = 'tokens'), 0) AS tokens,
           coalesce(sum(e.amount) FILTER (WHERE e.part = 'idle'), 0) AS idle
      FROM slicewise.share_entries e JOIN slicewise.runs r ON r.id = e.run_id
     GROUP BY 1, 2, 3, 4, 5, 6
), days AS (
    SELECT cluster, day, tenant, payer, split_part(service, '/', 1) AS owner, owner_payer,
           sum(token_millislice_s) AS tokens, sum(idle_millislice_s) AS idle
      FROM slicewise.share_days GROUP BY 1, 2, 3, 4, 5, 6
), differences AS (
    SELECT cluster, day, tenant, owner,
           abs(coalesce(e.tokens, 0) - coalesce(d.tokens, 0))
           + abs(coalesce(e.idle, 0) - coalesce(d.idle, 0)) AS difference
      FROM entered e FULL JOIN days d USING (cluster, day, tenant, payer, owner, owner_payer)
)
SELECT count(*) AS seen, coalesce(sum(difference), 0) AS difference,
       (array_agg(format('shares of %s in runs of %s on %s, %s: the sum of the day is off by %s',
                         tenant, owner, day, cluster, difference))
        FILTER (WHERE difference > 0))[1:10] AS faults
  FROM differences
"""
"""The sums of shares by the day, which statements read, are those of their entries."""

_POOL_DAYS = """
WITH moved AS (
    SELECT cluster, day, tenant, payer,
           abs(sum(millislice_s)) + abs(sum(usage_millislice_s)) AS difference
      FROM slicewise.pool_days GROUP BY 1, 2, 3, 4, gpu_types
)
SELECT count(*) AS seen, coalesce(sum(difference), 0) AS difference,
       (array_agg(format('pools of %s on %s, %s: what its services have of each other is off by %s',
                         tenant, cluster, day, difference))
        FILTER (WHERE difference > 0))[1:10] AS faults
  FROM moved
"""
"""What a service has more of a pool, others of its tenant have less."""

_LOANS = """
WITH replayed AS (
    SELECT DISTINCT ON (cluster, lender, borrower) cluster, lender, borrower,
           amount_millislices AS amount
      FROM slicewise.loan_changes ORDER BY cluster, lender, borrower, id DESC
), differences AS (
    SELECT cluster, lender, borrower, coalesce(r.amount, 0) AS amount,
           coalesce(l.amount_millislices, 0) AS stored
      FROM replayed r FULL JOIN slicewise.loans l USING (cluster, lender, borrower)
)
SELECT count(*) AS seen, coalesce(sum(abs(amount - stored)), 0) AS difference,
       (array_agg(format('loan of %s to %s on %s: its changes leave %s, stored are %s',
                         lender, borrower, cluster, amount, stored))
        FILTER (WHERE amount <> stored))[1:10] AS faults
  FROM differences
"""
"""Each loan is what it was last changed to, in millislices."""

_RECALLS = """
WITH found AS (
    SELECT r.*,
           (cluster, lender) NOT IN (SELECT cluster, tenant FROM slicewise.policy)
           OR (cluster, borrower) NOT IN (SELECT cluster, tenant FROM slicewise.policy)
           AS is_of_nobody,
           called_s > extract(epoch FROM now() + interval '1 hour') AS is_to_come
      FROM slicewise.recalls r
), faults AS (
    SELECT cluster, lender, borrower, 'one of them is no tenant' AS text
      FROM found WHERE is_of_nobody
     UNION ALL
    SELECT cluster, lender, borrower, format('called at %s, which is to come', called_s)
      FROM found WHERE is_to_come
)
SELECT (SELECT count(*) FROM slicewise.recalls) AS seen, count(*) AS difference,
       (array_agg(format('recall of %s from %s on %s: %s', lender, borrower, cluster, text)
                  ORDER BY cluster, lender, borrower))[1:10] AS faults
  FROM faults
"""
"""Recalls are between tenants, and not in the future; clocks of hosts may differ a little."""

_WATERMARKS = """
SELECT count(*) AS seen, count(*) FILTER (WHERE is_to_come) AS difference,
       (array_agg(format('watermark of %s: accounted for until %s, which is to come',
                         cluster, accounted_until_s) ORDER BY cluster)
        FILTER (WHERE is_to_come))[1:10] AS faults
  FROM (SELECT *, accounted_until_s > extract(epoch FROM now() + interval '1 hour')
               AS is_to_come
          FROM slicewise.watermarks) AS found
"""
"""No watermark is in the future; clocks of hosts may differ a little."""

_STATES = """
WITH states AS (
    SELECT cluster, 'watermark' AS kind FROM slicewise.watermarks
     UNION SELECT cluster, 'recalls' FROM slicewise.recalls
     UNION SELECT cluster, kind FROM slicewise.sealed_states
), differences AS (
    SELECT f.cluster, f.kind,
           s.hash IS DISTINCT FROM slicewise.state_hash(f.cluster, f.kind) AS differs
      FROM states f LEFT JOIN slicewise.sealed_states s USING (cluster, kind)
)
SELECT count(*) AS seen, count(*) FILTER (WHERE differs) AS difference,
       (array_agg(format('%s of %s: not what was sealed when it was last changed', kind, cluster)
                  ORDER BY cluster, kind) FILTER (WHERE differs))[1:10] AS faults
  FROM differences
"""
"""Recalls and watermarks are what they were when a daemon or a command changed them last."""

_COUNT = "SELECT count(*) AS seen, 0 AS difference, NULL::text[] AS faults FROM slicewise.transfers"

CHECKS = (
    _COUNT,
    _ACCOUNTS,
    _RUNS,
    _SETTLED,
    _TRANSFERS,
    _BUDGET_ENTRIES,
    _SHARES,
    _SHARE_DAYS,
    _POOL_DAYS,
    _LOANS,
    _RECALLS,
    _WATERMARKS,
    _STATES,
)


def verification(
    results: Sequence[Any], sealed: Any, others: Sequence[str], seal: str
) -> Verification:
    """Combine the row that each of ``CHECKS`` and ``SEALS`` gives, and other faults in words."""
    transfers, accounts, reservations, *_ = results
    results = (*results, sealed)
    return Verification(
        transfers.seen,
        accounts.seen,
        reservations.seen,
        sum(int(result.difference) for result in results) + len(others),
        (*(fault for result in results for fault in result.faults or ()), *others[:10]),
        int(sealed.seen),
        seal,
    )
