-- A block is found by its tokens, too: by a prompt that leaves it in its middle. No ledger is read for that, and no file.
ALTER TABLE files ADD COLUMN token_ids BLOB NOT NULL DEFAULT x'';  -- uint32, big endian: in the order of tokens; x'': not known
CREATE INDEX files_by_tokens ON files (namespace, fingerprint, parent, token_ids) WHERE token_ids != x'';
