-- Who may do what: credentials, tenant secrets, the audit trail. No key and no secret value is stored in the clear.

-- API keys of callers (principal and role) and of services (service). Shown once, stored as SHA-256.
CREATE TABLE credentials (
  key_id TEXT NOT NULL,
  key_hash BLOB NOT NULL,
  tenant TEXT NOT NULL,
  principal TEXT NOT NULL,
  role TEXT NOT NULL,
  service TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER,
  CONSTRAINT credentials_pk PRIMARY KEY (key_id),
  CONSTRAINT credentials_hash UNIQUE (key_hash)
);
CREATE INDEX credentials_by_tenant ON credentials (tenant, key_id);

-- Public halves of the keys with which gateways sign caller assertions.
CREATE TABLE assertion_keys (
  key_id TEXT NOT NULL,
  public_key BLOB NOT NULL,
  registered_at INTEGER NOT NULL,
  CONSTRAINT assertion_keys_pk PRIMARY KEY (key_id)
);

-- Tenant secrets, sealed by the vault. `hosts` is a JSON list.
CREATE TABLE secrets (
  tenant TEXT NOT NULL,
  name TEXT NOT NULL,
  hosts TEXT NOT NULL,
  version INTEGER NOT NULL,
  master_key_id TEXT NOT NULL,
  wrapped_key BLOB NOT NULL,
  ciphertext BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CONSTRAINT secrets_pk PRIMARY KEY (tenant, name)
);

-- Denials, administrative writes, secrets handed out. Never a value.
CREATE TABLE audit (
  audit_id TEXT NOT NULL,
  tenant TEXT NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  resource TEXT NOT NULL,
  decision TEXT NOT NULL,
  policies TEXT NOT NULL,
  detail TEXT NOT NULL,
  at INTEGER NOT NULL,
  CONSTRAINT audit_pk PRIMARY KEY (audit_id)
);
CREATE INDEX audit_by_tenant ON audit (tenant, at);
