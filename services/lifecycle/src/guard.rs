//! Find and authorize: how an operation gets at a run. What cannot be seen answers exactly like what does not exist.
//!
//! Must not live here: what an operation does with the run.

use berth_domain::{
    id::{LeaseId, RunId, TenantId},
    run::State,
};

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    policy::{Decision, Resource, Service},
    store::Loaded,
};

/// Longest text a person gives as a reason.
const MAX_REASON_BYTES: usize = 1024;

/// A run id as a client gave it. Whatever cannot be one is a run that does not exist.
///
/// # Errors
/// NOT_FOUND (RUN_NOT_FOUND).
pub(crate) fn run_id(text: &str) -> Result<RunId, Error> {
    RunId::parse(text).map_err(|_| Error::run_not_found())
}

/// A tenant as a client gave it; empty: the caller's own.
///
/// # Errors
/// NOT_FOUND (TENANT_NOT_FOUND).
pub(crate) fn tenant_id(text: &str, own: &TenantId) -> Result<TenantId, Error> {
    if text.is_empty() {
        return Ok(own.clone());
    }
    TenantId::parse(text).map_err(|_| Error::NotFound { reason: "TENANT_NOT_FOUND", message: "no such tenant" })
}

/// A reason as a person gave it, possibly empty.
///
/// # Errors
/// INVALID_ARGUMENT (REASON_INVALID).
pub(crate) fn reason(text: &str) -> Result<&str, Error> {
    let text = text.trim();
    if text.len() > MAX_REASON_BYTES || text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
        let message = "a reason is at most 1024 bytes of plain text";
        return Err(Error::invalid("reason", "REASON_INVALID", message));
    }
    Ok(text)
}

/// Leases are the work of sandbox-broker, sessions that of sessions: neither speaks for the other's rows.
///
/// # Errors
/// PERMISSION_DENIED (QUEUE_FORBIDDEN).
pub(crate) fn own_row(service: Service, row_id: &str) -> Result<(), Error> {
    let own = match service {
        Service::SandboxBroker => LeaseId::parse(row_id).is_ok(),
        Service::Sessions => LeaseId::parse(row_id).is_err(),
        Service::Gateway => false,
    };
    if own {
        return Ok(());
    }
    Err(Error::Denied { reason: "QUEUE_FORBIDDEN", message: "this row belongs to another service".to_owned() })
}

impl Lifecycle {
    /// The run as it is now, if the caller may do this to it.
    ///
    /// # Errors
    /// NOT_FOUND, denied, or a failed store.
    pub async fn find(&self, call: &Admitted, run_id: &RunId) -> Result<Loaded, Error> {
        let loaded = self.store.read(run_id).await?.ok_or(Error::run_not_found())?;
        self.allow(call, &loaded)?;
        Ok(loaded)
    }

    /// Decides about a run inside the transaction that read it.
    ///
    /// # Errors
    /// NOT_FOUND when it may not be seen, denied when it may be seen but not this.
    pub fn allow(&self, call: &Admitted, loaded: &Loaded) -> Result<Decision, Error> {
        let run = &loaded.aggregate.run;
        Ok(self.policy.authorize(call.subject(), call.action(), Resource::Run(&run.id, &run.tenant))?)
    }
}

/// A DELETED run is not found by what reads or changes runs.
///
/// # Errors
/// NOT_FOUND (RUN_NOT_FOUND).
pub(crate) fn not_deleted(loaded: &Loaded) -> Result<(), Error> {
    if loaded.aggregate.run.state == State::Deleted { Err(Error::run_not_found()) } else { Ok(()) }
}
