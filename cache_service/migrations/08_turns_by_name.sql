-- A turn is found by its request_id alone: whoever names the response before means its agent.
CREATE INDEX turns_by_name ON turns (namespace, request_id) WHERE request_id != '';
