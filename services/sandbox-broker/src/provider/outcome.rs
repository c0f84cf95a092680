//! What a provider's answers mean: closed lists, classified by the adapter, never parsed from text afterwards.

use super::Identity;

/// What must happen for a failed call to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Waiting may cure it.
    Transient,
    /// A definite refusal.
    Permanent,
    /// There is no credential to ask with.
    CredentialsMissing,
    /// The account is not the one the sandbox was made in.
    ScopeChanged,
    /// What answers is not what we made.
    IdentityDiffers,
}

/// Why a provider did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct ProviderFailure {
    /// See [`Class`].
    pub class: Class,
    /// Stable, upper-case.
    pub reason: &'static str,
    /// For people; holds no secret.
    pub message: String,
}

impl ProviderFailure {
    /// A failure of `class`.
    pub fn new(class: Class, reason: &'static str, message: impl Into<String>) -> Self {
        Self { class, reason, message: message.into() }
    }

    /// No answer in time.
    pub fn timeout(what: &str) -> Self {
        Self::new(Class::Transient, "TIMEOUT", format!("{what} was not answered in time"))
    }
}

/// What came of a create call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// Made by this call.
    Created(Identity),
    /// A sandbox of this key was there already.
    Exists(Identity),
    /// Definitely not made; a transient failure may be tried again.
    Refused(ProviderFailure),
    /// It may exist or still appear.
    Unknown(ProviderFailure),
}

/// What came of an accepted destroy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destroyed {
    /// Something was there and is being destroyed.
    Accepted,
    /// There was nothing.
    NothingThere,
}

/// What the provider said about a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The state seen.
    pub state: ObservedState,
    /// What was looked at, for receipts and people.
    pub how: String,
}

/// State of a sandbox at its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedState {
    /// It runs.
    Running,
    /// It rests and can be resumed.
    Paused,
    /// It is there and can never run again: lost, but not absent.
    Ended,
    /// Nothing of it is there.
    Absent,
}

impl ObservedState {
    /// No command will ever run in it again.
    pub fn is_lost(self) -> bool {
        match self {
            ObservedState::Ended | ObservedState::Absent => true,
            ObservedState::Running | ObservedState::Paused => false,
        }
    }
}
