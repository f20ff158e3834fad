-- Keys of callers: `agentmem keys --cluster` writes them, nodes read them. The columns are the fields of
-- gateway.edge.keys.Key: of a secret only its hash is here.
CREATE TABLE keys (
    id TEXT COLLATE "C" PRIMARY KEY CHECK (id ~ '^[0-9a-f]{12}$'),
    namespace TEXT COLLATE "C" NOT NULL CHECK (namespace != ''),
    sha256 TEXT COLLATE "C" NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    created BIGINT NOT NULL,                   -- microseconds since 1970, as is the next
    expires BIGINT,                            -- by the clock of each gateway; NULL: never
    label TEXT COLLATE "C" NOT NULL DEFAULT '',
    admin BIGINT NOT NULL DEFAULT 0 CHECK (admin IN (0, 1)),
    max_running BIGINT CHECK (max_running >= 0),
    max_per_minute BIGINT CHECK (max_per_minute >= 0)
);

-- One row, whose value is another one after each change of `keys`: nodes read the keys when it is. Who changes keys locks
-- it, so no change hides behind another. It is random, for a database that was set back may come to the same number again.
CREATE TABLE keys_version (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    version TEXT COLLATE "C" NOT NULL
);
INSERT INTO keys_version VALUES (1, gen_random_uuid()::text);

-- An operator's own session, with another search_path, finds the tables as well.
CREATE FUNCTION note_keys() RETURNS TRIGGER LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE keys_version SET version = gen_random_uuid()::text;
    PERFORM pg_notify('agentmem', TG_TABLE_SCHEMA);
    RETURN NULL;
END $$;
CREATE TRIGGER keys_noted AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON keys
    FOR EACH STATEMENT EXECUTE FUNCTION note_keys();
