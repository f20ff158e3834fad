-- Whether a file of KV was ever published here. A database that knows of none, beside files of KV, is not theirs: the
-- one that was is lost, and the files are not deleted as orphans.
CREATE TABLE data_directory (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    has_published INTEGER NOT NULL
) STRICT;
INSERT INTO data_directory (id, has_published) SELECT 1, EXISTS (SELECT 1 FROM files)
    OR EXISTS (SELECT 1 FROM quarantined) OR EXISTS (SELECT 1 FROM segments) OR EXISTS (SELECT 1 FROM workflow_records);
