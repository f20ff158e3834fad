-- What an agent was forked from, by uid, so that no name is kept of one that is deleted: with it these become NULL again.
ALTER TABLE agents ADD COLUMN forked_uid TEXT;
ALTER TABLE agents ADD COLUMN forked_version INTEGER;
CREATE INDEX agents_by_source ON agents (forked_uid) WHERE forked_uid IS NOT NULL;
