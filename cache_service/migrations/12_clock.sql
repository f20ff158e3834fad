-- The store's own time, by which agents are idle: see clock.py. One row, written at the first start.
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    time INTEGER NOT NULL,                     -- of the store, when the other columns were read
    off INTEGER,                               -- time since an earlier boot that does not count yet; NULL: none
    boot TEXT NOT NULL,                        -- which boot of the machine; '' where it has no name
    awake INTEGER NOT NULL,                    -- nanoseconds since then
    wall INTEGER NOT NULL                      -- nanoseconds since 1970
) STRICT;
