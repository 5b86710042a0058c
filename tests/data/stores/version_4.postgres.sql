CREATE SCHEMA sinkstream;
CREATE TABLE sinkstream.conversations (
    id text NOT NULL,
    tenant text NOT NULL,
    used double precision NOT NULL,
    title bytea NOT NULL
);
CREATE TABLE sinkstream.loose_files (
    file text NOT NULL,
    since double precision NOT NULL,
    is_doomed bigint NOT NULL
);
CREATE TABLE sinkstream.meta (
    key text NOT NULL,
    value bytea NOT NULL
);
CREATE TABLE sinkstream.nodes (
    id text NOT NULL,
    parent text,
    conversation text NOT NULL,
    tenant text NOT NULL,
    session_key bytea,
    hash bytea,
    tokens bigint NOT NULL,
    last_id bigint,
    finish_reason text,
    read_ids bytea NOT NULL,
    messages text NOT NULL,
    before bytea NOT NULL,
    given bytea NOT NULL,
    created double precision NOT NULL,
    record text NOT NULL,
    note text NOT NULL
);
CREATE TABLE sinkstream.owners (
    session text NOT NULL,
    replica text NOT NULL,
    epoch bigint NOT NULL
);
CREATE TABLE sinkstream.parts (
    node text NOT NULL,
    number bigint NOT NULL,
    ids bytea NOT NULL,
    text bytea NOT NULL
);
CREATE TABLE sinkstream.replicas (
    name text NOT NULL,
    address text NOT NULL,
    seen double precision NOT NULL
);
CREATE TABLE sinkstream.snapshots (
    node text NOT NULL,
    conversation text NOT NULL,
    bytes bigint NOT NULL,
    created double precision NOT NULL,
    file text NOT NULL
);
INSERT INTO sinkstream.conversations VALUES ('sess_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'bob', 1760000007, '\x4869');
INSERT INTO sinkstream.conversations VALUES ('sess_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'ada', 1760000008, '\x4fc3b920657374206c61206d65723f');
INSERT INTO sinkstream.meta VALUES ('secret', '\x93521cad48dfbac4913d834698dc98c38f287208b3f6d1a99d8dc2f37b699023');
INSERT INTO sinkstream.meta VALUES ('model', '\x6d6f64656c');
INSERT INTO sinkstream.meta VALUES ('version', '\x34');
INSERT INTO sinkstream.nodes VALUES ('resp_00000000000000000000000000000000', NULL, 'sess_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'ada', '\x636cc3a9', '\x4141414141414141414141414141414141414141414141414141414141414141', 5, 5, 'stop', '\x010000000200000003000000', '[{"content":"Où est la mer?","role":"user"}]', '\x6262626262626262626262626262626262626262626262626262626262626262', '\x', 1760000000, '{}', '{"tool_calls":[]}');
INSERT INTO sinkstream.nodes VALUES ('resp_00000000000000000000000000000001', 'resp_00000000000000000000000000000000', 'sess_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'ada', NULL, '\x4242424242424242424242424242424242424242424242424242424242424242', 10, 5, 'stop', '\x010000000200000003000000', '[{"content":"Où est la mer?","role":"user"}]', '\x6262626262626262626262626262626262626262626262626262626262626262', '\x', 1760000002, '', '{"tool_calls":[]}');
INSERT INTO sinkstream.nodes VALUES ('resp_00000000000000000000000000000002', 'resp_00000000000000000000000000000000', 'sess_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'ada', NULL, '\x4343434343434343434343434343434343434343434343434343434343434343', 10, 5, 'stop', '\x010000000200000003000000', '[{"content":"Où est la mer?","role":"user"}]', '\x6262626262626262626262626262626262626262626262626262626262626262', '\x556e6520', 1760000004, '', '{"tool_calls":[]}');
INSERT INTO sinkstream.nodes VALUES ('resp_00000000000000000000000000000004', NULL, 'sess_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'bob', NULL, '\x4545454545454545454545454545454545454545454545454545454545454545', 5, 5, 'stop', '\x010000000200000003000000', '[{"content":"Hi","role":"user"}]', '\x6262626262626262626262626262626262626262626262626262626262626262', '\x', 1760000006, '', '{"tool_calls":[]}');
INSERT INTO sinkstream.nodes VALUES ('resp_00000000000000000000000000000003', 'resp_00000000000000000000000000000001', 'sess_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'ada', NULL, NULL, 13, NULL, NULL, '\x010000000200000003000000', '[{"content":"Où est la mer?","role":"user"}]', '\x6262626262626262626262626262626262626262626262626262626262626262', '\x', 1760000008, '', '');
INSERT INTO sinkstream.owners VALUES ('sess_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'vm-10683-07979caf', 1);
INSERT INTO sinkstream.owners VALUES ('sess_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb', 'vm-10683-07979caf', 1);
INSERT INTO sinkstream.parts VALUES ('resp_00000000000000000000000000000000', 0, '\x04000000', '\x4c');
INSERT INTO sinkstream.parts VALUES ('resp_00000000000000000000000000000000', 1, '\x05000000', '\xc3a02d626173');
INSERT INTO sinkstream.parts VALUES ('resp_00000000000000000000000000000001', 0, '\x04000000', '\xc3a9');
INSERT INTO sinkstream.parts VALUES ('resp_00000000000000000000000000000001', 1, '\x05000000', '\x74616e67');
INSERT INTO sinkstream.parts VALUES ('resp_00000000000000000000000000000002', 0, '\x04000000', '\xc3ae');
INSERT INTO sinkstream.parts VALUES ('resp_00000000000000000000000000000002', 1, '\x05000000', '\x6c65');
INSERT INTO sinkstream.parts VALUES ('resp_00000000000000000000000000000004', 0, '\x04000000', '\x48');
INSERT INTO sinkstream.parts VALUES ('resp_00000000000000000000000000000004', 1, '\x05000000', '\x656c6c6f');
INSERT INTO sinkstream.parts VALUES ('resp_00000000000000000000000000000003', 0, '\x0700000008000000', '\xc3a0');
INSERT INTO sinkstream.snapshots VALUES ('resp_00000000000000000000000000000001', 'sess_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 7, 1795949159.602154, 'resp_00000000000000000000000000000001.44b50c65.session');
ALTER TABLE ONLY sinkstream.conversations
    ADD CONSTRAINT conversations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY sinkstream.loose_files
    ADD CONSTRAINT loose_files_pkey PRIMARY KEY (file);
ALTER TABLE ONLY sinkstream.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);
ALTER TABLE ONLY sinkstream.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY sinkstream.owners
    ADD CONSTRAINT owners_pkey PRIMARY KEY (session);
ALTER TABLE ONLY sinkstream.parts
    ADD CONSTRAINT parts_pkey PRIMARY KEY (node, number);
ALTER TABLE ONLY sinkstream.replicas
    ADD CONSTRAINT replicas_pkey PRIMARY KEY (name);
ALTER TABLE ONLY sinkstream.snapshots
    ADD CONSTRAINT snapshots_pkey PRIMARY KEY (node);
CREATE INDEX conversations_by_tenant ON sinkstream.conversations USING btree (tenant, used);
CREATE INDEX conversations_by_use ON sinkstream.conversations USING btree (used);
CREATE INDEX nodes_by_conversation ON sinkstream.nodes USING btree (conversation);
CREATE INDEX nodes_by_hash ON sinkstream.nodes USING btree (hash);
CREATE INDEX nodes_by_parent ON sinkstream.nodes USING btree (parent);
CREATE INDEX snapshots_by_conversation ON sinkstream.snapshots USING btree (conversation);
