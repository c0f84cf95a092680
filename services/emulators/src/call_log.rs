//! The record of requests an emulator received, bounded by number and by bytes; the oldest go first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// At most this many calls are kept.
const MAX_CALLS: usize = 2_000;
/// At most this many body bytes are kept over all calls.
pub(crate) const MAX_BYTES: usize = 32 * 1024 * 1024;

/// A bounded, shared list of calls in the order they were decided.
#[derive(Debug)]
pub(crate) struct CallLog<T> {
    kept: Mutex<Kept<T>>,
}

#[derive(Debug)]
struct Kept<T> {
    calls: VecDeque<(Arc<T>, usize)>,
    bytes: usize,
    dropped: u64,
}

/// What the log holds at one moment.
pub(crate) struct Snapshot<T> {
    /// Oldest first.
    pub(crate) calls: Vec<Arc<T>>,
    /// How many older calls no longer fit.
    pub(crate) dropped: u64,
}

impl<T> CallLog<T> {
    pub(crate) fn new() -> Self {
        Self { kept: Mutex::new(Kept { calls: VecDeque::new(), bytes: 0, dropped: 0 }) }
    }

    /// Appends a call that weighs `bytes`, and lets go of the oldest until everything fits.
    pub(crate) fn push(&self, call: T, bytes: usize) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.calls.push_back((Arc::new(call), bytes));
        kept.bytes += bytes;
        while kept.calls.len() > MAX_CALLS || (kept.bytes > MAX_BYTES && kept.calls.len() > 1) {
            if let Some((_, freed)) = kept.calls.pop_front() {
                kept.bytes -= freed;
                kept.dropped += 1;
            }
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot<T> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Snapshot { calls: kept.calls.iter().map(|(call, _)| call.clone()).collect(), dropped: kept.dropped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_within_both_bounds() {
        let log = CallLog::new();
        for number in 0..MAX_CALLS + 5 {
            log.push(number, 1);
        }
        let snapshot = log.snapshot();
        assert_eq!((snapshot.calls.len(), snapshot.dropped), (MAX_CALLS, 5));
        assert_eq!(*snapshot.calls[0], 5);

        log.push(7, MAX_BYTES);
        let snapshot = log.snapshot();
        assert_eq!(snapshot.calls.iter().map(|call| **call).collect::<Vec<_>>(), [7]);
    }
}
