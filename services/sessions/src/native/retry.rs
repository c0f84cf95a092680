//! When a failed model call is made again, and after how long. Pure; the rules are those of the vendor's SDK with ceilings on top.

use std::time::Duration;

use crate::config::RetryLimits;

/// What an answer said about trying again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    /// By status, or `x-should-retry` when the answer carried it.
    pub(crate) retry: bool,
    /// `retry-after-ms` or `retry-after`.
    pub(crate) after: Option<Duration>,
}

/// What to do about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Make the same call again after this long.
    Wait(Duration),
    /// No more tries; the answer asked to wait this long, if it said.
    GiveUp(Option<Duration>),
}

/// Whether a status is worth another try when nothing else is said.
pub(crate) fn retryable(status: u16) -> bool {
    matches!(status, 408 | 409 | 429 | 500..)
}

/// The patience left for one model call.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    limits: &'a RetryLimits,
    retries: u32,
    waited: Duration,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(limits: &'a RetryLimits) -> Self {
        Self { limits, retries: 0, waited: Duration::ZERO }
    }

    /// Judges one failure. `jitter` in 0..1 takes up to a quarter off a wait of our own; one the answer asked for is kept.
    pub(crate) fn judge(&mut self, advice: Advice, jitter: f64) -> Verdict {
        let limits = self.limits;
        let wait = advice.after.unwrap_or_else(|| {
            let doubled = limits.first.saturating_mul(1_u32.checked_shl(self.retries).unwrap_or(u32::MAX));
            doubled.min(limits.cap).mul_f64(1.0 - 0.25 * jitter.clamp(0.0, 1.0))
        });
        let affordable = wait <= limits.longest_wait && self.waited + wait <= limits.total_wait;
        if !advice.retry || self.retries >= limits.retries || !affordable {
            return Verdict::GiveUp(advice.after);
        }
        self.retries += 1;
        self.waited += wait;
        Verdict::Wait(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn try_again(after: Option<Duration>) -> Advice {
        Advice { retry: true, after }
    }

    #[test]
    fn case_n03_backoff_honours_retry_after() {
        let limits = RetryLimits::default();
        let mut patience = Patience::new(&limits);
        assert_eq!(patience.judge(try_again(Some(SECOND * 7)), 1.0), Verdict::Wait(SECOND * 7));
    }

    #[test]
    fn case_n03_own_waits_double_up_to_the_cap_less_jitter() {
        let limits = RetryLimits::default();
        let mut patience = Patience::new(&limits);
        for expected in [500, 1000, 2000, 4000, 8000, 8000] {
            assert_eq!(patience.judge(try_again(None), 0.0), Verdict::Wait(Duration::from_millis(expected)));
        }
        assert_eq!(patience.judge(try_again(None), 1.0), Verdict::Wait(SECOND * 6));
    }

    #[test]
    fn waits_have_a_ceiling_each_and_in_sum() {
        let limits = RetryLimits { retries: 100, ..RetryLimits::default() };
        let mut patience = Patience::new(&limits);
        assert_eq!(patience.judge(try_again(Some(SECOND * 61)), 0.0), Verdict::GiveUp(Some(SECOND * 61)));
        for _ in 0..5 {
            assert_eq!(patience.judge(try_again(Some(SECOND * 60)), 0.0), Verdict::Wait(SECOND * 60));
        }
        assert_eq!(patience.judge(try_again(Some(SECOND)), 0.0), Verdict::GiveUp(Some(SECOND)));
    }

    #[test]
    fn tries_are_counted_and_a_definite_refusal_ends_them() {
        let limits = RetryLimits { retries: 1, ..RetryLimits::default() };
        let mut patience = Patience::new(&limits);
        assert_eq!(patience.judge(Advice { retry: false, after: None }, 0.0), Verdict::GiveUp(None));
        assert!(matches!(patience.judge(try_again(None), 0.0), Verdict::Wait(_)));
        assert_eq!(patience.judge(try_again(None), 0.0), Verdict::GiveUp(None));
    }

    #[test]
    fn statuses_by_the_vendors_table() {
        for (status, retry) in [
            (400, false),
            (401, false),
            (403, false),
            (404, false),
            (413, false),
            (408, true),
            (409, true),
            (429, true),
            (500, true),
            (503, true),
            (504, true),
            (529, true),
        ] {
            assert_eq!(retryable(status), retry, "{status}");
        }
    }
}
