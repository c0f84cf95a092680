//! The store's clock: the database's on Postgres, so that all replicas judge by one, and the host's on SQLite.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_domain::time::Time;

use super::{
    StoreError,
    engine::{Engine, Tx},
};

/// A clock that can be set forward, so that tests need not wait for deadlines. Clones share the setting.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    ahead: Arc<AtomicI64>,
}

impl Clock {
    /// From now on everything is judged this much later.
    pub fn advance(&self, by: Duration) {
        self.ahead.fetch_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// The moment now, inside a transaction.
    pub(crate) async fn now(&self, tx: &mut Tx) -> Result<Time, StoreError> {
        let base = match tx.engine() {
            Engine::Sqlite => host_now(),
            Engine::Postgres => {
                let row = tx
                    .row("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now", vec![])
                    .await?
                    .ok_or_else(|| StoreError::Unknown("the database told no time".to_owned()))?;
                row.int("now")?
            }
        };
        Ok(Time(base + self.ahead.load(Ordering::SeqCst)))
    }
}

fn host_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
