//! Lifecycle through its gRPC services, in process, on both engines. A case is written once and runs on SQLite and Postgres.

#[path = "lifecycle/callers.rs"]
mod callers;
#[path = "lifecycle/fixture.rs"]
mod fixture;
#[path = "lifecycle/postgres.rs"]
mod postgres;
#[path = "lifecycle/worker.rs"]
mod worker;

#[path = "lifecycle/access_callers.rs"]
mod access_callers;
#[path = "lifecycle/access_keys.rs"]
mod access_keys;
#[path = "lifecycle/access_matrix.rs"]
mod access_matrix;
#[path = "lifecycle/log_append.rs"]
mod log_append;
#[path = "lifecycle/log_messages.rs"]
mod log_messages;
#[path = "lifecycle/log_watch.rs"]
mod log_watch;
#[path = "lifecycle/run_create.rs"]
mod run_create;
#[path = "lifecycle/run_delete.rs"]
mod run_delete;
#[path = "lifecycle/run_list.rs"]
mod run_list;
#[path = "lifecycle/secret_resolve.rs"]
mod secret_resolve;
#[path = "lifecycle/secret_store.rs"]
mod secret_store;
#[path = "lifecycle/store_create.rs"]
mod store_create;
#[path = "lifecycle/store_erase.rs"]
mod store_erase;
#[path = "lifecycle/work_claims.rs"]
mod work_claims;
#[path = "lifecycle/work_expiry.rs"]
mod work_expiry;
#[path = "lifecycle/work_fence.rs"]
mod work_fence;
#[path = "lifecycle/work_path.rs"]
mod work_path;
#[path = "lifecycle/work_races.rs"]
mod work_races;
