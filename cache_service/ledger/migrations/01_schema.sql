-- The tables of store.db. Texts are compared bytewise; times are nanoseconds since 1970; large columns come last, so that
-- walking a table does not read them.

-- The ledger is a tree of immutable segments, one per committed turn, as commits are in git. A segment stands after the
-- first parent_tokens tokens of its parent's chain, so it may cut its ancestors; whatever refers to a segment refers to
-- the whole ledger up to its end.
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- a child's id is above its parent's
    namespace TEXT NOT NULL,                   -- of the agents that stand on it: they may be gone before it is
    parent_id INTEGER REFERENCES segments (id),
    parent_tokens INTEGER NOT NULL,            -- ledger tokens before this segment
    parent_bytes INTEGER NOT NULL,             -- text bytes before this segment
    tokens INTEGER NOT NULL,
    text_bytes INTEGER NOT NULL,
    generated_tokens INTEGER NOT NULL,         -- of its tokens, at the end; -1: its turn is not wholly there
    version INTEGER NOT NULL,                  -- the version that its turn made
    turns INTEGER NOT NULL,                    -- whole turns in the chain, this one included
    tokenizer_hash TEXT NOT NULL,
    opening_bytes INTEGER NOT NULL DEFAULT 0,  -- of the ledger's text before the first user's words; 0: not known
    template_time TEXT NOT NULL DEFAULT '',    -- the present that its chat template saw: ISO 8601; empty: not known
    checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',  -- see the triggers below
    token_ids BLOB NOT NULL,                   -- uint32, little endian
    text BLOB NOT NULL,
    offsets BLOB NOT NULL                      -- each token's end from this text's start; uint32, little endian
) STRICT;
CREATE INDEX segments_by_parent ON segments (parent_id);
CREATE INDEX segments_by_namespace ON segments (namespace, tokens, text_bytes);  -- counting reads no text

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
    used INTEGER NOT NULL,                     -- last OpenCache or commit, by the store's own clock
    pinned INTEGER NOT NULL DEFAULT 0,
    ttl INTEGER,                               -- idle nanoseconds until its KV goes; NULL: never
    delete_after INTEGER,                      -- idle nanoseconds until the agent goes; NULL: never
    context_policy INTEGER NOT NULL DEFAULT 1, -- agentmem.v1.ContextPolicy
    template_time TEXT NOT NULL DEFAULT '',    -- that of the head, so that a list of agents reads no segments
    checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',
    UNIQUE (namespace, agent_id, model_id)
) STRICT;
CREATE INDEX agents_by_head ON agents (head_segment);
CREATE INDEX agents_by_message ON agents (namespace, model_id, message_hash);
CREATE INDEX agents_by_use ON agents (used);
CREATE INDEX agents_by_namespace_and_use ON agents (namespace, used);
CREATE INDEX agents_pinned ON agents (namespace) WHERE pinned;

-- A turn outlives the branch that it is in, so that it can be replayed: its segment may go.
CREATE TABLE turns (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    segment INTEGER REFERENCES segments (id) ON DELETE SET NULL,
    namespace TEXT NOT NULL,                   -- the agent's: it is gone when the last of its rows go
    request_id TEXT NOT NULL,
    request_digest BLOB NOT NULL,
    messages INTEGER NOT NULL,
    message_hash BLOB NOT NULL,
    created INTEGER NOT NULL,
    checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',
    record BLOB NOT NULL,                      -- agentmem.v1.TurnRecord
    PRIMARY KEY (uid, version)
) STRICT;
CREATE UNIQUE INDEX turns_by_request ON turns (uid, request_id) WHERE request_id != '';
CREATE INDEX turns_by_name ON turns (namespace, request_id) WHERE request_id != '';  -- a response names its agent
CREATE INDEX turns_by_segment ON turns (segment);
CREATE INDEX turns_by_message ON turns (message_hash) WHERE messages > 0;  -- past states are found by conversations, too

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
    checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',
    UNIQUE (uid, name)
) STRICT;
CREATE INDEX snapshots_by_head ON snapshots (head_segment);

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

-- What the states of agents and snapshots consist of. Only garbage collection reads it; restoring looks files up by name.
CREATE TABLE refs (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    warm INTEGER NOT NULL DEFAULT 1,           -- 0: evicted, so it holds the object and no file
    PRIMARY KEY (uid, kind, chain_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX refs_by_file ON refs (kind, chain_hash);
CREATE TABLE snapshot_refs (
    snapshot INTEGER NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    warm INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (snapshot, kind, chain_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX snapshot_refs_by_file ON snapshot_refs (kind, chain_hash);

-- Names of files that an agent's state consisted of and that were dropped to make room, until they are there again.
CREATE TABLE evicted (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    PRIMARY KEY (uid, kind, chain_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX evicted_by_name ON evicted (kind, chain_hash);

CREATE TABLE quarantined (
    file TEXT PRIMARY KEY,                     -- its name in quarantine/
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    namespace TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    model_id TEXT NOT NULL,
    size_bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX quarantined_by_name ON quarantined (kind, chain_hash);

-- Runs of workflows. A run's record grows by rows of workflow_parts, so that an event costs what it weighs.
CREATE TABLE workflow_records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- a page of a namespace's records is a range of the index, by age
    namespace TEXT NOT NULL,
    workflow_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL,                    -- of its payload and its events
    checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',
    summary BLOB NOT NULL,                     -- what a list tells of the run
    UNIQUE (namespace, workflow_id)
) STRICT;
CREATE INDEX workflow_records_by_age ON workflow_records (namespace);
CREATE TABLE workflow_parts (
    record INTEGER NOT NULL REFERENCES workflow_records (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,                   -- 0: the payload; from 1 on the events, in their order
    checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',
    content BLOB NOT NULL,
    PRIMARY KEY (record, number)
) STRICT;

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

-- Whether a file of KV was ever published here. A database that knows of none, beside files of KV, is not theirs: the
-- one that was is lost, and the files are not deleted as orphans.
CREATE TABLE data_directory (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    has_published INTEGER NOT NULL
) STRICT;
INSERT INTO data_directory (id, has_published) VALUES (1, 0);

-- The store's own time, by which agents are idle: see clock.py. One row, written at the first start.
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    time INTEGER NOT NULL,                     -- of the store, when the other columns were read
    off INTEGER,                               -- time since an earlier boot that does not count yet; NULL: none
    boot TEXT NOT NULL,                        -- which boot of the machine; '' where it has no name
    awake INTEGER NOT NULL,                    -- nanoseconds since then
    wall INTEGER NOT NULL                      -- nanoseconds since 1970
) STRICT;

-- Bytes of all published files, kept by triggers: no path that drops or replaces a row can forget to count.
CREATE TABLE usage (
    kind INTEGER PRIMARY KEY,                  -- as in files
    bytes INTEGER NOT NULL
) STRICT;
INSERT INTO usage (kind, bytes) VALUES (1, 0), (2, 0);
CREATE TRIGGER files_added AFTER INSERT ON files BEGIN
    UPDATE usage SET bytes = bytes + new.size_bytes WHERE kind = new.kind;
END;
CREATE TRIGGER files_dropped AFTER DELETE ON files BEGIN
    UPDATE usage SET bytes = bytes - old.size_bytes WHERE kind = old.kind;
END;

-- Bytes of each namespace, likewise; a namespace without any has no row. It is charged through a view, so that creating a
-- row, changing it and dropping it are written once. (No upsert: the conflict policy of a statement is also that of the
-- triggers that it fires, and files are replaced.)
CREATE TABLE namespaces (
    namespace TEXT PRIMARY KEY,
    kv_bytes INTEGER NOT NULL,                 -- published files, and those in quarantine
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
CREATE TRIGGER files_charged AFTER INSERT ON files BEGIN
    INSERT INTO charges VALUES (new.namespace, new.size_bytes, 0);
END;
CREATE TRIGGER files_discharged AFTER DELETE ON files BEGIN
    INSERT INTO charges VALUES (old.namespace, -old.size_bytes, 0);
END;
CREATE TRIGGER quarantined_charged AFTER INSERT ON quarantined BEGIN
    INSERT INTO charges VALUES (new.namespace, new.size_bytes, 0);
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
    INSERT INTO charges VALUES (new.namespace, 0, new.bytes + length(new.summary));
END;
CREATE TRIGGER workflow_records_recharged AFTER UPDATE OF bytes, summary ON workflow_records BEGIN
    INSERT INTO charges
        VALUES (new.namespace, 0, new.bytes - old.bytes + length(new.summary) - length(old.summary));
END;
CREATE TRIGGER workflow_records_discharged AFTER DELETE ON workflow_records BEGIN
    INSERT INTO charges VALUES (old.namespace, 0, -old.bytes - length(old.summary));
END;

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

-- xxh3_128 of each row of a ledger or a run (see checksums.py), for SQLite has no checksums of pages. What is damaged
-- before an update stays so.
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
CREATE TRIGGER workflow_records_summed AFTER INSERT ON workflow_records BEGIN
    UPDATE workflow_records SET checksum = agentmem_checksum(new.id, new.namespace, new.workflow_id, new.version,
        new.events, new.bytes, new.summary) WHERE id = new.id;
END;
CREATE TRIGGER workflow_records_summed_again AFTER UPDATE OF id, namespace, workflow_id, version, events, bytes, summary
    ON workflow_records
    WHEN old.checksum IS agentmem_checksum(old.id, old.namespace, old.workflow_id, old.version, old.events, old.bytes,
        old.summary) BEGIN
    UPDATE workflow_records SET checksum = agentmem_checksum(new.id, new.namespace, new.workflow_id, new.version,
        new.events, new.bytes, new.summary) WHERE id = new.id;
END;
CREATE TRIGGER workflow_parts_summed AFTER INSERT ON workflow_parts BEGIN
    UPDATE workflow_parts SET checksum = agentmem_checksum(new.record, new.number, new.content)
        WHERE rowid = new.rowid;
END;
