//! Creating a run: run, lease, session, first message, first events and the idempotency record in one transaction
//! (a crash leaves all of it or nothing).

use std::time::Duration;

use berth_domain::{
    aggregate::{self, Aggregate, Transition},
    id::RunId,
    time::Time,
};

use super::{
    Changes, Loaded, NewEvent, Record, RunSpec, Store, StoreError,
    audit::AuditEntry,
    engine::{Tx, args},
    load::{self, Lock},
    transact::backoff,
    write,
};
use crate::error::Error;

/// How long a key answers with the run it made.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Expired records removed with each create that brings a key.
const SWEPT_PER_CREATE: i64 = 20;

/// A run about to be made.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// What the machines need to know.
    pub domain: aggregate::NewRun,
    /// Who asks.
    pub principal: String,
    /// W3C traceparent of the call; may be empty.
    pub traceparent: String,
    /// The request.
    pub spec: RunSpec,
    /// Lines for the audit trail.
    pub audit: Vec<AuditEntry>,
}

/// The key under which a create may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Keys of different tenants never meet.
    pub tenant: String,
    /// RPC name.
    pub method: &'static str,
    /// Chosen by the client.
    pub key: String,
    /// Hash of the canonical request.
    pub request_hash: Vec<u8>,
}

/// What a create came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Created {
    /// The run was made now.
    New(Box<Loaded>),
    /// The run an earlier request with this key made.
    Replayed(Box<Loaded>),
}
