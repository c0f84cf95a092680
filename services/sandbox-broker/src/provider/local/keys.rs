//! One lock per sandbox key: a cut create that still runs and the destroy of the same key take turns.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::Mutex as Lock;

/// Locks by key; those nobody holds are forgotten.
#[derive(Default)]
pub(super) struct KeyLocks {
    locks: Mutex<HashMap<String, Weak<Lock<()>>>>,
}

impl KeyLocks {
    /// The lock of `key`.
    pub(super) fn of(&self, key: &str) -> Arc<Lock<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(Lock::new(()));
        locks.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }
}
