//! The closed lists of failures: kinds of our own errors, classes of a provider's answers, reasons a run or message failed.
//!
//! Must not live here: gRPC or HTTP codes of our own answers (those are in rpc), parsing of error text (failures are classified, never parsed).

use serde::{Deserialize, Serialize};

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// Every member.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The stable name, as stored and told to clients.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The member of that name, if there is one.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some($name::$variant),)* _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names! {
    /// What kind of failure an error of ours is; mapped to wire codes in one place elsewhere.
    Kind {
        /// The request itself is wrong.
        Invalid = "INVALID",
        /// Nobody we know.
        Unauthenticated = "UNAUTHENTICATED",
        /// Known, but may not.
        Denied = "DENIED",
        /// No such thing, or not to be seen.
        NotFound = "NOT_FOUND",
        /// It exists already.
        Exists = "EXISTS",
        /// A lost race or a spent fence: re-read.
        Conflict = "CONFLICT",
        /// Not in this state.
        IllegalState = "ILLEGAL_STATE",
        /// A quota or limit is used up.
        Exhausted = "EXHAUSTED",
        /// Try again later.
        Unavailable = "UNAVAILABLE",
        /// Took too long.
        Timeout = "TIMEOUT",
        /// Our own fault.
        Internal = "INTERNAL",
    }
}

names! {
    /// What a provider's answer means to us.
    FailureClass {
        /// 404 or 410 of a control-plane read, or of the delete itself. The only class that is not a failure of a teardown.
        Absent = "ABSENT",
        /// 401: the credential is not accepted.
        Unauthorized = "UNAUTHORIZED",
        /// 402: the account must pay first.
        PaymentRequired = "PAYMENT_REQUIRED",
        /// 403: the credential may not.
        Forbidden = "FORBIDDEN",
        /// 409: refused in its present state.
        Conflict = "CONFLICT",
        /// Any other definite refusal (4xx).
        Rejected = "REJECTED",
        /// 429.
        RateLimited = "RATE_LIMITED",
        /// 408, or no answer in time.
        Timeout = "TIMEOUT",
        /// 5xx, or 404/410 of a call that proves nothing.
        Unavailable = "UNAVAILABLE",
        /// The connection broke.
        Cut = "CUT",
        /// TLS failed.
        Tls = "TLS",
        /// The credential now opens another account than the one the sandbox was made in.
        ScopeChanged = "SCOPE_CHANGED",
        /// What answers under the recorded id is not what we made.
        IdentityDiffers = "IDENTITY_DIFFERS",
        /// There is no credential to ask with.
        NoCredentials = "NO_CREDENTIALS",
        /// No id is known (or a second sandbox may exist) and the provider cannot look up our key.
        NoLookup = "NO_LOOKUP",
    }
}

/// Which call an HTTP status answered; a 404 means absence only for the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A control-plane read of the durable id.
    Read,
    /// The delete of the durable id.
    Delete,
    /// Anything else: a create, a beat, a proxy, an exec.
    Other,
}

impl FailureClass {
    /// The class of an HTTP status that is not a success.
    pub fn of_status(status: u16, call: Call) -> Self {
        match (status, call) {
            (404 | 410, Call::Read | Call::Delete) => FailureClass::Absent,
            (404 | 410, Call::Other) => FailureClass::Unavailable,
            (401, _) => FailureClass::Unauthorized,
            (402, _) => FailureClass::PaymentRequired,
            (403, _) => FailureClass::Forbidden,
            (409, _) => FailureClass::Conflict,
            (429, _) => FailureClass::RateLimited,
            (408, _) => FailureClass::Timeout,
            (400..=499, _) => FailureClass::Rejected,
            // Not an error's status at all, or the other side's own fault.
            (0..=399 | 500..=u16::MAX, Call::Read | Call::Delete | Call::Other) => FailureClass::Unavailable,
        }
    }

    /// Whether waiting may cure it. The others need a person, a new credential or another state; they are retried at the slow cadence.
    pub fn is_transient(self) -> bool {
        match self {
            FailureClass::RateLimited
            | FailureClass::Timeout
            | FailureClass::Unavailable
            | FailureClass::Cut
            | FailureClass::Tls => true,
            FailureClass::Absent
            | FailureClass::Unauthorized
            | FailureClass::PaymentRequired
            | FailureClass::Forbidden
            | FailureClass::Conflict
            | FailureClass::Rejected
            | FailureClass::ScopeChanged
            | FailureClass::IdentityDiffers
            | FailureClass::NoCredentials
            | FailureClass::NoLookup => false,
        }
    }
}

names! {
    /// Why a run, a message or the collection of a result failed; told to clients, never renamed.
    FailureReason {
        /// The turn budget is used up.
        BudgetTurns = "BUDGET_TURNS",
        /// The token budget is used up.
        BudgetTokens = "BUDGET_TOKENS",
        /// The wall-clock budget is used up.
        BudgetWallClock = "BUDGET_WALL_CLOCK",
        /// The model API failed for good.
        ModelError = "MODEL_ERROR",
        /// The model refused the task.
        ModelRefused = "MODEL_REFUSED",
        /// No model key is stored.
        ModelKeyMissing = "MODEL_KEY_MISSING",
        /// The model API's rate limit outlasted our patience.
        RateLimited = "RATE_LIMITED",
        /// The conversation no longer fits the model.
        ContextWindowExceeded = "CONTEXT_WINDOW_EXCEEDED",
        /// Preparing the sandbox failed.
        BootstrapFailed = "BOOTSTRAP_FAILED",
        /// Preparing the sandbox took too long.
        BootstrapTimeout = "BOOTSTRAP_TIMEOUT",
        /// git clone failed.
        CloneFailed = "CLONE_FAILED",
        /// The ref does not exist.
        RefNotFound = "REF_NOT_FOUND",
        /// The repository cannot be reached.
        RepoUnreachable = "REPO_UNREACHABLE",
        /// The repository refused our credential.
        RepoAuthRefused = "REPO_AUTH_REFUSED",
        /// The server knows no such repository.
        RepoNotFound = "REPO_NOT_FOUND",
        /// git clone took too long.
        CloneTimeout = "CLONE_TIMEOUT",
        /// The requested folder cannot be the work folder.
        WorkdirRefused = "WORKDIR_REFUSED",
        /// A secret is stored but could not be read.
        SecretUnavailable = "SECRET_UNAVAILABLE",
        /// The repository's address is not allowed.
        RepoAddressRefused = "REPO_ADDRESS_REFUSED",
        /// The agent could not be started.
        LaunchFailed = "LAUNCH_FAILED",
        /// The harness ended in an error.
        HarnessFailed = "HARNESS_FAILED",
        /// The sandbox vanished.
        SandboxLost = "SANDBOX_LOST",
        /// The lease's time was over.
        LeaseExpired = "LEASE_EXPIRED",
        /// The lease was released on request.
        LeaseReleased = "LEASE_RELEASED",
        /// The provider refused to make a sandbox.
        AllocateRefused = "ALLOCATE_REFUSED",
        /// The provider did not make a sandbox in time.
        AllocateTimeout = "ALLOCATE_TIMEOUT",
        /// A credential is missing.
        CredentialsMissing = "CREDENTIALS_MISSING",
        /// No worker or provider made the sandbox ready in time.
        ProvisionTimeout = "PROVISION_TIMEOUT",
        /// The replacement of a lost sandbox was not ready in time.
        RecoveryTimeout = "RECOVERY_TIMEOUT",
        /// Collecting the result failed.
        CollectFailed = "COLLECT_FAILED",
        /// The push of the result branch was refused.
        PushRefused = "PUSH_REFUSED",
        /// The push of the result branch took too long.
        PushTimeout = "PUSH_TIMEOUT",
        /// The conversation was reset.
        Reset = "RESET",
        /// The run was cancelled.
        Cancelled = "CANCELLED",
        /// The run was deleted.
        Deleted = "DELETED",
        /// Our own fault.
        Internal = "INTERNAL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        assert!(Kind::ALL.iter().all(|k| Kind::parse(k.as_str()) == Some(*k)));
        assert!(FailureClass::ALL.iter().all(|c| FailureClass::parse(c.as_str()) == Some(*c)));
        assert!(FailureReason::ALL.iter().all(|r| FailureReason::parse(r.as_str()) == Some(*r)));
        assert_eq!(FailureReason::parse("nonsense"), None);
    }

    #[test]
    fn case_d01_only_a_404_of_a_read_or_delete_is_absence() {
        for status in 300..=599u16 {
            for call in [Call::Read, Call::Delete, Call::Other] {
                let absent = FailureClass::of_status(status, call) == FailureClass::Absent;
                assert_eq!(absent, matches!(status, 404 | 410) && call != Call::Other, "{status} {call:?}");
            }
        }
    }

    #[test]
    fn case_d01_classes_that_wait_and_classes_that_do_not() {
        for (status, transient) in [
            (401, false),
            (402, false),
            (403, false),
            (409, false),
            (400, false),
            (422, false),
            (408, true),
            (429, true),
            (500, true),
            (502, true),
            (503, true),
            (529, true),
        ] {
            assert_eq!(FailureClass::of_status(status, Call::Delete).is_transient(), transient, "{status}");
        }
        for class in [FailureClass::Timeout, FailureClass::Tls, FailureClass::Cut] {
            assert!(class.is_transient());
        }
    }
}
