CREATE FUNCTION slicewise.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

CREATE TABLE slicewise.served_revisions (
    revision text CONSTRAINT pk_served_revisions PRIMARY KEY
);
COMMENT ON TABLE slicewise.served_revisions
    IS 'Programs made for these revisions may use the database as it is.';
INSERT INTO slicewise.served_revisions VALUES ('0001');
