//! What travels on the bus.
//!
//! | hint | published by | read by | meaning |
//! |---|---|---|---|
//! | `Work(queue)` | lifecycle, after commit | lifecycle's Claim | a row of this queue may be due |
//! | `Run{run_id, change_seq}` | lifecycle, after commit | WatchRun | the run changed |
//! | `Event(event)` | lifecycle, after commit | sessions' StreamEvents | the log has grown by this event |

use berth_rpc::lifecycle::Event;

/// A queue of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Leases: sandbox-broker.
    Lease,
    /// Sessions: sessions.
    Session,
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub enum Hint {
    /// A row of this queue may be due.
    Work(Queue),
    /// The run changed.
    Run {
        /// Which run.
        run_id: String,
        /// Its cursor after the change.
        change_seq: i64,
    },
    /// The log has grown.
    Event(Box<Event>),
}
