//! One file per operation, named by its verb: parse, authorize, act in one transaction, reply. An operation never calls
//! another.

pub(crate) mod append_events;
pub(crate) mod authenticate;
pub(crate) mod cancel_run;
pub(crate) mod check_access;
pub(crate) mod claim;
pub(crate) mod create_key;
pub(crate) mod create_run;
pub(crate) mod delete_run;
pub(crate) mod delete_secret;
pub(crate) mod expire_due;
pub(crate) mod extend;
pub(crate) mod forget_run;
pub(crate) mod get_receipt;
pub(crate) mod get_run;
pub(crate) mod list_keys;
pub(crate) mod list_runs;
pub(crate) mod list_secrets;
pub(crate) mod list_transitions;
pub(crate) mod put_secret;
pub(crate) mod queue_message;
pub(crate) mod read_log;
pub(crate) mod register_assertion_key;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod report_observation;
pub(crate) mod resolve_lease;
pub(crate) mod resolve_secret;
pub(crate) mod retry_deletion;
pub(crate) mod revoke_key;
pub(crate) mod watch_run;
