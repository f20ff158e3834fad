-- The moment that chat templates see as the present, as of this segment: ISO 8601; empty: not known. Whole chats were
-- rendered with that of their turn so far.
ALTER TABLE segments ADD COLUMN template_time TEXT NOT NULL DEFAULT '';
UPDATE segments SET template_time = strftime('%Y-%m-%dT%H:%M:%S', agents.updated / 1000000000, 'unixepoch', 'localtime')
    FROM agents WHERE agents.head_segment = segments.id;
-- That of the head, so that a list of agents reads no segments.
ALTER TABLE agents ADD COLUMN template_time TEXT NOT NULL DEFAULT '';
UPDATE agents SET template_time = (SELECT template_time FROM segments WHERE segments.id = head_segment);
