//! The sandbox behind a caller's claim: lifecycle checks the claim, the registry reaches the sandbox. When a sandbox does
//! not answer, a read of its durable id decides whether it is lost, and lifecycle is told.

use berth_rpc::{
    broker as api,
    lifecycle::{self as pb, report_observation_request::Observed},
};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use crate::{
    actions::Context,
    error::Error,
    from_proto,
    provider::{Class, ExecError, Observation, ObservedState, ProviderFailure},
    sandbox::Sandbox,
};

/// A sandbox someone holds a live claim on.
pub(crate) struct HeldSandbox {
    pub(crate) sandbox: Sandbox,
    pub(crate) run_id: String,
    pub(crate) session_id: String,
    pub(crate) session_fence: i64,
    pub(crate) lease_id: String,
    /// Absolute, as the sandbox sees it.
    pub(crate) workdir: String,
    pub(crate) repo_url: String,
    pub(crate) base_commit: String,
}

/// Has lifecycle check the claim; its refusal (ABORTED, STALE_FENCE) is passed through.
pub(crate) async fn resolve(context: &Context, hold: Option<api::Hold>) -> Result<HeldSandbox, Error> {
    let missing = || Error::Invalid {
        field: "hold",
        reason: "HOLD_MISSING",
        message: "the claim to act under is missing".to_owned(),
    };
    let hold = hold.ok_or_else(missing)?;
    let request = request(&hold.run_id, &hold.session_id, hold.session_fence);
    let lease = context.lifecycle.resolve_lease(request).await.map_err(Error::Lifecycle)?;
    let identity = lease.identity.map(from_proto::identity).ok_or_else(not_ready)?;
    if lease.workdir.is_empty() {
        return Err(not_ready());
    }
    let provider = context.registry.get(&identity.provider).ok_or_else(|| {
        let message = format!("this broker does not serve provider {:?}", identity.provider);
        ProviderFailure::new(Class::Permanent, "PROVIDER_UNKNOWN", message)
    })?;
    let declared = provider.declaration();
    if declared.host_bound && declared.account_scope != identity.account_scope {
        return Err(Error::Elsewhere { endpoint: lease.endpoint });
    }
    Ok(HeldSandbox {
        sandbox: Sandbox { provider, identity },
        run_id: hold.run_id,
        session_id: hold.session_id,
        session_fence: hold.session_fence,
        lease_id: lease.lease_id,
        workdir: lease.workdir,
        repo_url: lease.repo_url,
        base_commit: lease.base_commit,
    })
}

fn request(run_id: &str, session_id: &str, session_fence: i64) -> pb::ResolveLeaseRequest {
    pb::ResolveLeaseRequest { run_id: run_id.to_owned(), session_id: session_id.to_owned(), session_fence }
}

fn not_ready() -> Error {
    Error::Precondition { reason: "SANDBOX_NOT_READY", message: "the run's sandbox is not ready yet".to_owned() }
}

impl HeldSandbox {
    /// What a failed command means: if the sandbox may be gone, it is looked at, and lifecycle hears what was seen.
    pub(crate) async fn explain(&self, context: &Context, error: ExecError) -> Error {
        let in_question = match &error {
            ExecError::NoSandbox => true,
            ExecError::Provider(failure) => failure.class == Class::Transient,
            ExecError::NotStarted(_) | ExecError::Invalid(_) => false,
        };
        if !in_question {
            return error.into();
        }
        let seen = match self.look(context).await {
            Ok(seen) => seen,
            Err(failure) => return failure.into(),
        };
        let observed = match seen.state {
            ObservedState::Running => return error.into(),
            ObservedState::Paused => Observed::Paused,
            // It can never run again: for the lease the same as absent. The receipt is given by RELEASE alone.
            ObservedState::Ended | ObservedState::Absent => Observed::Absent,
        };
        let report = pb::ReportObservationRequest {
            run_id: self.run_id.clone(),
            lease_id: self.lease_id.clone(),
            sandbox_id: self.sandbox.identity.sandbox_id.clone(),
            observed: observed.into(),
            how: seen.how.clone(),
        };
        if let Err(status) = context.lifecycle.report_observation(report).await {
            tracing::warn!(lease_id = self.lease_id, code = ?status.code(), "observation not reported; the next call will");
        }
        if seen.state.is_lost() { Error::SandboxLost { how: seen.how } } else { error.into() }
    }

    /// Resolves when lifecycle says, with ABORTED, that the claim is over. Any other failure says nothing about the claim.
    pub(crate) async fn fenced_off(&self, context: &Context) -> Status {
        let request = request(&self.run_id, &self.session_id, self.session_fence);
        loop {
            sleep(context.timeouts.fence_check).await;
            match context.lifecycle.resolve_lease(request.clone()).await {
                Ok(_) => {}
                Err(status) if status.code() == Code::Aborted => return status,
                Err(status) => tracing::debug!(lease_id = self.lease_id, code = ?status.code(), "claim not checked"),
            }
        }
    }

    /// A sandbox that is just ending may still look alive: what runs is looked at a few times.
    async fn look(&self, context: &Context) -> Result<Observation, ProviderFailure> {
        let mut looks = 1;
        loop {
            let look = self.sandbox.provider.observe(&self.sandbox.identity);
            let silent = |_| ProviderFailure::timeout("the look");
            let seen = timeout(context.timeouts.observe, look).await.map_err(silent)??;
            if seen.state != ObservedState::Running || looks >= context.timeouts.absence_looks {
                return Ok(seen);
            }
            looks += 1;
            sleep(context.timeouts.look_delay).await;
        }
    }
}
