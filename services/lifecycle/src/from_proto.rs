//! From the contract's types to the domain's: what workers report.

use berth_domain::{
    failure::{FailureClass, FailureReason},
    lease::{self, Identity, Lease},
    session,
};
use berth_rpc::{
    lifecycle::{self as proto, provider_failure::Class, report_request::Outcome},
    time_from_proto,
};

use crate::error::Error;

/// Longest text for people that is kept.
const MAX_TEXT_BYTES: usize = 4096;
/// Longest identifier of a provider's.
const MAX_NAME_BYTES: usize = 2048;

/// What the outcome of a lease's action means to the machine. `lease` is the row reported about.
///
/// # Errors
/// INVALID_ARGUMENT (OUTCOME_MISMATCH, IDENTITY_INVALID).
pub(crate) fn lease_outcome(outcome: &Outcome, lease: &Lease) -> Result<lease::Outcome, Error> {
    let action = lease.claim.as_ref().map(|claim| claim.action);
    Ok(match outcome {
        Outcome::Created(made) => lease::Outcome::Created(identity(made)?),
        Outcome::Adopted(made) => lease::Outcome::Adopted(identity(made)?),
        Outcome::Refused(failure) => match class(failure) {
            Class::CredentialsMissing => lease::Outcome::CredentialsMissing { text: text(failure) },
            Class::Transient => lease::Outcome::NotMade { text: text(failure), retry_after: None },
            Class::Unspecified | Class::Permanent | Class::ScopeChanged | Class::IdentityDiffers => {
                lease::Outcome::Refused { class: failure_class(failure), text: text(failure) }
            }
        },
        Outcome::Unknown(unknown) => {
            let text = unknown.failure.as_ref().map_or_else(|| "no definite answer".to_owned(), text);
            // A clone whose outcome is not known is simply done again: into a folder of its own.
            if action == Some(lease::Action::Bootstrap) {
                lease::Outcome::BootstrapRetry { text, retry_after: None }
            } else {
                lease::Outcome::Unknown { text, scope: None }
            }
        }
        Outcome::CredentialsMissing(failure) => lease::Outcome::CredentialsMissing { text: text(failure) },
        Outcome::Bootstrapped(done) => lease::Outcome::Bootstrapped { workdir: cut(&done.workdir, MAX_TEXT_BYTES) },
        Outcome::BootstrapFailed(failure) => match class(failure) {
            Class::Transient => lease::Outcome::BootstrapRetry { text: text(failure), retry_after: None },
            Class::CredentialsMissing => lease::Outcome::CredentialsMissing { text: text(failure) },
            Class::Unspecified | Class::Permanent | Class::ScopeChanged | Class::IdentityDiffers => {
                lease::Outcome::BootstrapFailed {
                    reason: reason(failure, FailureReason::BootstrapFailed),
                    text: text(failure),
                }
            }
        },
        // The read was of the recorded identity, under its scope.
        Outcome::Gone(gone) => lease::Outcome::Gone {
            scope: lease.identity.as_ref().map(|identity| identity.scope.clone()).unwrap_or_default(),
            how: cut(&gone.how, MAX_TEXT_BYTES),
        },
        Outcome::Absent(absent) => lease::Outcome::Absent {
            key_absent: true,
            scope: cut(&absent.account_scope, MAX_NAME_BYTES),
            how: cut(&absent.how, MAX_TEXT_BYTES),
            last_seen: None,
        },
        Outcome::StillThere(_) => lease::Outcome::StillThere,
        Outcome::ReleaseFailed(failure) => {
            lease::Outcome::TeardownFailed { class: failure_class(failure), text: text(failure), retry_after: None }
        }
        Outcome::Launched(_)
        | Outcome::LaunchFailed(_)
        | Outcome::Ended(_)
        | Outcome::Collected(_)
        | Outcome::CollectFailed(_)
        | Outcome::Parked(_) => return Err(mismatch()),
    })
}

/// What the outcome of a session's action means to the machine.
///
/// # Errors
/// INVALID_ARGUMENT (OUTCOME_MISMATCH).
pub(crate) fn session_outcome(outcome: &Outcome) -> Result<session::Outcome, Error> {
    Ok(match outcome {
        Outcome::Launched(_) => session::Outcome::Launched,
        Outcome::LaunchFailed(failure) => match class(failure) {
            Class::Transient => session::Outcome::LaunchUnknown { text: text(failure), retry_after: None },
            Class::Unspecified
            | Class::Permanent
            | Class::CredentialsMissing
            | Class::ScopeChanged
            | Class::IdentityDiffers => session::Outcome::LaunchFailed {
                reason: reason(failure, FailureReason::LaunchFailed),
                text: text(failure),
            },
        },
        Outcome::Ended(_) => session::Outcome::DriveEnded,
        Outcome::Collected(_) => session::Outcome::Collected,
        Outcome::CollectFailed(failure) => match class(failure) {
            Class::Transient => session::Outcome::Retry { text: text(failure), retry_after: None },
            Class::Unspecified
            | Class::Permanent
            | Class::CredentialsMissing
            | Class::ScopeChanged
            | Class::IdentityDiffers => session::Outcome::CollectFailed {
                reason: reason(failure, FailureReason::CollectFailed),
                text: text(failure),
            },
        },
        Outcome::Parked(_) => session::Outcome::Parked,
        // PARK that could not reach its sandbox.
        Outcome::Unknown(unknown) => session::Outcome::Retry {
            text: unknown.failure.as_ref().map_or_else(|| "no definite answer".to_owned(), text),
            retry_after: None,
        },
        Outcome::Created(_)
        | Outcome::Adopted(_)
        | Outcome::Refused(_)
        | Outcome::CredentialsMissing(_)
        | Outcome::Bootstrapped(_)
        | Outcome::BootstrapFailed(_)
        | Outcome::Gone(_)
        | Outcome::Absent(_)
        | Outcome::StillThere(_)
        | Outcome::ReleaseFailed(_) => return Err(mismatch()),
    })
}

/// The failure of a run as a worker or an event names it; an unknown reason becomes `fallback`, named in the text.
pub(crate) fn run_failure(error: &proto::Error, fallback: FailureReason) -> (FailureReason, String) {
    match FailureReason::parse(&error.reason) {
        Some(reason) => (reason, cut(&error.message, MAX_TEXT_BYTES)),
        None => (fallback, cut(&format!("{}: {}", error.reason, error.message), MAX_TEXT_BYTES)),
    }
}

/// `text` cut to `bytes` at a character's border.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}

fn identity(made: &proto::Created) -> Result<Identity, Error> {
    let wrong = |message: &str| Error::invalid("identity", "IDENTITY_INVALID", message);
    let identity = made.identity.as_ref().ok_or_else(|| wrong("an identity is required"))?;
    let names = [&identity.sandbox_id, &identity.sandbox_url, &identity.account_scope, &identity.provider];
    if identity.sandbox_id.is_empty() || identity.provider.is_empty() {
        return Err(wrong("sandbox_id and provider are required"));
    }
    if names.into_iter().any(|name| name.len() > MAX_NAME_BYTES || name.contains('\0')) {
        return Err(wrong("a part of the identity is too long"));
    }
    Ok(Identity {
        sandbox_id: identity.sandbox_id.clone(),
        sandbox_url: identity.sandbox_url.clone(),
        scope: identity.account_scope.clone(),
        provider: identity.provider.clone(),
        provider_deadline: identity.provider_deadline.as_ref().map(time_from_proto),
    })
}

fn class(failure: &proto::ProviderFailure) -> Class {
    failure.class()
}

fn failure_class(failure: &proto::ProviderFailure) -> FailureClass {
    let named = FailureClass::parse(&failure.reason);
    match class(failure) {
        Class::Transient => named.filter(|class| class.is_transient()).unwrap_or(FailureClass::Unavailable),
        Class::CredentialsMissing => FailureClass::NoCredentials,
        Class::ScopeChanged => FailureClass::ScopeChanged,
        Class::IdentityDiffers => FailureClass::IdentityDiffers,
        // A failure is never absence, whatever its reason says.
        Class::Unspecified | Class::Permanent => named
            .filter(|class| !class.is_transient() && *class != FailureClass::Absent)
            .unwrap_or(FailureClass::Rejected),
    }
}

fn reason(failure: &proto::ProviderFailure, fallback: FailureReason) -> FailureReason {
    match class(failure) {
        Class::CredentialsMissing => FailureReason::parse(&failure.reason).unwrap_or(FailureReason::CredentialsMissing),
        Class::Unspecified | Class::Transient | Class::Permanent | Class::ScopeChanged | Class::IdentityDiffers => {
            FailureReason::parse(&failure.reason).unwrap_or(fallback)
        }
    }
}

/// The reason stays readable even where the machine has no word for it.
fn text(failure: &proto::ProviderFailure) -> String {
    match (failure.reason.is_empty(), failure.message.is_empty()) {
        (true, _) => cut(&failure.message, MAX_TEXT_BYTES),
        (false, true) => cut(&failure.reason, MAX_TEXT_BYTES),
        (false, false) => cut(&format!("{}: {}", failure.reason, failure.message), MAX_TEXT_BYTES),
    }
}

fn mismatch() -> Error {
    Error::invalid("outcome", "OUTCOME_MISMATCH", "the outcome does not answer the claimed action")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(class: Class, reason: &str) -> proto::ProviderFailure {
        proto::ProviderFailure { class: class.into(), reason: reason.to_owned(), message: "text".to_owned() }
    }

    #[test]
    fn case_d06_no_reported_failure_reads_as_absence() {
        let classes = [
            Class::Unspecified,
            Class::Transient,
            Class::Permanent,
            Class::CredentialsMissing,
            Class::ScopeChanged,
            Class::IdentityDiffers,
        ];
        for class in classes {
            for reason in FailureClass::ALL.iter().map(|class| class.as_str()).chain(["", "whatever"]) {
                let read = failure_class(&failed(class, reason));
                assert_ne!(read, FailureClass::Absent, "{class:?} {reason}");
                assert_eq!(read.is_transient(), class == Class::Transient, "{class:?} {reason}");
            }
        }
    }

    #[test]
    fn an_unknown_reason_stays_readable() {
        let error = proto::Error { reason: "VENDOR_ODDITY".to_owned(), message: "seen once".to_owned() };
        let (reason, text) = run_failure(&error, FailureReason::ModelError);
        assert_eq!((reason, text.as_str()), (FailureReason::ModelError, "VENDOR_ODDITY: seen once"));
        assert_eq!(text_of_long().len(), MAX_TEXT_BYTES - 1, "cut at a character's border");
    }

    fn text_of_long() -> String {
        cut(&format!("{}é", "x".repeat(MAX_TEXT_BYTES - 1)), MAX_TEXT_BYTES)
    }
}
