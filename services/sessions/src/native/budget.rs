//! What a run may spend on its model: turns and tokens. The wall clock is a timer around the turn.

use berth_domain::failure::FailureReason;
use berth_rpc::lifecycle::{SessionWork, Usage};

/// Spent so far, and the limits. Zero limits do not bind.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    turns: i64,
    max_turns: i64,
    tokens: i64,
    max_tokens: i64,
}

impl Budget {
    /// With what earlier launches spent.
    pub(crate) fn of(work: &SessionWork) -> Self {
        Self {
            turns: i64::from(work.turns_used),
            max_turns: i64::from(work.max_turns),
            tokens: work.usage.as_ref().map_or(0, tokens),
            max_tokens: work.budget.as_ref().map_or(0, |budget| budget.max_tokens),
        }
    }

    /// Counts one reply.
    pub(crate) fn spend(&mut self, usage: &Usage) {
        self.turns += 1;
        self.tokens += tokens(usage);
    }

    /// Why there may be no further model call.
    pub(crate) fn exhausted(&self) -> Option<(FailureReason, String)> {
        if self.max_turns > 0 && self.turns >= self.max_turns {
            return Some((FailureReason::BudgetTurns, format!("all {} turns are used up", self.max_turns)));
        }
        if self.max_tokens > 0 && self.tokens >= self.max_tokens {
            let text = format!("{} tokens are used, {} were allowed", self.tokens, self.max_tokens);
            return Some((FailureReason::BudgetTokens, text));
        }
        None
    }
}

/// Input, cached or not, plus output.
fn tokens(usage: &Usage) -> i64 {
    usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens + usage.output_tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_s11_turns_and_tokens_end_with_a_reason_earlier_launches_counted() {
        let used = Usage { input_tokens: 50, output_tokens: 10, ..Usage::default() };
        let limits = berth_rpc::lifecycle::Budget { max_tokens: 100, wall_clock: None };
        let work = SessionWork {
            max_turns: 3,
            turns_used: 1,
            usage: Some(used),
            budget: Some(limits),
            ..SessionWork::default()
        };
        let mut budget = Budget::of(&work);
        assert_eq!(budget.exhausted(), None);
        budget.spend(&Usage { input_tokens: 20, cache_read_input_tokens: 19, ..Usage::default() });
        assert_eq!(budget.exhausted(), None);
        let mut by_tokens = budget.clone();
        by_tokens.tokens += 1;
        assert_eq!(by_tokens.exhausted().unwrap().0, FailureReason::BudgetTokens);
        budget.spend(&Usage::default());
        assert_eq!(budget.exhausted().unwrap().0, FailureReason::BudgetTurns);
    }

    #[test]
    fn no_limit_does_not_bind() {
        let mut budget = Budget::of(&SessionWork::default());
        budget.spend(&Usage { input_tokens: i64::from(i32::MAX), ..Usage::default() });
        assert_eq!(budget.exhausted(), None);
    }
}
