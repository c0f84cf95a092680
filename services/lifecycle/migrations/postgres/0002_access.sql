-- Who may do what: credentials, tenant secrets, the audit trail. No key and no secret value is stored in the clear.

-- API keys of callers (principal and role) and of services (service). Shown once, stored as SHA-256.
CREATE TABLE credentials (
  key_id TEXT COLLATE "C" NOT NULL,
  key_hash BYTEA NOT NULL,
  tenant TEXT COLLATE "C" NOT NULL,
  principal TEXT NOT NULL,
  role TEXT NOT NULL,
  service TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  revoked_at BIGINT,
  CONSTRAINT credentials_pk PRIMARY KEY (key_id),
  CONSTRAINT credentials_hash UNIQUE (key_hash)
);
CREATE INDEX credentials_by_tenant ON credentials (tenant, key_id);

-- Public halves of the keys with which gateways sign caller assertions.
CREATE TABLE assertion_keys (
  key_id TEXT COLLATE "C" NOT NULL,
  public_key BYTEA NOT NULL,
  registered_at BIGINT NOT NULL,
  CONSTRAINT assertion_keys_pk PRIMARY KEY (key_id)
);

-- Tenant secrets, sealed by the vault. `hosts` is a JSON list.
CREATE TABLE secrets (
  tenant TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  hosts TEXT NOT NULL,
  version BIGINT NOT NULL,
  master_key_id TEXT NOT NULL,
  wrapped_key BYTEA NOT NULL,
  ciphertext BYTEA NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  CONSTRAINT secrets_pk PRIMARY KEY (tenant, name)
);

-- Denials, administrative writes, secrets handed out. Never a value.
CREATE TABLE audit (
  audit_id TEXT COLLATE "C" NOT NULL,
  tenant TEXT COLLATE "C" NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  resource TEXT NOT NULL,
  decision TEXT NOT NULL,
  policies TEXT NOT NULL,
  detail TEXT NOT NULL,
  at BIGINT NOT NULL,
  CONSTRAINT audit_pk PRIMARY KEY (audit_id)
);
CREATE INDEX audit_by_tenant ON audit (tenant, at);
