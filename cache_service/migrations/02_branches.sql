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
