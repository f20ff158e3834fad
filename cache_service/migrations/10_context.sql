-- What an agent does when its memory outgrows the model's context: a number of the contract's ContextPolicy.
ALTER TABLE agents ADD COLUMN context_policy INTEGER NOT NULL DEFAULT 1;
-- Bytes of the ledger's text before the first user's words, as of this segment; 0: not known.
ALTER TABLE segments ADD COLUMN opening_bytes INTEGER NOT NULL DEFAULT 0;
