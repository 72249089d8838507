//! How prompts share a step.

use super::{Budget, KnownRows, Rank, Scheduler, Step, StepEntry, StepLimits};

/// Rows of a short prompt that are not worth a step of their own: who waits for it waits a whole step longer for each.
const LEAST_PART: usize = 8;

/// Of the tokens that all short prompts lack a step computes at least one in so many: the more wait, the faster they go.
const BACKLOG_STEPS: usize = 32;

impl Scheduler {
    /// Gives the rows that are left to the running sequences that are not in the step: those whose prompts are not computed.
    pub(super) fn schedule_prompts(&mut self, limits: StepLimits, step: &mut Step, budget: &mut Budget) {
        let mut prompts: Vec<(Rank, usize)> = Vec::new();
        for &rank in &self.running {
            if step.entries.iter().all(|entry| entry.sequence != rank.1) && !step.exhausted.contains(&rank.1) {
                prompts.push((rank, 0));
            }
        }
        let pending = |rank: &Rank| self.sequences[&rank.1].pending();
        let (num_prompts, num_decoding) = (prompts.len(), step.entries.len());
        let num_pending: usize = prompts.iter().map(|(rank, _)| pending(rank)).sum();
        let others_decode = num_decoding > 0;
        if others_decode {
            budget.rows = budget.rows.min(limits.prompt_tokens.max(1));
        }
        let each_fits = others_decode && prompts.iter().all(|(rank, _)| pending(rank) <= budget.rows);
        let Some((first, rows)) = prompts.first_mut() else { return };
        if each_fits {
            let all = pending(first);
            let backlog = num_prompts.max(num_pending / BACKLOG_STEPS);
            let least = LEAST_PART.max(backlog).max(all.min(self.sequences[&first.1].least_part));
            // A row of a prompt takes no longer than one that decodes: half as many as those are half as long again.
            let part = limits.short_prompts.max(num_decoding / 2).max(least);
            // Less than half a part is not left for a step of its own.
            let is_whole = all.saturating_sub(part) < part.div_ceil(2);
            budget.rows = budget.rows.min(if is_whole { part.max(all) } else { part });
            *rows = all.min(budget.rows);
        } else {
            *rows = budget.rows.div_ceil(2).min(pending(first));
        }
        let mut left = budget.rows - *rows;
        let mut by_what_is_left: Vec<usize> = (0..prompts.len()).collect();
        by_what_is_left.sort_by_key(|&place| self.sequences[&prompts[place].0.1].pending());
        for place in by_what_is_left {
            let (rank, rows) = &mut prompts[place];
            let more = (self.sequences[&rank.1].pending() - *rows).min(left);
            *rows += more;
            left -= more;
        }
        for (rank, rows) in prompts {
            self.schedule_prompt(rank, rows, step, budget);
        }
    }

    fn schedule_prompt(&mut self, rank: Rank, rows: usize, step: &mut Step, budget: &mut Budget) {
        let state = &self.sequences[&rank.1];
        // It may have been preempted for the sake of another a moment ago.
        if !state.is_running {
            return;
        }
        let mut len = rows;
        let all_logits = state.rows == KnownRows::AllLogits;
        if all_logits {
            len = len.min(budget.logit_rows);
        } else if budget.logit_rows == 0 && len == state.pending() {
            // Its last token would need a row of logits, or stands for one where a hidden state is wanted.
            len -= 1;
        }
        if len == 0 {
            return;
        }
        let logit_rows = if all_logits { len } else { usize::from(len == state.pending()) };
        let tokens = state.num_computed..state.num_computed + len;
        // A prompt has had its blocks since it was admitted; tokens that a grammar forced may need more.
        if self.make_room(rank, tokens.clone(), step, budget) {
            Self::take(step, budget, StepEntry { sequence: rank.1, tokens, num_guesses: 0 }, logit_rows);
        }
    }
}
