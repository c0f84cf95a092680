//! ForgetRun: an administrator takes responsibility for sandboxes that cannot be proven absent. Audited with the reason.

use berth_domain::aggregate::{Note, Trigger};
use berth_rpc::lifecycle as proto;

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    guard,
    store::{Changes, Decision, audit::AuditEntry},
    to_proto,
};

/// DELETION_FAILED, or DELETING for over an hour: every unproven lease gets a FORGOTTEN receipt.
///
/// # Errors
/// INVALID_ARGUMENT (REASON_REQUIRED), FAILED_PRECONDITION (NOT_DELETING, TOO_EARLY_TO_FORGET), NOT_FOUND, denied.
pub(crate) async fn forget_run(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ForgetRunRequest,
) -> Result<proto::Run, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let ((), after) = app
        .store
        .transact_run(&run_id, |loaded| {
            let decision = app.allow(call, loaded)?;
            guard::not_deleted(loaded)?;
            let reason = guard::reason(&request.reason)?;
            if reason.is_empty() {
                return Err(Error::invalid("reason", "REASON_REQUIRED", "say why the run is given up"));
            }
            let mut changes = Changes { actor: call.actor(), ..Changes::default() };
            let forget = Trigger::Forget { reason: reason.to_owned(), by: call.actor() };
            loaded.apply(&mut changes, &forget)?;
            // One line for the run, one for every sandbox that is given up.
            let mut lines = vec![decision.trail(call.subject(), reason)];
            for note in &changes.notes {
                if let Note::Forgotten { lease, reason, .. } = note {
                    let line = decision.trail(call.subject(), reason);
                    lines.push(AuditEntry { action: "ForgetLease".to_owned(), resource: lease.to_string(), ..line });
                }
            }
            Ok(lines.into_iter().fold(Decision::changed((), changes), Decision::audited))
        })
        .await?;
    Ok(to_proto::run(&after))
}
