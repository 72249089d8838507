//! A draft model: a smaller network of the same vocabulary that says what the large one may say next.
//!
//! It has a KV cache of its own, with prefix cache, and follows a sequence as far as somebody asks for guesses: a sequence
//! that is never guessed costs it nothing, one whose prompt is known costs it only the rest. Blocks are named as those of the
//! large model are; the two caches never meet.
//!
//! It chooses with the sequence's own sampler, hence with the random number that the large model will be sampled with. The
//! more the two distributions agree the more often the two draws do, at any temperature; a draft model that is the large one
//! is right, but for draws on a border where the large one's device draws by itself.

use super::acceptance::{Acceptance, Class, Guess};
use super::costs::StepCosts;
use crate::block_manager::{BlockManager, BlockTable};
use crate::scheduler::{Scheduler, SequenceId};
use crate::{BlockChain, LogitsBuffer, Runner, RunnerError, RunnerLimits, Sampler, Scratch, TokenLogprobs};
use std::collections::HashMap;
use std::time::Instant;
use taper_models::{LogitRows, SequenceSlice};

/// A sequence for which guesses are wanted.
pub(crate) struct Wish<'a> {
    pub(crate) id: SequenceId,
    /// All its known tokens.
    pub(crate) tokens: &'a [u32],
    pub(crate) sampler: Sampler,
    pub(crate) acceptance: &'a Acceptance,
    /// Most guesses.
    pub(crate) max_len: usize,
}

/// When one more round of guesses is worth its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Worth {
    /// Tokens per second that the step is expected to reach with the rounds that are planned.
    pub(crate) speed: f64,
    /// Seconds that the large model takes to verify a guess.
    pub(crate) row_s: f64,
}

/// The draft model and what it knows.
pub(crate) struct Drafter {
    runner: Box<dyn Runner>,
    limits: RunnerLimits,
    /// Token ids of the large model are below it.
    vocab_size: usize,
    blocks: BlockManager,
    known: HashMap<SequenceId, Known>,
    costs: StepCosts,
    logits: LogitsBuffer,
}

/// What the draft model knows of a sequence.
#[derive(Default)]
struct Known {
    table: BlockTable,
    /// Tokens whose keys and values lie in the table. Guesses among them that turned out wrong are cut off later.
    tokens: Vec<u32>,
    num_published: usize,
}

/// A wish that is being granted.
struct Round<'a> {
    wish: Wish<'a>,
    guess: Guess,
    /// The probability that all guesses so far are right.
    chance: f64,
}

impl Drafter {
    /// Follows sequences of a model with `vocab_size` logits by means of `runner`.
    pub(crate) fn new(runner: Box<dyn Runner>, vocab_size: usize) -> Self {
        let limits = runner.limits();
        Drafter {
            runner,
            limits,
            vocab_size,
            blocks: BlockManager::new(limits.num_blocks, limits.block_size),
            known: HashMap::new(),
            costs: StepCosts::default(),
            logits: LogitsBuffer::new(limits.vocab_size),
        }
    }

    /// What steps of the draft model take.
    pub(crate) fn costs(&self) -> &StepCosts {
        &self.costs
    }

    /// Tokens of a sequence that it would have to compute before its first guess.
    pub(crate) fn num_missing(&self, id: SequenceId, tokens: &[u32]) -> usize {
        tokens.len() - self.known.get(&id).map_or(0, |known| known.agreed(tokens))
    }

    /// Forgets a sequence. What it computed of its full blocks stays in the prefix cache.
    pub(crate) fn forget(&mut self, id: SequenceId) {
        if let Some(mut known) = self.known.remove(&id) {
            self.blocks.release(&mut known.table);
        }
    }

    /// Guesses for each wish, in the order of the wishes. At most `max_catch_up` tokens that are known already are computed
    /// first; a sequence that lacks more gets no guess this time. Without `worth` there is one guess each.
    pub(crate) fn guess(
        &mut self,
        wishes: Vec<Wish<'_>>,
        max_catch_up: usize,
        worth: Option<Worth>,
        scheduler: &Scheduler,
        scratch: &mut Scratch,
    ) -> Result<Vec<(SequenceId, Guess)>, RunnerError> {
        let mut rounds: Vec<Round<'_>> = Vec::with_capacity(wishes.len());
        // A sequence that is followed lacks a token or two.
        let mut rows_left = max_catch_up.saturating_add(2 * wishes.len()).min(self.limits.max_rows);
        let mut slices: Vec<(SequenceId, &[u32])> = Vec::with_capacity(wishes.len());
        for wish in wishes {
            let Some(num_missing) = self.prepare(&wish, scheduler) else { continue };
            let begin = wish.tokens.len() - num_missing;
            let missing = &wish.tokens[begin..][..num_missing.min(rows_left)];
            if missing.is_empty() || rounds.len() == self.limits.max_logit_rows {
                continue;
            }
            rows_left -= missing.len();
            slices.push((wish.id, missing));
            if missing.len() == num_missing {
                rounds.push(Round { wish, guess: Guess::default(), chance: 1.0 });
            }
        }
        let guessing: Vec<SequenceId> = rounds.iter().map(|round| round.wish.id).collect();
        self.compute(&slices, &guessing)?;
        for &(id, _) in &slices {
            self.publish(id, scheduler);
        }
        loop {
            // The rows of logits are those of the sequences that go on, in order.
            for (row, round) in rounds.iter_mut().filter(|round| round.goes_on()).enumerate() {
                round.choose(self.logits.row(row), self.vocab_size, scratch);
            }
            let next = worth.map(|worth| self.worth_another(&mut rounds, worth)).unwrap_or_default();
            if next.is_empty() {
                return Ok(rounds.into_iter().map(|round| (round.wish.id, round.guess)).collect());
            }
            let slices: Vec<(SequenceId, &[u32])> = next.iter().map(|(id, token)| (*id, token.as_slice())).collect();
            let guessing: Vec<SequenceId> = next.iter().map(|&(id, _)| id).collect();
            self.compute(&slices, &guessing)?;
        }
    }

    /// The sequences that should be guessed once more, with their latest guesses; none when that would not pay.
    fn worth_another(&self, rounds: &mut [Round<'_>], worth: Worth) -> Vec<(SequenceId, [u32; 1])> {
        for round in rounds.iter_mut().filter(|round| round.goes_on()) {
            // A guess that costs more to verify than it is likely to bring ends its sequence's guesses.
            if round.next_chance() < worth.row_s * worth.speed {
                round.wish.max_len = round.guess.tokens.len();
            }
        }
        let active = || rounds.iter().filter(|round| round.goes_on());
        let (num, gain) = active().fold((0, 0.0), |(num, gain), round| (num + 1, gain + round.next_chance()));
        if num == 0 || gain < (self.costs.seconds(num) + worth.row_s * num as f64) * worth.speed {
            return Vec::new();
        }
        active().filter_map(|round| Some((round.wish.id, [*round.guess.tokens.last()?]))).collect()
    }

    /// Makes sure that a sequence has blocks for its known tokens and the guesses after them. Returns how many of the known
    /// ones have to be computed; none when the draft model cannot follow it.
    fn prepare(&mut self, wish: &Wish<'_>, scheduler: &Scheduler) -> Option<usize> {
        let Wish { id, tokens, max_len, .. } = *wish;
        let needed = tokens.len() + max_len;
        if needed > self.limits.context_len {
            return None;
        }
        if !self.known.contains_key(&id) {
            let known = self.begin(scheduler.chain(id));
            self.known.insert(id, known);
        }
        let known = self.known.get_mut(&id).expect("it is there by now");
        let num_agreed = known.agreed(tokens);
        known.tokens.truncate(num_agreed);
        let is_within = |&token: &u32| (token as usize) < self.limits.vocab_size;
        let can_follow = tokens[num_agreed..].iter().all(is_within) && self.blocks.grow(&mut known.table, needed);
        if !can_follow {
            self.forget(id);
        }
        can_follow.then_some(tokens.len() - num_agreed)
    }

    /// What the prefix cache has of a sequence.
    fn begin(&mut self, chain: &BlockChain) -> Known {
        let mut known = Known::default();
        for name in chain.cacheable() {
            if !self.blocks.share(&mut known.table, name) {
                break;
            }
            known.num_published += 1;
        }
        known.tokens = chain.tokens()[..known.num_published * self.limits.block_size].to_vec();
        known
    }

    /// Computes tokens of sequences; the logits of the last token of those in `guessing` are then in `self.logits`.
    fn compute(&mut self, contents: &[(SequenceId, &[u32])], guessing: &[SequenceId]) -> Result<(), RunnerError> {
        self.logits.clear();
        if contents.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        let known = &self.known;
        let slices: Vec<SequenceSlice<'_>> = contents
            .iter()
            .map(|(id, tokens)| SequenceSlice {
                tokens,
                start: known[id].tokens.len(),
                block_table: known[id].table.as_slice(),
                logits: if guessing.contains(id) { LogitRows::Last } else { LogitRows::None },
            })
            .collect();
        self.runner.run(&slices, &mut self.logits)?;
        if self.logits.num_rows() != guessing.len() {
            let (got, due) = (self.logits.num_rows(), guessing.len());
            return Err(RunnerError(format!("{got} rows of logits where {due} were due")));
        }
        let num_rows = contents.iter().map(|(_, tokens)| tokens.len()).sum();
        for (id, tokens) in contents {
            self.known.get_mut(id).expect("looked up above").tokens.extend_from_slice(tokens);
        }
        self.costs.observe(num_rows, begin.elapsed().as_secs_f64());
        Ok(())
    }

    /// Gives the full blocks of known tokens their names.
    fn publish(&mut self, id: SequenceId, scheduler: &Scheduler) {
        let known = self.known.get_mut(&id).expect("only sequences that were followed are published");
        let chain = scheduler.chain(id);
        let num_full = (known.tokens.len() / self.limits.block_size).min(chain.names().len());
        for index in known.num_published..num_full {
            self.blocks.publish(&known.table, index, chain.block(index));
        }
        known.num_published = known.num_published.max(num_full);
    }
}

impl Known {
    /// How many tokens of a sequence need not be computed. The last one does, for its logits.
    fn agreed(&self, tokens: &[u32]) -> usize {
        let pairs = self.tokens.iter().zip(&tokens[..tokens.len() - 1]);
        pairs.take_while(|(known, token)| known == token).count()
    }
}

impl Round<'_> {
    fn goes_on(&self) -> bool {
        self.guess.tokens.len() < self.wish.max_len
    }

    /// The probability that one more guess would be right.
    fn next_chance(&self) -> f64 {
        self.chance * self.wish.acceptance.drafted()
    }

    /// Guesses a token from the draft model's logits. Logits that no token can be chosen from end the guesses.
    fn choose(&mut self, logits: &[f32], vocab_size: usize, scratch: &mut Scratch) {
        let logits = &logits[..logits.len().min(vocab_size)];
        let sampled = self.wish.sampler.sample(logits, None, scratch);
        let chosen = sampled.and_then(|sampled| Ok((TokenLogprobs::new(logits, sampled.token, 0)?, sampled.surprise)));
        let Ok((TokenLogprobs { token, logprob, .. }, surprise)) = chosen else {
            self.wish.max_len = self.guess.tokens.len();
            return;
        };
        let class = Class::drafted(f64::from(logprob).exp());
        self.guess.tokens.push(token);
        self.guess.classes.push(class);
        self.chance *= self.wish.acceptance.of(class);
        self.wish.sampler.accept(token, surprise);
    }
}
