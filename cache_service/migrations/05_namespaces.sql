-- Bytes of each namespace, kept by triggers, as in usage; a namespace without any has no row. It is charged through a
-- view, so that creating a row, changing it and dropping it are written once. (No upsert: the conflict policy of a
-- statement is also that of the triggers that it fires, and files are replaced.)
CREATE TABLE namespaces (
    namespace TEXT PRIMARY KEY,
    kv_bytes INTEGER NOT NULL,                 -- published files, and those in quarantine as far as sizes are known
    ledger_bytes INTEGER NOT NULL              -- segments, records of turns and of workflow runs
) STRICT, WITHOUT ROWID;
CREATE VIEW charges AS SELECT namespace, kv_bytes, ledger_bytes FROM namespaces;
CREATE TRIGGER charged INSTEAD OF INSERT ON charges BEGIN
    INSERT INTO namespaces SELECT new.namespace, 0, 0
        WHERE NOT EXISTS (SELECT 1 FROM namespaces WHERE namespace = new.namespace);
    UPDATE namespaces SET kv_bytes = kv_bytes + new.kv_bytes, ledger_bytes = ledger_bytes + new.ledger_bytes
        WHERE namespace = new.namespace;
    DELETE FROM namespaces WHERE namespace = new.namespace AND kv_bytes = 0 AND ledger_bytes = 0;
END;

-- Whose a row is has to be in it: the agent is gone when the last of its rows go.
ALTER TABLE segments ADD COLUMN namespace TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN namespace TEXT NOT NULL DEFAULT '';
ALTER TABLE quarantined ADD COLUMN size_bytes INTEGER NOT NULL DEFAULT 0;
WITH RECURSIVE owned (id, namespace) AS (
    SELECT head_segment, namespace FROM agents
    UNION SELECT s.head_segment, a.namespace FROM snapshots AS s JOIN agents AS a USING (uid)
    UNION SELECT t.segment, a.namespace FROM turns AS t JOIN agents AS a USING (uid) WHERE t.segment IS NOT NULL
    UNION SELECT s.parent_id, o.namespace FROM owned AS o JOIN segments AS s ON s.id = o.id
        WHERE s.parent_id IS NOT NULL
)
UPDATE segments SET namespace = owned.namespace FROM owned WHERE owned.id = segments.id;
UPDATE turns SET namespace = (SELECT namespace FROM agents WHERE agents.uid = turns.uid);
CREATE INDEX segments_by_namespace ON segments (namespace, tokens, text_bytes);  -- counting reads no text
CREATE TRIGGER segments_named BEFORE INSERT ON segments WHEN new.namespace = '' BEGIN
    SELECT RAISE(ABORT, 'a segment without a namespace');
END;
CREATE TRIGGER turns_named BEFORE INSERT ON turns WHEN new.namespace = '' BEGIN
    SELECT RAISE(ABORT, 'a turn without a namespace');
END;

CREATE TRIGGER files_charged AFTER INSERT ON files BEGIN
    INSERT INTO charges VALUES (new.namespace, new.size_bytes, 0);
END;
CREATE TRIGGER files_discharged AFTER DELETE ON files BEGIN
    INSERT INTO charges VALUES (old.namespace, -old.size_bytes, 0);
END;
CREATE TRIGGER quarantined_charged AFTER INSERT ON quarantined BEGIN
    INSERT INTO charges VALUES (new.namespace, new.size_bytes, 0);
END;
CREATE TRIGGER quarantined_recharged AFTER UPDATE OF size_bytes ON quarantined BEGIN
    INSERT INTO charges VALUES (new.namespace, new.size_bytes - old.size_bytes, 0);
END;
CREATE TRIGGER quarantined_discharged AFTER DELETE ON quarantined BEGIN
    INSERT INTO charges VALUES (old.namespace, -old.size_bytes, 0);
END;
CREATE TRIGGER segments_charged AFTER INSERT ON segments BEGIN
    INSERT INTO charges VALUES (new.namespace, 0, 8 * new.tokens + new.text_bytes);
END;
CREATE TRIGGER segments_recharged AFTER UPDATE OF tokens, text_bytes ON segments BEGIN
    INSERT INTO charges
        VALUES (new.namespace, 0, 8 * (new.tokens - old.tokens) + new.text_bytes - old.text_bytes);
END;
CREATE TRIGGER segments_discharged AFTER DELETE ON segments BEGIN
    INSERT INTO charges VALUES (old.namespace, 0, -8 * old.tokens - old.text_bytes);
END;
CREATE TRIGGER turns_charged AFTER INSERT ON turns BEGIN
    INSERT INTO charges VALUES (new.namespace, 0, length(new.record));
END;
CREATE TRIGGER turns_discharged AFTER DELETE ON turns BEGIN
    INSERT INTO charges VALUES (old.namespace, 0, -length(old.record));
END;
CREATE TRIGGER workflow_records_charged AFTER INSERT ON workflow_records BEGIN
    INSERT INTO charges VALUES (new.namespace, 0, length(new.payload));
END;
CREATE TRIGGER workflow_records_recharged AFTER UPDATE OF payload ON workflow_records BEGIN
    INSERT INTO charges VALUES (new.namespace, 0, length(new.payload) - length(old.payload));
END;
CREATE TRIGGER workflow_records_discharged AFTER DELETE ON workflow_records BEGIN
    INSERT INTO charges VALUES (old.namespace, 0, -length(old.payload));
END;

INSERT INTO namespaces (namespace, kv_bytes, ledger_bytes) SELECT namespace, sum(kv), sum(ledger) FROM (
    SELECT namespace, size_bytes AS kv, 0 AS ledger FROM files
    UNION ALL SELECT namespace, 0, 8 * tokens + text_bytes FROM segments
    UNION ALL SELECT namespace, 0, length(record) FROM turns
    UNION ALL SELECT namespace, 0, length(payload) FROM workflow_records
) WHERE namespace != '' GROUP BY namespace HAVING sum(kv) + sum(ledger) > 0;

CREATE INDEX agents_by_namespace_and_use ON agents (namespace, used);
CREATE INDEX agents_pinned ON agents (namespace) WHERE pinned;
