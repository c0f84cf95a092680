//! The bus: hints that something changed. The database is the truth; a reader notices a gap by sequence and fills it from
//! lifecycle (law 4). Nothing here is durable, ordered or complete by promise.

mod channels;

pub use channels::{Hint, Queue};

use std::sync::Arc;

use tokio::sync::broadcast;

/// Hints a subscriber may fall behind before it is told `Lagged`.
const BACKLOG: usize = 4096;

/// Publishes to everyone in this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Bus {
    sender: broadcast::Sender<Arc<Hint>>,
}

impl Default for Bus {
    fn default() -> Self {
        Self::in_process()
    }
}

impl Bus {
    /// A bus within this process.
    pub fn in_process() -> Self {
        Self { sender: broadcast::channel(BACKLOG).0 }
    }

    /// Never waits and never fails: without subscribers the hint is gone, which is allowed.
    pub fn publish(&self, hint: Hint) {
        let _ = self.sender.send(Arc::new(hint));
    }

    /// Everything published from now on.
    pub fn subscribe(&self) -> Subscription {
        Subscription { receiver: self.sender.subscribe() }
    }
}

/// One subscriber's place.
#[derive(Debug)]
pub struct Subscription {
    receiver: broadcast::Receiver<Arc<Hint>>,
}

/// What a subscriber receives.
#[derive(Clone, Debug)]
pub enum Received {
    /// A hint.
    Hint(Arc<Hint>),
    /// This many hints were dropped: ask lifecycle what was missed.
    Lagged(u64),
    /// The bus is gone; poll from now on.
    Closed,
}

impl Subscription {
    /// Waits for the next hint. Cancel-safe.
    pub async fn next(&mut self) -> Received {
        match self.receiver.recv().await {
            Ok(hint) => Received::Hint(hint),
            Err(broadcast::error::RecvError::Lagged(missed)) => Received::Lagged(missed),
            Err(broadcast::error::RecvError::Closed) => Received::Closed,
        }
    }

    /// Waits until a hint satisfies `wanted`, or one may have been missed; returns then. Waits for ever on a closed bus, so
    /// that callers race it against their poll interval.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&Hint) -> bool) {
        loop {
            match self.next().await {
                Received::Hint(hint) if wanted(&hint) => return,
                Received::Hint(_) => {}
                Received::Lagged(_) => return,
                Received::Closed => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_subscriber_is_told() {
        let bus = Bus::in_process();
        let mut slow = bus.subscribe();
        for _ in 0..BACKLOG + 10 {
            bus.publish(Hint::Work(Queue::Lease));
        }
        assert!(matches!(slow.next().await, Received::Lagged(10)));
        assert!(matches!(slow.next().await, Received::Hint(_)));
    }

    #[tokio::test]
    async fn hints_reach_every_subscriber_in_order() {
        let bus = Bus::in_process();
        let (mut a, mut b) = (bus.subscribe(), bus.subscribe());
        for seq in 1..=3 {
            bus.publish(Hint::Run { run_id: "run-1".into(), change_seq: seq });
        }
        for subscriber in [&mut a, &mut b] {
            for expected in 1..=3 {
                let Received::Hint(hint) = subscriber.next().await else { panic!("expected a hint") };
                assert!(matches!(&*hint, Hint::Run { change_seq, .. } if *change_seq == expected));
            }
        }
    }
}
