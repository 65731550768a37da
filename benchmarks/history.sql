-- Inserts settled runs as the ledger would have booked them. Without the ledger's triggers this is
-- a hundred times faster.
SET session_replication_role = replica;
SET synchronous_commit = off;
INSERT INTO slicewise.accounts (cluster, tenant, meter, kind)
SELECT 'bench', 'tenant' || number, 'slice-seconds', kind
  FROM generate_series(0, 999) AS number,
       unnest(ARRAY['available', 'reserved', 'used', 'waived']) AS kind;
INSERT INTO slicewise.runs
       (cluster, meter, job_id, start_s, tenant, user_name, task, gres, cost_millislices)
SELECT 'bench', 'slice-seconds', 1000000000000 + number, 1700000000 + number, 'tenant' || number % 1000, 'alice',
       number::text, '{"1g.10gb": 1}', 1000
  FROM generate_series(1, :runs) AS number;
INSERT INTO slicewise.transfers
       (run_id, number, kind, debit_account_id, credit_account_id, amount, until_s)
SELECT r.id, s.number, s.kind, d.id, c.id, s.seconds * 1000, r.start_s + s.until_s
  FROM slicewise.runs r
 CROSS JOIN (VALUES (1, 'reserve', 'available', 'reserved', 3600, 3600),
                    (2, 'post', 'reserved', 'used', 600, 600),
                    (3, 'void', 'reserved', 'available', 3000, 600)
            ) AS s (number, kind, debit, credit, seconds, until_s)
  JOIN slicewise.accounts d ON (d.tenant, d.kind) = (r.tenant, s.debit)
  JOIN slicewise.accounts c ON (c.tenant, c.kind) = (r.tenant, s.credit)
 ORDER BY r.id, s.number;
INSERT INTO slicewise.balances
SELECT a.id, coalesce(d.amount, 0), coalesce(c.amount, 0)
  FROM slicewise.accounts a
  LEFT JOIN (SELECT debit_account_id AS id, sum(amount) AS amount
               FROM slicewise.transfers GROUP BY 1) d USING (id)
  LEFT JOIN (SELECT credit_account_id AS id, sum(amount) AS amount
               FROM slicewise.transfers GROUP BY 1) c USING (id);
VACUUM (ANALYZE, FREEZE);
CHECKPOINT;
