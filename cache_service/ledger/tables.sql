-- The tables that both engines have, as SQLite reads them; PostgreSQL's are translated (postgres/schema.py). Texts are
-- compared bytewise; times are nanoseconds since 1970; large columns come last, so that walking a table does not read them.

-- One row: the id of these ledgers, for good.
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    ledger_id TEXT NOT NULL
) STRICT;

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
    opening_bytes INTEGER NOT NULL,            -- of the ledger's text before the first user's words; 0: not known
    template_time TEXT NOT NULL,               -- the present that its chat template saw: ISO 8601; empty: not known
    digest BLOB NOT NULL,                      -- of what a read has to find again: segments.digest
    token_ids BLOB NOT NULL,                   -- uint32, little endian
    text BLOB NOT NULL,
    offsets BLOB NOT NULL                      -- each token's end from this text's start; uint32, little endian
) STRICT;
CREATE INDEX segments_by_parent ON segments (parent_id);
CREATE INDEX segments_by_namespace ON segments (namespace, tokens, text_bytes);  -- counting reads no text

-- A version is a number and 16 random bytes: a number alone comes back with other content, where a backup is restored.
CREATE TABLE agents (
    uid TEXT PRIMARY KEY,                      -- never used twice
    namespace TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    model_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    revision BLOB NOT NULL,
    head_segment INTEGER NOT NULL REFERENCES segments (id),
    tokens INTEGER NOT NULL,
    text_bytes INTEGER NOT NULL,
    turns INTEGER NOT NULL,                    -- whole turns in the present branch
    label TEXT NOT NULL,
    messages INTEGER NOT NULL,                 -- of the conversation; 0: it isn't one
    message_hash BLOB NOT NULL,                -- last link of the conversation's hash chain
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,                  -- last commit
    used INTEGER NOT NULL,                     -- last OpenCache or commit, by the store's own clock
    pinned INTEGER NOT NULL DEFAULT 0,
    ttl INTEGER,                               -- idle nanoseconds until its KV goes; NULL: never
    delete_after INTEGER,                      -- idle nanoseconds until the agent goes; NULL: never
    context_policy INTEGER NOT NULL,           -- agentmem.v1.ContextPolicy
    forked_uid TEXT,                           -- what it was forked from; NULL again when that is deleted
    forked_version INTEGER,
    UNIQUE (namespace, agent_id, model_id)
) STRICT;
CREATE INDEX agents_by_head ON agents (head_segment);
CREATE INDEX agents_by_message ON agents (namespace, model_id, message_hash);
CREATE INDEX agents_by_use ON agents (used);
CREATE INDEX agents_by_namespace_and_use ON agents (namespace, used);
CREATE INDEX agents_pinned ON agents (namespace) WHERE pinned != 0;
CREATE INDEX agents_by_source ON agents (forked_uid) WHERE forked_uid IS NOT NULL;

-- A turn outlives the branch that it is in, so that it can be replayed: its segment may go.
CREATE TABLE turns (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    revision BLOB NOT NULL,
    segment INTEGER REFERENCES segments (id) ON DELETE SET NULL,
    namespace TEXT NOT NULL,                   -- the agent's: it is gone when the last of its rows go
    request_id TEXT NOT NULL,
    request_digest BLOB NOT NULL,
    commit_id BLOB NOT NULL,                   -- of the call that committed it; x'': the call had none
    messages INTEGER NOT NULL,
    message_hash BLOB NOT NULL,
    created INTEGER NOT NULL,
    record BLOB NOT NULL,                      -- agentmem.v1.TurnRecord
    PRIMARY KEY (uid, version)
) STRICT;
CREATE UNIQUE INDEX turns_by_request ON turns (uid, request_id) WHERE request_id != '';
CREATE INDEX turns_by_name ON turns (namespace, request_id) WHERE request_id != '';  -- a response names its agent
CREATE INDEX turns_by_segment ON turns (segment);
CREATE INDEX turns_by_message ON turns (message_hash) WHERE messages > 0;  -- past states are found by conversations, too

-- Named states of agents. A row of its own for the head keeps the segments.
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- in the order of their making
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,                  -- the version that had this state
    revision BLOB NOT NULL,
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

-- Runs of workflows. A run's record grows by rows of workflow_parts, so that an event costs what it weighs.
CREATE TABLE workflow_records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- a page of a namespace's records is a range of the index, by age
    namespace TEXT NOT NULL,
    workflow_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL,                    -- of its payload and its events
    holder TEXT,                               -- the gateway that goes on with it; NULL: it waits until asked for
    summary BLOB NOT NULL,                     -- what a list tells of the run
    UNIQUE (namespace, workflow_id)
) STRICT;
CREATE INDEX workflow_records_by_age ON workflow_records (namespace, id);
CREATE INDEX workflow_records_held ON workflow_records (holder) WHERE holder IS NOT NULL;
CREATE TABLE workflow_parts (
    record INTEGER NOT NULL REFERENCES workflow_records (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,                   -- 0: the payload; from 1 on the events, in their order
    content BLOB NOT NULL,
    PRIMARY KEY (record, number)
) STRICT;

-- Copies of files in the object store. A row is written before its upload begins, so that none is ever forgotten; it
-- goes with the last state that consists of it.
CREATE TABLE objects (
    kind INTEGER NOT NULL,                     -- as in warm.db's files, and what follows likewise
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
    generation TEXT NOT NULL,                  -- random, and a part of its key: no upload overwrites another's
    uploader TEXT NOT NULL DEFAULT '',         -- the node that uploads it, until it is present; '' on one machine
    PRIMARY KEY (kind, chain_hash)
) STRICT;

-- Objects that have to go. A row goes when its object is gone.
CREATE TABLE object_deletions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    digest BLOB NOT NULL,
    namespace TEXT NOT NULL,                   -- whose deletion waits for it, or whose turn computed it
    agent_id TEXT NOT NULL,
    model_id TEXT NOT NULL,
    generation TEXT NOT NULL,
    uploader TEXT NOT NULL DEFAULT '',         -- the node that may still be uploading it: to be deleted after that
    UNIQUE (kind, chain_hash, digest, generation)
) STRICT;
CREATE INDEX object_deletions_by_agent ON object_deletions (namespace, agent_id);

-- Objects that states of agents consist of. An object goes with the last of its rows here.
CREATE TABLE object_refs (
    uid TEXT NOT NULL REFERENCES agents (uid) ON DELETE CASCADE,
    kind INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    first_version INTEGER NOT NULL,            -- of the agent, that has it
    last_version INTEGER,                      -- NULL: the present state has it
    PRIMARY KEY (uid, kind, chain_hash, first_version)
) STRICT, WITHOUT ROWID;
CREATE INDEX object_refs_by_name ON object_refs (kind, chain_hash);

-- One row, since the first start with an object store: who this directory, or cluster, is there, and where that was.
CREATE TABLE remote_place (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    owner TEXT NOT NULL,
    location TEXT NOT NULL                     -- of the last claim that succeeded; empty: none has
) STRICT;

-- Agents whose files warm.db has to look at again: their state has become that of a source's version, or its beginning;
-- or, without a source, something was erased. A row is made by the transaction that changes the ledger, and stays until
-- warm.db has done its part: a crash in between leaves it, and the next start does that part.
CREATE TABLE kv_changes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL,
    version INTEGER NOT NULL,                  -- that has this state
    source_uid TEXT,                           -- NULL: something was erased
    source_version INTEGER NOT NULL,
    tokens INTEGER NOT NULL,                   -- of the source, that this state begins with
    namespace TEXT NOT NULL,
    agent_id TEXT,                             -- NULL, unless the agent is erased: with what its own turns computed
    model_id TEXT                              -- '': on all models
) STRICT;
