-- Only of SQLite, after tables.sql.
INSERT INTO ledger (id, ledger_id) VALUES (1, lower(hex(randomblob(16))));

-- The store's own time, by which agents are idle: see clock.py. One row, written at the first start.
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    time INTEGER NOT NULL,                     -- of the store, when the other columns were read
    off INTEGER,                               -- time since an earlier boot that does not count yet; NULL: none
    boot TEXT NOT NULL,                        -- which boot of the machine; '' where it has no name
    awake INTEGER NOT NULL,                    -- nanoseconds since then
    wall INTEGER NOT NULL                      -- nanoseconds since 1970
) STRICT;

-- Bytes of each namespace: segments, records of turns and of runs. By triggers: no path can forget to count. A namespace
-- without any has no row. It is charged through a view, so that creating a row, changing it and dropping it are written
-- once.
CREATE TABLE namespaces (
    namespace TEXT PRIMARY KEY,
    ledger_bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
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

-- By triggers, so that no path that drops something can forget the objects.
CREATE TRIGGER object_refs_dropped AFTER DELETE ON object_refs BEGIN
    DELETE FROM objects WHERE kind = old.kind AND chain_hash = old.chain_hash
        AND NOT EXISTS (SELECT 1 FROM object_refs AS r WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash);
END;
CREATE TRIGGER objects_dropped AFTER DELETE ON objects BEGIN
    INSERT OR IGNORE INTO object_deletions (kind, chain_hash, digest, namespace, agent_id, model_id, generation)
        VALUES (old.kind, old.chain_hash, old.digest, old.namespace, old.agent_id, old.model_id, old.generation);
END;
