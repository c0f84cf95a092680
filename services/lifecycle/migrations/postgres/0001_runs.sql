-- What lifecycle remembers about runs, work and logs. Times are microseconds since the epoch. Columns hold what is queried;
-- `doc` columns hold the domain row as JSON and are read and written by the store only.

CREATE TABLE meta (
  key TEXT COLLATE "C" NOT NULL,
  value TEXT NOT NULL,
  CONSTRAINT meta_pk PRIMARY KEY (key)
);

-- One run. `prompt`, `spec.system_prompt` and `result` are erased when it is DELETED.
CREATE TABLE runs (
  run_id TEXT COLLATE "C" NOT NULL,
  tenant TEXT COLLATE "C" NOT NULL,
  state TEXT NOT NULL,
  principal TEXT NOT NULL,
  traceparent TEXT NOT NULL,
  prompt TEXT NOT NULL,
  spec TEXT NOT NULL,
  doc TEXT NOT NULL,
  progress TEXT NOT NULL,
  result BYTEA,
  last_seq BIGINT NOT NULL,
  transition_seq BIGINT NOT NULL,
  change_seq BIGINT NOT NULL,
  tick_at BIGINT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  CONSTRAINT runs_pk PRIMARY KEY (run_id)
);
CREATE INDEX runs_by_tenant ON runs (tenant, run_id);
CREATE INDEX runs_by_tick ON runs (tick_at) WHERE tick_at IS NOT NULL;

-- One sandbox, from intent to receipt. The row is the queue: what to do next, when, and who does it.
CREATE TABLE leases (
  lease_id TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  generation BIGINT NOT NULL,
  provider TEXT NOT NULL,
  scope TEXT,
  state TEXT NOT NULL,
  next_action TEXT,
  next_action_at BIGINT,
  claimed_by TEXT,
  claim_deadline BIGINT,
  fence BIGINT NOT NULL,
  spent_fence BIGINT,
  spent_request_hash BYTEA,
  spent_reply BYTEA,
  doc TEXT NOT NULL,
  CONSTRAINT leases_pk PRIMARY KEY (lease_id),
  CONSTRAINT leases_generation UNIQUE (run_id, generation),
  CONSTRAINT leases_run FOREIGN KEY (run_id) REFERENCES runs (run_id)
);
CREATE INDEX leases_due ON leases (provider, next_action_at) WHERE next_action_at IS NOT NULL;
CREATE INDEX leases_claimed ON leases (claimed_by) WHERE claimed_by IS NOT NULL;

-- The conversation of a run; the same queue columns.
CREATE TABLE sessions (
  session_id TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  state TEXT NOT NULL,
  next_action TEXT,
  next_action_at BIGINT,
  claimed_by TEXT,
  claim_deadline BIGINT,
  fence BIGINT NOT NULL,
  spent_fence BIGINT,
  spent_request_hash BYTEA,
  spent_reply BYTEA,
  doc TEXT NOT NULL,
  CONSTRAINT sessions_pk PRIMARY KEY (session_id),
  CONSTRAINT sessions_run_once UNIQUE (run_id),
  CONSTRAINT sessions_run FOREIGN KEY (run_id) REFERENCES runs (run_id)
);
CREATE INDEX sessions_due ON sessions (next_action_at) WHERE next_action_at IS NOT NULL;
CREATE INDEX sessions_claimed ON sessions (claimed_by) WHERE claimed_by IS NOT NULL;

-- Messages of a session. `text` is written once and read apart: the machine never looks at it.
CREATE TABLE messages (
  message_id TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  ordinal BIGINT NOT NULL,
  state TEXT NOT NULL,
  doc TEXT NOT NULL,
  text TEXT NOT NULL,
  CONSTRAINT messages_pk PRIMARY KEY (run_id, message_id),
  CONSTRAINT messages_run FOREIGN KEY (run_id) REFERENCES runs (run_id)
);

-- The log of a run, 1..N. `payload` is the encoded Event without the columns beside it.
CREATE TABLE events (
  run_id TEXT COLLATE "C" NOT NULL,
  sequence BIGINT NOT NULL,
  launch BIGINT NOT NULL,
  launch_sequence BIGINT NOT NULL,
  at BIGINT NOT NULL,
  payload BYTEA NOT NULL,
  CONSTRAINT events_pk PRIMARY KEY (run_id, sequence),
  CONSTRAINT events_run FOREIGN KEY (run_id) REFERENCES runs (run_id)
);
CREATE UNIQUE INDEX events_once ON events (run_id, launch, launch_sequence) WHERE launch > 0;

-- Every state change of a run, its leases and its session; outlives the run's content.
CREATE TABLE transitions (
  run_id TEXT COLLATE "C" NOT NULL,
  sequence BIGINT NOT NULL,
  entity TEXT NOT NULL,
  entity_id TEXT NOT NULL,
  from_state TEXT NOT NULL,
  to_state TEXT NOT NULL,
  cause TEXT NOT NULL,
  actor TEXT NOT NULL,
  at BIGINT NOT NULL,
  CONSTRAINT transitions_pk PRIMARY KEY (run_id, sequence),
  CONSTRAINT transitions_run FOREIGN KEY (run_id) REFERENCES runs (run_id)
);

-- The proof that a sandbox is absent.
CREATE TABLE receipts (
  receipt_id TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  lease_id TEXT COLLATE "C" NOT NULL,
  provider TEXT NOT NULL,
  sandbox_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  at BIGINT NOT NULL,
  doc TEXT NOT NULL,
  CONSTRAINT receipts_pk PRIMARY KEY (receipt_id),
  CONSTRAINT receipts_lease FOREIGN KEY (lease_id) REFERENCES leases (lease_id)
);
CREATE INDEX receipts_by_run ON receipts (run_id);

-- Who works; a claim is over when its worker's `alive_until` has passed.
CREATE TABLE workers (
  worker_id TEXT COLLATE "C" NOT NULL,
  service TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  localities TEXT NOT NULL,
  alive_until BIGINT NOT NULL,
  CONSTRAINT workers_pk PRIMARY KEY (worker_id)
);

-- Requests already answered, for 24 hours.
CREATE TABLE idempotency (
  tenant TEXT COLLATE "C" NOT NULL,
  method TEXT NOT NULL,
  key TEXT NOT NULL,
  request_hash BYTEA NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL,
  created_at BIGINT NOT NULL,
  CONSTRAINT idempotency_pk PRIMARY KEY (tenant, method, key)
);
CREATE INDEX idempotency_by_age ON idempotency (created_at);

-- The cursor of every watch, per tenant; taken last in a transaction.
CREATE TABLE tenant_seq (
  tenant TEXT COLLATE "C" NOT NULL,
  change_seq BIGINT NOT NULL,
  CONSTRAINT tenant_seq_pk PRIMARY KEY (tenant)
);
