-- Only of PostgreSQL, after ../tables.sql. Ids are drawn from sequences without a cache: one that is drawn later is
-- higher, whoever draws it. So a child's id is above its parent's, and snapshots are in the order of their making.
INSERT INTO ledger VALUES (1, gen_random_uuid()::text);

-- The node that made an agent's present state, and so has its KV; '': none has.
ALTER TABLE agents ADD COLUMN node TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX agents_to_expire ON agents ((used + ttl)) WHERE ttl IS NOT NULL;
CREATE INDEX agents_to_delete ON agents ((used + delete_after)) WHERE delete_after IS NOT NULL;
CREATE FUNCTION note_node() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    NEW.node = coalesce(current_setting('agentmem.node', true), '');
    RETURN NEW;
END $$;
CREATE TRIGGER agents_made BEFORE INSERT OR UPDATE OF revision ON agents FOR EACH ROW EXECUTE FUNCTION note_node();

-- A reference is made only to an object that is there, and an object goes with the last of them; who drops one locks the
-- object first, so that of two who drop the last two the second sees that there is none.
CREATE FUNCTION refer_to_object() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM objects WHERE kind = NEW.kind AND chain_hash = NEW.chain_hash FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER object_refs_made BEFORE INSERT ON object_refs FOR EACH ROW EXECUTE FUNCTION refer_to_object();
CREATE FUNCTION drop_object() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM objects WHERE kind = OLD.kind AND chain_hash = OLD.chain_hash FOR UPDATE;
    DELETE FROM objects WHERE kind = OLD.kind AND chain_hash = OLD.chain_hash
        AND NOT EXISTS (SELECT 1 FROM object_refs AS r WHERE r.kind = OLD.kind AND r.chain_hash = OLD.chain_hash);
    RETURN NULL;
END $$;
CREATE TRIGGER object_refs_dropped AFTER DELETE ON object_refs FOR EACH ROW EXECUTE FUNCTION drop_object();
CREATE FUNCTION note_object_deletion() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO object_deletions (kind, chain_hash, digest, namespace, agent_id, model_id, generation, uploader)
        VALUES (OLD.kind, OLD.chain_hash, OLD.digest, OLD.namespace, OLD.agent_id, OLD.model_id, OLD.generation,
            CASE WHEN OLD.present = 1 THEN '' ELSE OLD.uploader END)
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER objects_dropped AFTER DELETE ON objects FOR EACH ROW EXECUTE FUNCTION note_object_deletion();

-- What those who have files have to follow, in the order of ids. Ids are drawn in one order and committed in another, so
-- who has read some cannot go on from the last of them; but all changes of transactions that are older than the oldest one
-- that runs can be read, and are followed up to there, by xid: the oldest but for imports, which write none and may run for
-- long (../adapter.py). Of one agent's changes the ids are in the order of its
-- versions, since its row is locked; a transaction that waited for that lock ran meanwhile, whatever its xid is.
ALTER TABLE kv_changes ADD COLUMN xid BIGINT NOT NULL DEFAULT (pg_current_xact_id()::text::bigint);
ALTER TABLE kv_changes ADD COLUMN made BIGINT NOT NULL
    DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint;  -- for a check only
CREATE INDEX kv_changes_by_xid ON kv_changes (xid);
CREATE INDEX kv_changes_of_erased ON kv_changes (namespace, agent_id) WHERE agent_id IS NOT NULL;

-- Bytes of each namespace, kept by triggers, in 64 rows each: one would be a lock that all commits of a namespace wait
-- for. A transaction writes one of them, by its own id, so that those that run at once seldom meet; one that runs for long
-- names another, above these (agentmem.shard). Their sum counts; some may be below zero, and those of a namespace that has
-- nothing any more stay.
CREATE TABLE namespaces (
    namespace TEXT COLLATE "C" NOT NULL,
    shard BIGINT NOT NULL,
    ledger_bytes BIGINT NOT NULL,
    PRIMARY KEY (namespace, shard)
);
CREATE FUNCTION charge(charged TEXT, change BIGINT) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF change != 0 THEN
        INSERT INTO namespaces AS n (namespace, shard, ledger_bytes)
            VALUES (charged, coalesce(nullif(current_setting('agentmem.shard', true), '')::bigint,
                (pg_current_xact_id()::text::numeric % 64)::bigint), change)
            ON CONFLICT (namespace, shard) DO UPDATE SET ledger_bytes = n.ledger_bytes + excluded.ledger_bytes;
    END IF;
END $$;

CREATE FUNCTION charge_segment() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP != 'INSERT' THEN
        PERFORM charge(OLD.namespace, -8 * OLD.tokens - OLD.text_bytes);
    END IF;
    IF TG_OP != 'DELETE' THEN
        PERFORM charge(NEW.namespace, 8 * NEW.tokens + NEW.text_bytes);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER segments_charged AFTER INSERT OR DELETE OR UPDATE OF tokens, text_bytes ON segments
    FOR EACH ROW EXECUTE FUNCTION charge_segment();

CREATE FUNCTION charge_turn() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM charge(OLD.namespace, -length(OLD.record));
    ELSE
        PERFORM charge(NEW.namespace, length(NEW.record));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER turns_charged AFTER INSERT OR DELETE ON turns FOR EACH ROW EXECUTE FUNCTION charge_turn();

CREATE FUNCTION charge_workflow_record() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP != 'INSERT' THEN
        PERFORM charge(OLD.namespace, -OLD.bytes - length(OLD.summary));
    END IF;
    IF TG_OP != 'DELETE' THEN
        PERFORM charge(NEW.namespace, NEW.bytes + length(NEW.summary));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER workflow_records_charged AFTER INSERT OR DELETE OR UPDATE OF bytes, summary ON workflow_records
    FOR EACH ROW EXECUTE FUNCTION charge_workflow_record();

-- The time by which agents are idle: it passes while any node runs, and takes no part in steps of the server's clock.
-- Nanoseconds; `read` is the server's clock when `time` was last moved.
CREATE TABLE clock (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    time BIGINT NOT NULL,
    read BIGINT NOT NULL
);

-- The nodes, and which agents' turns run where. Both may be lost, as they are in a crash and on a standby: who finds its
-- row missing joins again. Times are nanoseconds of the server's clock.
CREATE UNLOGGED TABLE nodes (
    node TEXT COLLATE "C" PRIMARY KEY,
    epoch BIGINT NOT NULL,                     -- of this joining; no earlier one of this name had it
    directory TEXT COLLATE "C" NOT NULL,       -- the data directory's own name, by which a node that starts again is known
    address TEXT COLLATE "C" NOT NULL,
    expires BIGINT NOT NULL,
    followed BIGINT NOT NULL,                  -- up to which its files have followed kv_changes
    report BYTEA NOT NULL                      -- agentmem.v1.Node: what it serves and runs
);
CREATE UNLOGGED TABLE claims (
    namespace TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL,
    model_id TEXT COLLATE "C" NOT NULL,
    node TEXT COLLATE "C" NOT NULL REFERENCES nodes ON DELETE CASCADE,
    PRIMARY KEY (namespace, agent_id, model_id, node)
);

-- What KV of a model depends on, and nodes would measure each a little differently: the first value of a name stays.
CREATE TABLE setups (
    name TEXT COLLATE "C" PRIMARY KEY,
    value BYTEA NOT NULL
);

-- Ledgers that were moved in (see ../offline/), by their ids: so who was interrupted knows that it was done.
CREATE TABLE imports (
    ledger_id TEXT COLLATE "C" PRIMARY KEY,
    said TEXT COLLATE "C" NOT NULL             -- what was told of it
);

-- Nodes are woken by erasures, by nodes that begin or end, and by changed keys.
CREATE FUNCTION wake_nodes() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('agentmem', TG_TABLE_SCHEMA);
    RETURN NULL;
END $$;
CREATE TRIGGER kv_changes_wake AFTER INSERT ON kv_changes FOR EACH ROW
    WHEN (NEW.agent_id IS NOT NULL) EXECUTE FUNCTION wake_nodes();
CREATE TRIGGER nodes_wake AFTER INSERT OR DELETE ON nodes FOR EACH ROW EXECUTE FUNCTION wake_nodes();

-- The keys of callers, whole as a file of keys would have them: of a secret only its hash. Nodes read them when `version`
-- is another one.
CREATE TABLE keys (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    value BYTEA NOT NULL,
    version TEXT COLLATE "C" GENERATED ALWAYS AS (encode(sha256(value), 'hex')) STORED
);
INSERT INTO keys VALUES (1, '');
CREATE TRIGGER keys_wake AFTER UPDATE ON keys FOR EACH ROW EXECUTE FUNCTION wake_nodes();
