-- xxh3_128 of each row of a ledger (see checksums.py), for SQLite has no checksums of pages. What is damaged before an
-- update stays so.
ALTER TABLE segments ADD COLUMN checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
UPDATE segments SET checksum = agentmem_checksum(id, parent_id, parent_tokens, parent_bytes, tokens, text_bytes,
    generated_tokens, version, turns, tokenizer_hash, token_ids, text, offsets);
CREATE TRIGGER segments_summed AFTER INSERT ON segments BEGIN
    UPDATE segments SET checksum = agentmem_checksum(new.id, new.parent_id, new.parent_tokens, new.parent_bytes,
        new.tokens, new.text_bytes, new.generated_tokens, new.version, new.turns, new.tokenizer_hash, new.token_ids,
        new.text, new.offsets) WHERE rowid = new.rowid;
END;
CREATE TRIGGER segments_summed_again AFTER UPDATE OF id, parent_id, parent_tokens, parent_bytes, tokens, text_bytes,
    generated_tokens, version, turns, tokenizer_hash, token_ids, text, offsets ON segments
    WHEN old.checksum IS agentmem_checksum(old.id, old.parent_id, old.parent_tokens, old.parent_bytes, old.tokens,
        old.text_bytes, old.generated_tokens, old.version, old.turns, old.tokenizer_hash, old.token_ids, old.text,
        old.offsets) BEGIN
    UPDATE segments SET checksum = agentmem_checksum(new.id, new.parent_id, new.parent_tokens, new.parent_bytes,
        new.tokens, new.text_bytes, new.generated_tokens, new.version, new.turns, new.tokenizer_hash, new.token_ids,
        new.text, new.offsets) WHERE rowid = new.rowid;
END;

ALTER TABLE agents ADD COLUMN checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
UPDATE agents SET checksum = agentmem_checksum(uid, namespace, agent_id, model_id, version, head_segment, tokens,
    text_bytes, turns);
CREATE TRIGGER agents_summed AFTER INSERT ON agents BEGIN
    UPDATE agents SET checksum = agentmem_checksum(new.uid, new.namespace, new.agent_id, new.model_id, new.version,
        new.head_segment, new.tokens, new.text_bytes, new.turns) WHERE rowid = new.rowid;
END;
CREATE TRIGGER agents_summed_again AFTER UPDATE OF uid, namespace, agent_id, model_id, version, head_segment, tokens,
    text_bytes, turns ON agents
    WHEN old.checksum IS agentmem_checksum(old.uid, old.namespace, old.agent_id, old.model_id, old.version,
        old.head_segment, old.tokens, old.text_bytes, old.turns) BEGIN
    UPDATE agents SET checksum = agentmem_checksum(new.uid, new.namespace, new.agent_id, new.model_id, new.version,
        new.head_segment, new.tokens, new.text_bytes, new.turns) WHERE rowid = new.rowid;
END;

ALTER TABLE snapshots ADD COLUMN checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
UPDATE snapshots SET checksum = agentmem_checksum(id, uid, name, version, head_segment, tokens, text_bytes, turns);
CREATE TRIGGER snapshots_summed AFTER INSERT ON snapshots BEGIN
    UPDATE snapshots SET checksum = agentmem_checksum(new.id, new.uid, new.name, new.version, new.head_segment,
        new.tokens, new.text_bytes, new.turns) WHERE rowid = new.rowid;
END;
CREATE TRIGGER snapshots_summed_again AFTER UPDATE OF id, uid, name, version, head_segment, tokens, text_bytes, turns
    ON snapshots
    WHEN old.checksum IS agentmem_checksum(old.id, old.uid, old.name, old.version, old.head_segment, old.tokens,
        old.text_bytes, old.turns) BEGIN
    UPDATE snapshots SET checksum = agentmem_checksum(new.id, new.uid, new.name, new.version, new.head_segment,
        new.tokens, new.text_bytes, new.turns) WHERE rowid = new.rowid;
END;

ALTER TABLE turns ADD COLUMN checksum BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
UPDATE turns SET checksum = agentmem_checksum(uid, version, segment, request_id, request_digest, record);
CREATE TRIGGER turns_summed AFTER INSERT ON turns BEGIN
    UPDATE turns SET checksum = agentmem_checksum(new.uid, new.version, new.segment, new.request_id,
        new.request_digest, new.record) WHERE rowid = new.rowid;
END;
CREATE TRIGGER turns_summed_again AFTER UPDATE OF uid, version, segment, request_id, request_digest, record ON turns
    WHEN old.checksum IS agentmem_checksum(old.uid, old.version, old.segment, old.request_id, old.request_digest,
        old.record) BEGIN
    UPDATE turns SET checksum = agentmem_checksum(new.uid, new.version, new.segment, new.request_id,
        new.request_digest, new.record) WHERE rowid = new.rowid;
END;
