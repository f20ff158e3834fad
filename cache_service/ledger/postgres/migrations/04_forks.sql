-- See ../../migrations/05_forks.sql. Older nodes make agents without, and leave a uid where they delete the source.
ALTER TABLE agents ADD COLUMN forked_uid TEXT COLLATE "C";
ALTER TABLE agents ADD COLUMN forked_version BIGINT;
CREATE INDEX agents_by_source ON agents (forked_uid) WHERE forked_uid IS NOT NULL;
