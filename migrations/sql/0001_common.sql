CREATE FUNCTION slicewise.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

-- Advisory locks are open to every role of a database; a row is locked by who may change it. A session
-- that has a lock for longer than a transaction is named in its row: an open transaction would keep
-- all dead rows of the database.
CREATE TABLE slicewise.locks (
    cluster text,
    name text,
    pid integer,
    role text,
    application text,
    session_start timestamptz,
    taken_at timestamptz,
    CONSTRAINT pk_locks PRIMARY KEY (cluster, name)
);
COMMENT ON TABLE slicewise.locks
    IS 'Which session has each lock, while that session lives. Overwritten.';

CREATE TABLE slicewise.served_revisions (
    revision text CONSTRAINT pk_served_revisions PRIMARY KEY
);
COMMENT ON TABLE slicewise.served_revisions
    IS 'Programs made for these revisions may use the database as it is.';
INSERT INTO slicewise.served_revisions VALUES ('0001');
