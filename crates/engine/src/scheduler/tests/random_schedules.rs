//! Whole lives of many clients at random: arrivals, answers, guesses, forks, priorities, departures.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};

#[derive(Debug, Clone)]
struct Client {
    arrives: usize,
    /// Prompts of one kind begin alike.
    kind: u32,
    prompt_len: usize,
    answer_len: usize,
    leaves: Option<usize>,
    priority: i32,
    /// Choices beyond the first.
    forks: usize,
    guesses: usize,
    rows: KnownRows,
    /// Nothing follows the prompt, as when an embedding is wanted.
    ends_with_prompt: bool,
}

#[derive(Debug, Clone)]
struct World {
    config: SchedulerConfig,
    limits: StepLimits,
    num_blocks: usize,
    block_size: usize,
    clients: Vec<Client>,
}

fn client(priorities: std::ops::Range<i32>) -> impl Strategy<Value = Client> {
    let lens = (0usize..60, 0u32..3, 1usize..50, 1usize..60);
    let rows = prop_oneof![
        8 => Just(KnownRows::Last),
        1 => Just(KnownRows::AllLogits),
        1 => Just(KnownRows::AllHidden),
    ];
    let ends = prop::bool::weighted(0.1);
    let manners = (prop::option::weighted(0.3, 0usize..200), priorities, 0usize..3, 0usize..4, (rows, ends));
    (lens, manners).prop_map(
        |((arrives, kind, prompt_len, answer_len), (leaves, priority, forks, guesses, (rows, ends)))| {
            let ends_with_prompt = ends || rows == KnownRows::AllHidden;
            let guesses = if ends_with_prompt { 0 } else { guesses };
            Client { arrives, kind, prompt_len, answer_len, leaves, priority, forks, guesses, rows, ends_with_prompt }
        },
    )
}

fn world(priorities: std::ops::Range<i32>) -> impl Strategy<Value = World> {
    let clients = prop::collection::vec(client(priorities), 1..24);
    let config = (1usize..9, 0usize..30, 0usize..20);
    let limits =
        (1usize..40, 1usize..40).prop_map(|(prompt_tokens, short_prompts)| StepLimits { prompt_tokens, short_prompts });
    (config, limits, 4usize..40, 1usize..9, clients, 0usize..8).prop_map(
        |((max_batch, spare, spare_logits), limits, num_blocks, block_size, mut clients, patience)| {
            clients.sort_by_key(|client| client.arrives);
            let max_logit_rows = max_batch + spare_logits;
            let config = SchedulerConfig { max_batch, token_budget: max_batch + spare, max_logit_rows, patience };
            World { config, limits, num_blocks, block_size, clients }
        },
    )
}

/// What the test knows of a sequence, kept apart from the scheduler's own books.
#[derive(Debug, Clone)]
struct Ledger {
    client: usize,
    tokens: Vec<u32>,
    last: usize,
    guesses: Vec<u32>,
    has_forked: bool,
}

/// The life of a world: the scheduler, the books, and a memory that is written as a backend writes it.
struct Life<'a> {
    world: &'a World,
    scheduler: Scheduler,
    ledgers: BTreeMap<SequenceId, Ledger>,
    /// How often somebody who came later began while a sequence waited for nothing but room.
    passed: BTreeMap<SequenceId, usize>,
    memory: Vec<Vec<Option<u32>>>,
    num_ids: u64,
    num_ended: usize,
    random: u32,
}

impl Life<'_> {
    fn new(world: &World) -> Life<'_> {
        let blocks = BlockManager::new(world.num_blocks, world.block_size);
        Life {
            world,
            scheduler: Scheduler::new(world.config, blocks),
            ledgers: BTreeMap::new(),
            passed: BTreeMap::new(),
            memory: vec![vec![None; world.block_size]; world.num_blocks],
            num_ids: 0,
            num_ended: 0,
            random: 1,
        }
    }

    /// A number below `bound`.
    fn draw(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.random >> 16) % bound
    }

    fn new_id(&mut self) -> SequenceId {
        self.num_ids += 1;
        SequenceId(self.num_ids)
    }

    fn arrive(&mut self, number: usize) {
        let client = &self.world.clients[number];
        let tokens: Vec<u32> =
            (0..client.prompt_len as u32).map(|i| if i < 20 { i } else { 100 * client.kind + i }).collect();
        let last = client.prompt_len + client.answer_len;
        let (priority, rows) = (client.priority, client.rows);
        let id = self.new_id();
        let chain = BlockChain::new(root(), self.scheduler.blocks().block_size(), tokens.clone());
        self.scheduler.add(id, Arrival { chain, priority, rows });
        self.ledgers.insert(id, Ledger { client: number, tokens, last, guesses: Vec::new(), has_forked: false });
    }

    fn leave(&mut self, number: usize) {
        let ids: Vec<SequenceId> =
            self.ledgers.iter().filter(|(_, ledger)| ledger.client == number).map(|(&id, _)| id).collect();
        for id in ids {
            self.end(id);
        }
    }

    fn end(&mut self, id: SequenceId) {
        self.scheduler.remove(id);
        self.ledgers.remove(&id);
        self.num_ended += 1;
    }

    fn guess(&mut self) {
        let ids: Vec<SequenceId> = self.ledgers.keys().copied().collect();
        for id in ids {
            let num_guesses = self.world.clients[self.ledgers[&id].client].guesses;
            let ledger = &self.ledgers[&id];
            let num_guesses = num_guesses.min(ledger.last - ledger.tokens.len() - 1);
            let guesses: Vec<u32> = (0..num_guesses).map(|_| self.draw(3)).collect();
            self.ledgers.get_mut(&id).unwrap().guesses = guesses;
            self.scheduler.set_guesses(id, num_guesses);
        }
    }

    /// Copies and stores as the step says, then checks that every entry's past is what it should be.
    fn run(&mut self, step: &Step) {
        for &BlockCopy { from, to } in &step.copies {
            self.memory[to as usize] = self.memory[from as usize].clone();
        }
        let size = self.world.block_size;
        let token_at = |ledger: &Ledger, position: usize| {
            ledger.tokens.get(position).copied().unwrap_or_else(|| ledger.guesses[position - ledger.tokens.len()])
        };
        for entry in &step.entries {
            let table = self.scheduler.block_table(entry.sequence);
            for position in entry.tokens.clone() {
                let token = token_at(&self.ledgers[&entry.sequence], position);
                self.memory[table[position / size] as usize][position % size] = Some(token);
            }
        }
        for entry in &step.entries {
            let table = self.scheduler.block_table(entry.sequence);
            for position in 0..entry.tokens.end {
                let stored = self.memory[table[position / size] as usize][position % size];
                let token = token_at(&self.ledgers[&entry.sequence], position);
                assert_eq!(stored, Some(token), "{:?} at {position}", entry.sequence);
            }
        }
    }

    /// `first` was the first in rank when the step was decided.
    fn check(&self, step: &Step, first: Option<SequenceId>) {
        let World { config, .. } = *self.world;
        assert!(step.num_rows() <= config.token_budget, "over budget: {step:?}");
        assert!(self.scheduler.num_running() <= config.max_batch);
        let scheduled: BTreeSet<SequenceId> = step.entries.iter().map(|entry| entry.sequence).collect();
        assert_eq!(scheduled.len(), step.entries.len(), "a sequence twice in {step:?}");
        let (mut logit_rows, mut prompt_rows, mut is_decoding) = (0, 0, false);
        for entry in &step.entries {
            let state = &self.scheduler.sequences[&entry.sequence];
            assert!(!entry.tokens.is_empty() && entry.tokens.start == state.num_computed, "{entry:?} of {state:?}");
            assert!(entry.tokens.end - entry.num_guesses <= state.num_tokens());
            logit_rows += match self.scheduler.reaches_end(entry) {
                _ if state.rows == KnownRows::AllLogits && entry.num_guesses == 0 => entry.tokens.len(),
                true => 1 + entry.num_guesses,
                false => 0,
            };
            let is_decode_row = state.pending() == 1 && step.admitted.iter().all(|new| new.sequence != entry.sequence);
            is_decoding |= is_decode_row;
            prompt_rows += if is_decode_row { 0 } else { entry.tokens.len() };
        }
        assert!(logit_rows <= config.max_logit_rows, "{logit_rows} rows of logits in {step:?}");
        assert!(
            !is_decoding || prompt_rows <= self.world.limits.prompt_tokens,
            "{prompt_rows} prompt rows in {step:?}"
        );
        self.check_sequences(step, &scheduled, first);
    }

    fn first(&self) -> Option<SequenceId> {
        let firsts = self.scheduler.running.first().into_iter().chain(self.scheduler.waiting.first());
        firsts.min().map(|rank| rank.1)
    }

    fn check_sequences(&self, step: &Step, scheduled: &BTreeSet<SequenceId>, first: Option<SequenceId>) {
        for (&id, state) in &self.scheduler.sequences {
            assert_eq!(state.num_tokens(), self.ledgers[&id].tokens.len());
            assert!(state.is_running || state.blocks.as_slice().is_empty(), "{id:?} waits and holds blocks");
            let is_excused = step.exhausted.contains(&id) || step.admitted.iter().any(|new| new.sequence == id);
            assert!(
                !state.is_running || state.pending() != 1 || scheduled.contains(&id) || is_excused,
                "{id:?} stalls"
            );
        }
        // Nobody starves: the first in rank is served in every step, unless another computes its beginning just now, or those
        // that passed it meanwhile hold the blocks that it needs; then nobody else begins.
        let Some(first) = first.filter(|_| step.exhausted.is_empty()) else { return };
        // Who computed the beginning may just have made room for someone urgent.
        let is_excused = step.admitted.is_empty() || !step.preempted.is_empty();
        if !scheduled.contains(&first) && !is_excused {
            assert!(self.waits_for_another(first), "{first:?} is the first and idle in {step:?}");
        }
    }

    /// Whether somebody may be computing what it needs.
    fn waits_for_another(&self, id: SequenceId) -> bool {
        let running = self.scheduler.running.iter();
        let in_flight: HashSet<&BlockHash> = running.flat_map(|rank| self.scheduler.chain(rank.1).names()).collect();
        self.scheduler.sequences[&id].cacheable().iter().any(|name| in_flight.contains(name))
    }

    /// Whoever waits is passed a few times, whatever the priorities.
    fn check_patience(&mut self, step: &Step) {
        let SchedulerConfig { patience, max_batch, .. } = self.world.config;
        for new in &step.admitted {
            let priority = self.scheduler.sequences[&new.sequence].priority;
            let is_behind = |rank: &&Rank| rank.0 > priority && self.scheduler.sequences[&rank.1].pending() > 1;
            let behind = self.scheduler.running.iter().filter(is_behind);
            let waiting =
                self.scheduler.waiting.iter().chain(behind).map(|rank| rank.1).filter(|&id| id < new.sequence);
            // Who can never fit is told so in the step that comes to it, and others begin in the same.
            let is_served = |id: &SequenceId| !step.exhausted.contains(id) && !self.waits_for_another(*id);
            let passed: Vec<SequenceId> = waiting.filter(is_served).collect();
            for id in passed {
                let times = self.passed.entry(id).or_default();
                *times += 1;
                // In the step that makes it lose its patience a whole batch may begin.
                assert!(*times <= patience + max_batch, "{id:?} was passed {times} times");
            }
        }
    }

    /// Chooses tokens for an entry at its end: guesses that happen to be right, then one more.
    fn choose(&mut self, entry: &StepEntry) -> (Vec<u32>, usize) {
        let mut chosen = Vec::new();
        for place in 0..=entry.num_guesses {
            chosen.push(self.draw(3));
            let ledger = &self.ledgers[&entry.sequence];
            if place == entry.num_guesses || ledger.guesses[place] != chosen[place] {
                break;
            }
        }
        let num_right = chosen.len() - 1;
        // Now and then a grammar forces what comes next.
        let room = self.ledgers[&entry.sequence].last - self.ledgers[&entry.sequence].tokens.len();
        for _ in 0..self.draw(60).saturating_sub(50) {
            if chosen.len() < room {
                chosen.push(self.draw(3));
            }
        }
        (chosen, num_right)
    }

    fn report(&mut self, entry: &StepEntry) {
        if !self.scheduler.reaches_end(entry) {
            self.scheduler.advance(entry, &[], 0);
            return;
        }
        let id = entry.sequence;
        let client = self.ledgers[&id].client;
        if self.world.clients[client].ends_with_prompt {
            self.scheduler.advance(entry, &[], 0);
            self.end(id);
            return;
        }
        if !std::mem::replace(&mut self.ledgers.get_mut(&id).unwrap().has_forked, true) && entry.num_guesses == 0 {
            for _ in 0..self.world.clients[client].forks {
                let (fork, token) = (self.new_id(), self.draw(3));
                let mut ledger = self.ledgers[&id].clone();
                ledger.tokens.push(token);
                self.scheduler.fork(entry, fork, &[token]);
                self.ledgers.insert(fork, ledger);
                self.end_if_complete(fork);
            }
        }
        let (chosen, num_right) = self.choose(entry);
        self.scheduler.advance(entry, &chosen, num_right);
        self.ledgers.get_mut(&id).unwrap().tokens.extend(chosen);
        self.end_if_complete(id);
    }

    fn end_if_complete(&mut self, id: SequenceId) {
        let ledger = &self.ledgers[&id];
        assert!(ledger.tokens.len() <= ledger.last);
        if ledger.tokens.len() == ledger.last {
            self.end(id);
        }
    }

    /// One step of everything. Returns the number of preemptions.
    fn step(&mut self, now: usize) -> usize {
        for number in 0..self.world.clients.len() {
            if self.world.clients[number].arrives == now {
                self.arrive(number);
            }
            if self.world.clients[number].leaves == Some(now) {
                self.leave(number);
            }
        }
        self.guess();
        let first = self.first();
        let step = self.scheduler.schedule(self.world.limits);
        self.check(&step, first);
        self.check_patience(&step);
        self.run(&step);
        for &id in &step.exhausted {
            let room = self.world.num_blocks * self.world.block_size;
            let ledger = &self.ledgers[&id];
            assert!(ledger.tokens.len() + ledger.guesses.len() > room, "{id:?} was cut but fits");
            self.end(id);
        }
        step.entries.iter().for_each(|entry| self.report(entry));
        step.preempted.len()
    }
}

/// Lives through all arrivals, answers and departures. Returns the number of preemptions.
fn live(world: &World) -> usize {
    let mut life = Life::new(world);
    let last_arrival = world.clients.iter().map(|client| client.arrives).max().unwrap_or(0);
    let mut num_preempted = 0;
    for now in 0.. {
        assert!(now < 20_000, "someone waits forever: {:?}", life.ledgers);
        num_preempted += life.step(now);
        if life.ledgers.is_empty() && now >= last_arrival {
            break;
        }
    }
    assert_eq!(life.scheduler.blocks().num_free(), world.num_blocks, "blocks are missing at the end");
    assert_eq!(life.num_ended as u64, life.num_ids);
    num_preempted
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]
    #[test]
    fn everyone_finishes_within_the_budget_and_reads_what_was_written(world in world(0..1)) {
        live(&world);
    }

    #[test]
    fn everyone_finishes_whatever_their_priorities(world in world(-1..2)) {
        live(&world);
    }
}

#[test]
fn everyone_finishes_where_blocks_are_so_few_that_sequences_keep_preempting_each_other() {
    let client = |number| Client {
        arrives: number,
        kind: number as u32,
        prompt_len: 1 + number % 3,
        answer_len: 9,
        leaves: None,
        priority: 0,
        forks: 0,
        guesses: 0,
        rows: KnownRows::Last,
        ends_with_prompt: false,
    };
    let config = SchedulerConfig { max_batch: 4, token_budget: 8, max_logit_rows: 4, patience: 64 };
    let clients = (0..8).map(client).collect();
    let limits = StepLimits { prompt_tokens: 4, short_prompts: 2 };
    let tight = World { config, limits, num_blocks: 6, block_size: 2, clients };
    assert!(live(&tight) > 0);
}
