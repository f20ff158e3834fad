-- The tables of warm.db: what is true of the files in this directory only. It is a cache's index, and may be lost: then
-- it is made again from ledgers and files. Conventions are those of ../ledger/tables.sql.

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
    token_ids BLOB NOT NULL DEFAULT x'',       -- uint32, big endian: in the order of tokens; x'': not known
    PRIMARY KEY (kind, chain_hash)
) STRICT;
CREATE INDEX files_by_agent ON files (namespace, agent_id, model_id);
CREATE INDEX files_by_size ON files (namespace, size_bytes, kind);  -- bytes are summed, of one namespace or of all
-- A block is found by its tokens, too: by a prompt that leaves it in its middle. No ledger is read for that, and no file.
CREATE INDEX files_by_tokens ON files (namespace, fingerprint, parent, token_ids) WHERE token_ids != x'';

-- Which files on this disk agents consist of, by ranges of their versions; a snapshot is a version. A file goes with the
-- last row of its name; one that never had any stays until room is needed, and is found by its name.
CREATE TABLE held (
    uid TEXT NOT NULL,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    first_version INTEGER NOT NULL,
    last_version INTEGER,                      -- NULL: the present state has it
    PRIMARY KEY (uid, kind, chain_hash, first_version)
) STRICT, WITHOUT ROWID;
CREATE INDEX held_by_file ON held (kind, chain_hash);

-- One row: the directory's own name, and the id of the ledgers that all this is of, '' for none yet.
CREATE TABLE directory (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    name TEXT NOT NULL,
    ledgers TEXT NOT NULL DEFAULT ''
) STRICT;
INSERT INTO directory (id, name) VALUES (1, lower(hex(randomblob(16))));

-- The versions that agents' own rows in held are of. Without a row: of none yet.
CREATE TABLE published (
    uid TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    evicted INTEGER NOT NULL DEFAULT 0         -- 1: its files were dropped to make room, and none was published since
) STRICT, WITHOUT ROWID;

-- One row: the last of the ledger's kv_changes that was made here.
CREATE TABLE followed (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    change INTEGER NOT NULL
) STRICT;
INSERT INTO followed (id, change) VALUES (1, 0);
