\set job random(1, 1000000000000)
\set tenant random(0, :tenants - 1)
SELECT slicewise.book(concat('[{"cluster": "bench", "meter": "slice-seconds", "job_id": ', :job::bigint,
    ', "start_s": 1800000000, "tenant": "tenant', :tenant::int, '", "payer": "tenant', :tenant::int,
    '", "user_name": "alice", "task": "1", "gres": {"1g.10gb": 1}, "cost_millislices": 1000, ',
    '"after": 0, "transfers": [{"kind": "reserve", ',
    '"amount": 3600000, "until_s": 1800003600}]}]')::jsonb);
