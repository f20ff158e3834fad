"""The tables of `store.db`, and how a directory of an older version becomes one of this version.

`PRAGMA user_version` counts the scripts of MIGRATIONS that were applied. A published script never changes; a change is
a new script at the end. Texts are compared bytewise (SQLite's BINARY collation), times are nanoseconds since 1970.
"""

import sqlite3
from pathlib import Path

from cache_service import checksums, first_page

_FIRST = """
-- The ledger is a tree of immutable segments, one per committed turn, as commits are in git. A segment stands after the
-- first parent_tokens tokens of its parent's chain, so it may cut its ancestors; whatever refers to a segment refers to
-- the whole ledger up to its end. Large columns come last: walking the tree then doesn't read them.
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- a child's id is above its parent's
    parent_id INTEGER REFERENCES segments (id),
    parent_tokens INTEGER NOT NULL,            -- ledger tokens before this segment
    parent_bytes INTEGER NOT NULL,             -- text bytes before this segment
    tokens INTEGER NOT NULL,
    text_bytes INTEGER NOT NULL,
    generated_tokens INTEGER NOT NULL,         -- of its tokens, at the end
    version INTEGER NOT NULL,                  -- the version that its turn made
    turns INTEGER NOT NULL,                    -- whole turns in the chain, this one included
    tokenizer_hash TEXT NOT NULL,
    token_ids BLOB NOT NULL,                   -- uint32, little endian
    text BLOB NOT NULL,
    offsets BLOB NOT NULL                      -- each token's end from this text's start; uint32, little endian
) STRICT;
CREATE INDEX segments_by_parent ON segments (parent_id);

CREATE TABLE agents (
    uid TEXT PRIMARY KEY,                      -- never used twice
    namespace TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    model_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    head_segment INTEGER NOT NULL REFERENCES segments (id),
    tokens INTEGER NOT NULL,
    text_bytes INTEGER NOT NULL,
    turns INTEGER NOT NULL,                    -- whole turns in the present branch
    published_version INTEGER NOT NULL DEFAULT 0,  -- the version that refs are of
    label TEXT NOT NULL,
    messages INTEGER NOT NULL,                 -- of the conversation; 0: it isn't one
    message_hash BLOB NOT NULL,                -- last link of the conversation's hash chain
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,                  -- last commit
    used INTEGER NOT NULL,                     -- last OpenCache or commit
    UNIQUE (namespace, agent_id, model_id)
) STRICT;
CREATE INDEX agents_by_head ON agents (head_segment);
CREATE INDEX agents_by_message ON agents (namespace, model_id, message_hash);

CREATE TABLE turns (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    segment INTEGER NOT NULL REFERENCES segments (id),
    request_id TEXT NOT NULL,
    request_digest BLOB NOT NULL,
    messages INTEGER NOT NULL,
    message_hash BLOB NOT NULL,
    created INTEGER NOT NULL,
    record BLOB NOT NULL,                      -- agentmem.v1.TurnRecord
    PRIMARY KEY (uid, version)
) STRICT;
CREATE UNIQUE INDEX turns_by_request ON turns (uid, request_id) WHERE request_id != '';
CREATE INDEX turns_by_segment ON turns (segment);

-- Published files of KV. A file without a row doesn't exist for readers.
CREATE TABLE files (
    kind INTEGER NOT NULL,                     -- agentmem.v1.FileKind
    chain_hash BLOB NOT NULL,
    namespace TEXT NOT NULL,
    agent_id TEXT NOT NULL,                    -- whose turn computed it
    model_id TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    parent BLOB NOT NULL,
    first_token INTEGER NOT NULL,
    token_count INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    digest BLOB NOT NULL,                      -- xxh3_128 of the file
    created INTEGER NOT NULL,
    used INTEGER NOT NULL,
    PRIMARY KEY (kind, chain_hash)
) STRICT;
CREATE INDEX files_by_agent ON files (namespace, agent_id, model_id);

-- What an agent's state consists of. Only garbage collection reads it; restoring looks files up by name.
CREATE TABLE refs (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    PRIMARY KEY (uid, kind, chain_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX refs_by_file ON refs (kind, chain_hash);

CREATE TABLE quarantined (
    file TEXT PRIMARY KEY,                     -- its name in quarantine/
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    namespace TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    model_id TEXT NOT NULL
) STRICT;
CREATE INDEX quarantined_by_name ON quarantined (kind, chain_hash);

CREATE TABLE workflow_records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace TEXT NOT NULL,
    workflow_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    payload BLOB NOT NULL,
    UNIQUE (namespace, workflow_id)
) STRICT;
"""

_BRANCHES = """
-- Named states of agents. A row of its own for the head keeps the segments, snapshot_refs keep the files.
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- in the order of their making
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,                  -- the version that had this state
    head_segment INTEGER NOT NULL REFERENCES segments (id),
    tokens INTEGER NOT NULL,
    text_bytes INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    message_hash BLOB NOT NULL,
    automatic INTEGER NOT NULL,                -- 1: made because tokens were dropped
    created INTEGER NOT NULL,
    UNIQUE (uid, name)
) STRICT;
CREATE INDEX snapshots_by_head ON snapshots (head_segment);

CREATE TABLE snapshot_refs (
    snapshot INTEGER NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    PRIMARY KEY (snapshot, kind, chain_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX snapshot_refs_by_file ON snapshot_refs (kind, chain_hash);

-- A turn outlives the branch that it is in, so that it can be replayed: its segment may go.
CREATE TABLE lasting_turns (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    segment INTEGER REFERENCES segments (id) ON DELETE SET NULL,
    request_id TEXT NOT NULL,
    request_digest BLOB NOT NULL,
    messages INTEGER NOT NULL,
    message_hash BLOB NOT NULL,
    created INTEGER NOT NULL,
    record BLOB NOT NULL,                      -- agentmem.v1.TurnRecord
    PRIMARY KEY (uid, version)
) STRICT;
INSERT INTO lasting_turns SELECT * FROM turns;
DROP TABLE turns;
ALTER TABLE lasting_turns RENAME TO turns;
CREATE UNIQUE INDEX turns_by_request ON turns (uid, request_id) WHERE request_id != '';
CREATE INDEX turns_by_segment ON turns (segment);
"""

_WARM_LIMITS = """
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
"""

_FINDING = """
-- Past states are found by their conversations, too.
CREATE INDEX turns_by_message ON turns (message_hash) WHERE messages > 0;
"""

_NAMESPACES = """
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
"""

_REMOTE_TIER = """
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
"""

_CHECKSUMS = """
-- xxh3_128 of each row of a ledger (see checksums.py), for SQLite has no checksums of pages. What is damaged before an
-- update stays so.
ALTER TABLE segments ADD COLUMN checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
UPDATE segments SET checksum = agentmem_checksum(id, parent_id, parent_tokens, parent_bytes, tokens, text_bytes,
    generated_tokens, version, turns, tokenizer_hash, token_ids, text, offsets);
CREATE TRIGGER segments_summed AFTER INSERT ON segments BEGIN
    UPDATE segments SET checksum = agentmem_checksum(new.id, new.parent_id, new.parent_tokens, new.parent_bytes,
        new.tokens, new.text_bytes, new.generated_tokens, new.version, new.turns, new.tokenizer_hash, new.token_ids,
        new.text, new.offsets) WHERE rowid = new.rowid;
END;
CREATE TRIGGER segments_summed_again AFTER UPDATE OF id, parent_id, parent_tokens, parent_bytes, tokens, text_bytes,
    generated_tokens, version, turns, tokenizer_hash, token_ids, text, offsets ON segments
    WHEN old.checksum IS agentmem_checksum(old.id, old.parent_id, old.parent_tokens, old.parent_bytes, old.tokens,
        old.text_bytes, old.generated_tokens, old.version, old.turns, old.tokenizer_hash, old.token_ids, old.text,
        old.offsets) BEGIN
    UPDATE segments SET checksum = agentmem_checksum(new.id, new.parent_id, new.parent_tokens, new.parent_bytes,
        new.tokens, new.text_bytes, new.generated_tokens, new.version, new.turns, new.tokenizer_hash, new.token_ids,
        new.text, new.offsets) WHERE rowid = new.rowid;
END;

ALTER TABLE agents ADD COLUMN checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
UPDATE agents SET checksum = agentmem_checksum(uid, namespace, agent_id, model_id, version, head_segment, tokens,
    text_bytes, turns);
CREATE TRIGGER agents_summed AFTER INSERT ON agents BEGIN
    UPDATE agents SET checksum = agentmem_checksum(new.uid, new.namespace, new.agent_id, new.model_id, new.version,
        new.head_segment, new.tokens, new.text_bytes, new.turns) WHERE rowid = new.rowid;
END;
CREATE TRIGGER agents_summed_again AFTER UPDATE OF uid, namespace, agent_id, model_id, version, head_segment, tokens,
    text_bytes, turns ON agents
    WHEN old.checksum IS agentmem_checksum(old.uid, old.namespace, old.agent_id, old.model_id, old.version,
        old.head_segment, old.tokens, old.text_bytes, old.turns) BEGIN
    UPDATE agents SET checksum = agentmem_checksum(new.uid, new.namespace, new.agent_id, new.model_id, new.version,
        new.head_segment, new.tokens, new.text_bytes, new.turns) WHERE rowid = new.rowid;
END;

ALTER TABLE snapshots ADD COLUMN checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
UPDATE snapshots SET checksum = agentmem_checksum(id, uid, name, version, head_segment, tokens, text_bytes, turns);
CREATE TRIGGER snapshots_summed AFTER INSERT ON snapshots BEGIN
    UPDATE snapshots SET checksum = agentmem_checksum(new.id, new.uid, new.name, new.version, new.head_segment,
        new.tokens, new.text_bytes, new.turns) WHERE rowid = new.rowid;
END;
CREATE TRIGGER snapshots_summed_again AFTER UPDATE OF id, uid, name, version, head_segment, tokens, text_bytes, turns
    ON snapshots
    WHEN old.checksum IS agentmem_checksum(old.id, old.uid, old.name, old.version, old.head_segment, old.tokens,
        old.text_bytes, old.turns) BEGIN
    UPDATE snapshots SET checksum = agentmem_checksum(new.id, new.uid, new.name, new.version, new.head_segment,
        new.tokens, new.text_bytes, new.turns) WHERE rowid = new.rowid;
END;

ALTER TABLE turns ADD COLUMN checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
UPDATE turns SET checksum = agentmem_checksum(uid, version, segment, request_id, request_digest, record);
CREATE TRIGGER turns_summed AFTER INSERT ON turns BEGIN
    UPDATE turns SET checksum = agentmem_checksum(new.uid, new.version, new.segment, new.request_id,
        new.request_digest, new.record) WHERE rowid = new.rowid;
END;
CREATE TRIGGER turns_summed_again AFTER UPDATE OF uid, version, segment, request_id, request_digest, record ON turns
    WHEN old.checksum IS agentmem_checksum(old.uid, old.version, old.segment, old.request_id, old.request_digest,
        old.record) BEGIN
    UPDATE turns SET checksum = agentmem_checksum(new.uid, new.version, new.segment, new.request_id,
        new.request_digest, new.record) WHERE rowid = new.rowid;
END;
"""

MIGRATIONS = (_FIRST, _BRANCHES, _WARM_LIMITS, _FINDING, _NAMESPACES, _REMOTE_TIER, _CHECKSUMS)


class SchemaTooNew(Exception):
    """A newer version of Agentmem wrote this directory; the message says so."""


class ForeignDatabase(Exception):
    """The database is another program's; the message says what to do."""


def refuse_newer(path: Path) -> None:
    """Raise SchemaTooNew for the database of a newer program, and ForeignDatabase for one of another.

    Nothing is written, not even beside it, and no file need be there. Raises OSError.
    """
    page = first_page.read(path)
    if page is None:
        return
    if page.user_version > len(MIGRATIONS):
        raise SchemaTooNew(_too_new(page.user_version))
    if page.user_version == 0 and page.has_tables:
        raise ForeignDatabase(f"{path} is another program's database; choose a directory of its own as --data")


def is_older(path: Path) -> bool:
    """Whether an older program wrote the database, and no store has brought it to this version yet."""
    page = first_page.read(path)
    return page is not None and page.user_version < len(MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the database to this version, in one transaction per script. Raises SchemaTooNew."""
    checksums.register(connection)
    (applied,) = connection.execute("PRAGMA user_version").fetchone()
    if applied > len(MIGRATIONS):
        raise SchemaTooNew(_too_new(applied))
    for number, script in enumerate(MIGRATIONS[applied:], start=applied + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")


def _too_new(applied: int) -> str:
    return f"its schema has version {applied}, this program knows {len(MIGRATIONS)}; use a newer agentmem"
