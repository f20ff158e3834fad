-- Bytes of all published files, kept by triggers: no path that drops or replaces a row can forget to count.
CREATE TABLE usage (
    kind INTEGER PRIMARY KEY,                  -- as in files
    bytes INTEGER NOT NULL
) STRICT;
INSERT INTO usage (kind, bytes) SELECT k.kind, coalesce((SELECT sum(size_bytes) FROM files WHERE kind = k.kind), 0)
    FROM (SELECT 1 AS kind UNION SELECT 2) AS k;
CREATE TRIGGER files_added AFTER INSERT ON files BEGIN
    UPDATE usage SET bytes = bytes + new.size_bytes WHERE kind = new.kind;
END;
CREATE TRIGGER files_dropped AFTER DELETE ON files BEGIN
    UPDATE usage SET bytes = bytes - old.size_bytes WHERE kind = old.kind;
END;

-- Names of files that an agent's state consisted of and that were dropped to make room, until they are there again.
CREATE TABLE evicted (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    PRIMARY KEY (uid, kind, chain_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX evicted_by_name ON evicted (kind, chain_hash);

ALTER TABLE agents ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN ttl INTEGER;             -- idle nanoseconds until its KV goes; NULL: never
ALTER TABLE agents ADD COLUMN delete_after INTEGER;    -- idle nanoseconds until the agent goes; NULL: never
CREATE INDEX agents_by_use ON agents (used);
