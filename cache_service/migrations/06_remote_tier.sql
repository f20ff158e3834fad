-- Copies of files in the object store. A row is written before its upload begins, so that none is ever forgotten; it
-- lives as long as the file is on the disk, or some agent's or snapshot's state consists of it.
CREATE TABLE objects (
    kind INTEGER NOT NULL,                     -- as in files, and what follows likewise
    chain_hash BLOB NOT NULL,
    namespace TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    model_id TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    parent BLOB NOT NULL,
    first_token INTEGER NOT NULL,
    token_count INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    digest BLOB NOT NULL,                      -- of the object, and a part of its key
    present INTEGER NOT NULL,                  -- 1: it is there; 0: its upload has begun, and it may be there
    PRIMARY KEY (kind, chain_hash)
) STRICT;

-- Files that have no copy yet, in the order in which they are uploaded.
CREATE TABLE uploads (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    last INTEGER NOT NULL,                     -- 1: a tail, which the next turn replaces; after all others
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    UNIQUE (kind, chain_hash)
) STRICT;
CREATE INDEX uploads_in_order ON uploads (last, id);

-- Objects that have to go. A row goes when its object is gone.
CREATE TABLE object_deletions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    digest BLOB NOT NULL,
    namespace TEXT NOT NULL,                   -- whose deletion waits for it, or whose turn computed it
    agent_id TEXT NOT NULL,
    model_id TEXT NOT NULL,
    UNIQUE (kind, chain_hash, digest)
) STRICT;
CREATE INDEX object_deletions_by_agent ON object_deletions (namespace, agent_id);

-- One row, since the first start with an object store: who this directory is there, and where that was.
CREATE TABLE remote_place (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    owner TEXT NOT NULL,
    location TEXT NOT NULL,                    -- of the last claim that succeeded; empty: none has
    session TEXT NOT NULL,                     -- that it left in the manifest
    next_session TEXT NOT NULL,                -- of the last claim that was begun
    uploading INTEGER NOT NULL                 -- 1: new files are to be uploaded
) STRICT;

-- 0: evicted, so it holds the object and no file.
ALTER TABLE refs ADD COLUMN warm INTEGER NOT NULL DEFAULT 1;
ALTER TABLE snapshot_refs ADD COLUMN warm INTEGER NOT NULL DEFAULT 1;

-- By triggers, so that no path that publishes or drops something can forget the objects.
CREATE TRIGGER files_to_upload AFTER INSERT ON files
    WHEN EXISTS (SELECT 1 FROM remote_place WHERE uploading) AND NOT EXISTS
        (SELECT 1 FROM objects AS o WHERE o.kind = new.kind AND o.chain_hash = new.chain_hash AND o.present)
BEGIN
    INSERT OR IGNORE INTO uploads (last, kind, chain_hash)
        VALUES (new.kind = 1 AND new.token_count < 256, new.kind, new.chain_hash);
END;
CREATE TRIGGER files_had_objects AFTER DELETE ON files BEGIN
    DELETE FROM uploads WHERE kind = old.kind AND chain_hash = old.chain_hash;
    DELETE FROM objects WHERE kind = old.kind AND chain_hash = old.chain_hash
        AND NOT EXISTS (SELECT 1 FROM refs AS r WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash)
        AND NOT EXISTS (SELECT 1 FROM snapshot_refs AS r WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash);
END;
CREATE TRIGGER refs_held_objects AFTER DELETE ON refs BEGIN
    DELETE FROM objects WHERE kind = old.kind AND chain_hash = old.chain_hash
        AND NOT EXISTS (SELECT 1 FROM files AS f WHERE f.kind = old.kind AND f.chain_hash = old.chain_hash)
        AND NOT EXISTS (SELECT 1 FROM refs AS r WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash)
        AND NOT EXISTS (SELECT 1 FROM snapshot_refs AS r WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash);
END;
CREATE TRIGGER snapshot_refs_held_objects AFTER DELETE ON snapshot_refs BEGIN
    DELETE FROM objects WHERE kind = old.kind AND chain_hash = old.chain_hash
        AND NOT EXISTS (SELECT 1 FROM files AS f WHERE f.kind = old.kind AND f.chain_hash = old.chain_hash)
        AND NOT EXISTS (SELECT 1 FROM refs AS r WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash)
        AND NOT EXISTS (SELECT 1 FROM snapshot_refs AS r WHERE r.kind = old.kind AND r.chain_hash = old.chain_hash);
END;
CREATE TRIGGER objects_dropped AFTER DELETE ON objects BEGIN
    INSERT OR IGNORE INTO object_deletions (kind, chain_hash, digest, namespace, agent_id, model_id)
        VALUES (old.kind, old.chain_hash, old.digest, old.namespace, old.agent_id, old.model_id);
END;
