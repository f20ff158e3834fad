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
