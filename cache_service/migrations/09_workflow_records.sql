-- What a list of runs tells stands before what it does not, so that it reads no payload; and a damaged record is found,
-- as a damaged ledger is. A page of a namespace's records is a range of the index, which ends in the row's id.
CREATE TABLE records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    workflow_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',
    summary BLOB NOT NULL DEFAULT x'',
    payload BLOB NOT NULL,
    UNIQUE (namespace, workflow_id)
) STRICT;
INSERT INTO records (id, namespace, workflow_id, version, payload)
    SELECT id, namespace, workflow_id, version, payload FROM workflow_records;
UPDATE records SET checksum = agentmem_checksum(id, namespace, workflow_id, version, summary, payload);
DROP TABLE workflow_records;
ALTER TABLE records RENAME TO workflow_records;
CREATE INDEX workflow_records_by_age ON workflow_records (namespace);

CREATE TRIGGER workflow_records_charged AFTER INSERT ON workflow_records BEGIN
    INSERT INTO charges VALUES (new.namespace, 0, length(new.summary) + length(new.payload));
END;
CREATE TRIGGER workflow_records_recharged AFTER UPDATE OF summary, payload ON workflow_records BEGIN
    INSERT INTO charges VALUES (new.namespace, 0, length(new.summary) + length(new.payload) - length(old.summary)
        - length(old.payload));
END;
CREATE TRIGGER workflow_records_discharged AFTER DELETE ON workflow_records BEGIN
    INSERT INTO charges VALUES (old.namespace, 0, -length(old.summary) - length(old.payload));
END;
CREATE TRIGGER workflow_records_summed AFTER INSERT ON workflow_records BEGIN
    UPDATE workflow_records SET checksum = agentmem_checksum(new.id, new.namespace, new.workflow_id, new.version,
        new.summary, new.payload) WHERE id = new.id;
END;
CREATE TRIGGER workflow_records_summed_again AFTER UPDATE OF id, namespace, workflow_id, version, summary, payload
    ON workflow_records
    WHEN old.checksum IS agentmem_checksum(old.id, old.namespace, old.workflow_id, old.version, old.summary,
        old.payload) BEGIN
    UPDATE workflow_records SET checksum = agentmem_checksum(new.id, new.namespace, new.workflow_id, new.version,
        new.summary, new.payload) WHERE id = new.id;
END;
