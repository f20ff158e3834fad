-- A version is a number and 16 random bytes: a number alone comes back with other content, where a backup is restored.
-- Turns keep the commit_id of the call that committed them, so that its repetition is known for what it is.
ALTER TABLE agents ADD COLUMN revision BLOB NOT NULL DEFAULT x'';
ALTER TABLE snapshots ADD COLUMN revision BLOB NOT NULL DEFAULT x'';
ALTER TABLE turns ADD COLUMN revision BLOB NOT NULL DEFAULT x'';   -- x'': of a turn of before that is not the last one
ALTER TABLE turns ADD COLUMN commit_id BLOB NOT NULL DEFAULT x'';  -- x'': the call had none

-- Present states and snapshots get theirs now. Earlier turns get none: their rows have records, which would be copied.
UPDATE agents SET revision = randomblob(16);
UPDATE turns SET revision = a.revision FROM agents AS a WHERE a.uid = turns.uid AND a.version = turns.version;
UPDATE snapshots SET revision = randomblob(16)
    WHERE id IN (SELECT min(id) FROM snapshots GROUP BY uid, version);
UPDATE snapshots SET revision = a.revision FROM agents AS a
    WHERE a.uid = snapshots.uid AND a.version = snapshots.version;
UPDATE snapshots SET revision = (SELECT s.revision FROM snapshots AS s
        WHERE s.uid = snapshots.uid AND s.version = snapshots.version ORDER BY id LIMIT 1) WHERE revision = x'';
