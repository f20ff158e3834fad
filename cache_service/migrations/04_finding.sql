-- Past states are found by their conversations, too.
CREATE INDEX turns_by_message ON turns (message_hash) WHERE messages > 0;
