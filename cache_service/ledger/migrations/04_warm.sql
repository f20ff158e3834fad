-- What is true of one machine's files is in warm.db from now on (see ../../files/warm.sql); before this script runs, its
-- rows were copied there (see files/warm_database.py). What stays here is what agents are, wherever their files are.
DROP TRIGGER refs_held_objects;
DROP TRIGGER snapshot_refs_held_objects;
DROP TABLE files;
DROP TABLE quarantined;
DROP TABLE evicted;
DROP TABLE uploads;
DROP TABLE usage;
ALTER TABLE agents DROP COLUMN published_version;

-- Objects that the states of agents and snapshots consist of. An object goes with the last of its rows here.
CREATE TABLE object_refs (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    PRIMARY KEY (uid, kind, chain_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX object_refs_by_name ON object_refs (kind, chain_hash);
CREATE TABLE snapshot_object_refs (
    snapshot INTEGER NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    PRIMARY KEY (snapshot, kind, chain_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX snapshot_object_refs_by_name ON snapshot_object_refs (kind, chain_hash);
INSERT INTO object_refs SELECT r.uid, r.kind, r.chain_hash FROM refs AS r JOIN objects AS o USING (kind, chain_hash);
INSERT INTO snapshot_object_refs
    SELECT r.snapshot, r.kind, r.chain_hash FROM snapshot_refs AS r JOIN objects AS o USING (kind, chain_hash);
DROP TABLE refs;
DROP TABLE snapshot_refs;
DELETE FROM objects WHERE NOT EXISTS
    (SELECT 1 FROM object_refs AS r WHERE r.kind = objects.kind AND r.chain_hash = objects.chain_hash) AND NOT EXISTS
    (SELECT 1 FROM snapshot_object_refs AS r WHERE r.kind = objects.kind AND r.chain_hash = objects.chain_hash);
CREATE TRIGGER object_refs_dropped AFTER DELETE ON object_refs BEGIN
    DELETE FROM objects WHERE kind = old.kind AND chain_hash = old.chain_hash
        AND NOT EXISTS (SELECT 1 FROM object_refs AS r WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash)
        AND NOT EXISTS (SELECT 1 FROM snapshot_object_refs AS r
            WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash);
END;
CREATE TRIGGER snapshot_object_refs_dropped AFTER DELETE ON snapshot_object_refs BEGIN
    DELETE FROM objects WHERE kind = old.kind AND chain_hash = old.chain_hash
        AND NOT EXISTS (SELECT 1 FROM object_refs AS r WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash)
        AND NOT EXISTS (SELECT 1 FROM snapshot_object_refs AS r
            WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash);
END;

-- As on PostgreSQL, where several machines upload (see ../postgres/migrations/); here there is one, and both are empty.
ALTER TABLE objects ADD COLUMN generation TEXT NOT NULL DEFAULT '';
ALTER TABLE objects ADD COLUMN uploader TEXT NOT NULL DEFAULT '';
ALTER TABLE object_deletions ADD COLUMN generation TEXT NOT NULL DEFAULT '';
ALTER TABLE object_deletions ADD COLUMN uploader TEXT NOT NULL DEFAULT '';

-- What warm.db has to follow: a state (an agent's own, snapshot 0, or a snapshot's) consists from now on of those files of
-- another one that end within so many tokens; without a source, of none. A row is made by the transaction that changes
-- the ledger, and stays until warm.db has done its part: a crash in between leaves it, and the next start does that part.
CREATE TABLE kv_changes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL,
    snapshot INTEGER,                          -- NULL: the agent's own state and those of all its snapshots
    source_uid TEXT,                           -- NULL: no source
    source_snapshot INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 0,        -- that the agent's own state has then
    namespace TEXT NOT NULL,
    agent_id TEXT,                             -- NULL, unless the agent is erased: with what its own turns computed
    model_id TEXT                              -- '': on all models
) STRICT;

-- Of namespaces only bytes of ledgers are counted here.
DROP VIEW charges;
DROP TRIGGER segments_charged;
DROP TRIGGER segments_recharged;
DROP TRIGGER segments_discharged;
DROP TRIGGER turns_charged;
DROP TRIGGER turns_discharged;
DROP TRIGGER workflow_records_charged;
DROP TRIGGER workflow_records_recharged;
DROP TRIGGER workflow_records_discharged;
DELETE FROM namespaces WHERE ledger_bytes = 0;
ALTER TABLE namespaces DROP COLUMN kv_bytes;
CREATE VIEW charges AS SELECT namespace, ledger_bytes FROM namespaces;
CREATE TRIGGER charged INSTEAD OF INSERT ON charges BEGIN
    INSERT INTO namespaces SELECT new.namespace, 0
        WHERE NOT EXISTS (SELECT 1 FROM namespaces WHERE namespace = new.namespace);
    UPDATE namespaces SET ledger_bytes = ledger_bytes + new.ledger_bytes WHERE namespace = new.namespace;
    DELETE FROM namespaces WHERE namespace = new.namespace AND ledger_bytes = 0;
END;
CREATE TRIGGER segments_charged AFTER INSERT ON segments BEGIN
    INSERT INTO charges VALUES (new.namespace, 8 * new.tokens + new.text_bytes);
END;
CREATE TRIGGER segments_recharged AFTER UPDATE OF tokens, text_bytes ON segments BEGIN
    INSERT INTO charges
        VALUES (new.namespace, 8 * (new.tokens - old.tokens) + new.text_bytes - old.text_bytes);
END;
CREATE TRIGGER segments_discharged AFTER DELETE ON segments BEGIN
    INSERT INTO charges VALUES (old.namespace, -8 * old.tokens - old.text_bytes);
END;
CREATE TRIGGER turns_charged AFTER INSERT ON turns BEGIN
    INSERT INTO charges VALUES (new.namespace, length(new.record));
END;
CREATE TRIGGER turns_discharged AFTER DELETE ON turns BEGIN
    INSERT INTO charges VALUES (old.namespace, -length(old.record));
END;
CREATE TRIGGER workflow_records_charged AFTER INSERT ON workflow_records BEGIN
    INSERT INTO charges VALUES (new.namespace, new.bytes + length(new.summary));
END;
CREATE TRIGGER workflow_records_recharged AFTER UPDATE OF bytes, summary ON workflow_records BEGIN
    INSERT INTO charges
        VALUES (new.namespace, new.bytes - old.bytes + length(new.summary) - length(old.summary));
END;
CREATE TRIGGER workflow_records_discharged AFTER DELETE ON workflow_records BEGIN
    INSERT INTO charges VALUES (old.namespace, -old.bytes - length(old.summary));
END;
