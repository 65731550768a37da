CREATE TABLE slicewise.observed_submissions (
    cluster text NOT NULL,
    day_s bigint NOT NULL,
    mode text NOT NULL,
    tenant text NOT NULL,
    user_name text NOT NULL,
    code text NOT NULL,
    gpu_type text NOT NULL,
    is_borrowed boolean NOT NULL,
    submissions bigint NOT NULL,
    moved_qos bigint NOT NULL,
    moved_type bigint NOT NULL,
    asked_millislices bigint NOT NULL,
    CONSTRAINT pk_observed_submissions
        PRIMARY KEY (cluster, day_s, mode, tenant, user_name, code, gpu_type, is_borrowed)
);
COMMENT ON TABLE slicewise.observed_submissions
    IS 'What admission decided, summed by day (UTC). code is empty for what it would admit.';

CREATE TABLE slicewise.observed_loans (
    cluster text NOT NULL,
    day_s bigint NOT NULL,
    lender text NOT NULL,
    borrower text NOT NULL,
    lent_millislice_s bigint NOT NULL,
    recalls bigint NOT NULL,
    recalled_millislices bigint NOT NULL,
    CONSTRAINT pk_observed_loans PRIMARY KEY (cluster, day_s, lender, borrower)
);
COMMENT ON TABLE slicewise.observed_loans
    IS 'Idle quota that would have been lent and recalled, summed by day (UTC).';

CREATE TABLE slicewise.observed_quota (
    cluster text NOT NULL,
    day_s bigint NOT NULL,
    tenant text NOT NULL,
    seconds bigint NOT NULL,
    guaranteed_millislice_s bigint NOT NULL,
    idle_millislice_s bigint NOT NULL,
    idle_wanted_millislice_s bigint NOT NULL,
    wanted_millislice_s bigint NOT NULL,
    CONSTRAINT pk_observed_quota PRIMARY KEY (cluster, day_s, tenant)
);
COMMENT ON TABLE slicewise.observed_quota
    IS 'Guaranteed quota, its idle part, and what was wanted beyond it, summed by day (UTC).';

CREATE TABLE slicewise.history_subjects (
    id integer GENERATED ALWAYS AS IDENTITY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    service text NOT NULL,
    CONSTRAINT pk_history_subjects PRIMARY KEY (id),
    CONSTRAINT uq_history_subjects_cluster UNIQUE (cluster, tenant, service)
);
COMMENT ON TABLE slicewise.history_subjects
    IS 'What history is of: the cluster itself has no tenant, a tenant itself no service.';

-- The columns of history stand so that none needs bytes to align it: there are many rows.
CREATE TABLE slicewise.history_cluster (
    subject_id integer NOT NULL,
    step_s smallint NOT NULL,
    samples smallint NOT NULL,
    at_s bigint NOT NULL,
    used integer NOT NULL,
    lent integer NOT NULL,
    idle integer NOT NULL,
    draining integer NOT NULL,
    down integer NOT NULL,
    waiting integer NOT NULL,
    late integer NOT NULL,
    max_used integer NOT NULL,
    max_lent integer NOT NULL,
    max_waiting integer NOT NULL,
    max_late integer NOT NULL,
    CONSTRAINT pk_history_cluster PRIMARY KEY (subject_id, step_s, at_s),
    CONSTRAINT fk_history_cluster_subject_id
        FOREIGN KEY (subject_id) REFERENCES slicewise.history_subjects (id)
);
COMMENT ON TABLE slicewise.history_cluster
    IS 'Slices by state, in millislices: means, and maxima of a step.';

CREATE TABLE slicewise.history_tenants (
    subject_id integer NOT NULL,
    step_s smallint NOT NULL,
    samples smallint NOT NULL,
    at_s bigint NOT NULL,
    nominal integer NOT NULL,
    in_use integer NOT NULL,
    borrowed integer NOT NULL,
    lent integer NOT NULL,
    waiting integer NOT NULL,
    late integer NOT NULL,
    max_in_use integer NOT NULL,
    max_waiting integer NOT NULL,
    budget_left bigint,
    CONSTRAINT pk_history_tenants PRIMARY KEY (subject_id, step_s, at_s),
    CONSTRAINT fk_history_tenants_subject_id
        FOREIGN KEY (subject_id) REFERENCES slicewise.history_subjects (id)
);
COMMENT ON TABLE slicewise.history_tenants
    IS 'Tenants with those below them, in millislices: means, and maxima of a step.';

CREATE TABLE slicewise.history_services (
    subject_id integer NOT NULL,
    step_s smallint NOT NULL,
    samples smallint NOT NULL,
    at_s bigint NOT NULL,
    ready real,
    desired real,
    backlog real,
    requests real,
    p95 real,
    max_ready real,
    max_backlog real,
    max_p95 real,
    CONSTRAINT pk_history_services PRIMARY KEY (subject_id, step_s, at_s),
    CONSTRAINT fk_history_services_subject_id
        FOREIGN KEY (subject_id) REFERENCES slicewise.history_subjects (id)
);
COMMENT ON TABLE slicewise.history_services
    IS 'Services: replicas, requests that wait and that come each second, and milliseconds.';
