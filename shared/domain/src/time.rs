//! Points in time as the database stores them, and the backoff between attempts.
//!
//! Must not live here: a clock. Every function is told what time it is.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub i64);

impl Time {
    /// This moment plus `duration`, saturating at the end of time.
    pub fn plus(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// How long ago `earlier` was; zero when it lies in the future.
    pub fn since(self, earlier: Time) -> Duration {
        let micros = self.0.saturating_sub(earlier.0).max(0);
        Duration::from_micros(micros.unsigned_abs())
    }
}

/// A wait that doubles with every attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Backoff {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest wait.
    pub cap: Duration,
}

impl Backoff {
    /// The wait after failure number `attempt` (from 1): doubled each time up to `cap`, of which the upper half is jitter drawn
    /// from `seed` (the row's id), so that it stays pure. A provider's own `retry_after` is honoured when it asks for more, up to an hour.
    pub fn wait(&self, attempt: u32, seed: &str, retry_after: Option<Duration>) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.cap);
        let half = full / 2;
        let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
        let jittered = half + Duration::from_micros(hash(seed, attempt) % spread);
        let asked = retry_after.unwrap_or_default().min(Duration::from_secs(3600));
        jittered.max(asked)
    }
}

/// FNV-1a: stable across versions and platforms, which the standard hasher does not promise.
fn hash(seed: &str, attempt: u32) -> u64 {
    let bytes = seed.bytes().chain(attempt.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |acc, byte| (acc ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_saturates() {
        assert_eq!(Time(i64::MAX).plus(SECOND), Time(i64::MAX));
        assert_eq!(Time(5).since(Time(9)), Duration::ZERO);
        assert_eq!(Time(2_000_000).since(Time(1_000_000)), SECOND);
    }

    #[test]
    fn backoff_doubles_between_half_and_full_and_stops_at_the_cap() {
        let backoff = Backoff { first: SECOND, cap: SECOND * 300 };
        for attempt in 1..60 {
            let full = SECOND.saturating_mul(1 << (attempt - 1).min(20)).min(backoff.cap);
            let wait = backoff.wait(attempt, "lease-a", None);
            assert!(wait >= full / 2 && wait <= full, "{attempt}: {wait:?}");
            assert_eq!(wait, backoff.wait(attempt, "lease-a", None));
        }
    }

    #[test]
    fn case_n03_backoff_honours_retry_after() {
        let backoff = Backoff { first: SECOND, cap: SECOND * 300 };
        assert_eq!(backoff.wait(1, "lease-a", Some(SECOND * 40)), SECOND * 40);
        assert_eq!(backoff.wait(1, "lease-a", Some(SECOND * 1_000_000)), SECOND * 3600);
    }
}
