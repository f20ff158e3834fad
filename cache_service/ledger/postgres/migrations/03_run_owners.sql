-- The nodes whose gateways go on with workflow runs, as their records say, too: by these rows runs are found whose owner
-- is gone. A run that nobody has, and that is to wait until it is asked for, has none.
CREATE TABLE run_owners (
    record BIGINT PRIMARY KEY REFERENCES workflow_records (id) ON DELETE CASCADE,
    node TEXT COLLATE "C" NOT NULL,
    epoch BIGINT NOT NULL
);
