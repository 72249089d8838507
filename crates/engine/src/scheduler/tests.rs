use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn scheduler(max_batch: usize, token_budget: usize, num_blocks: usize, block_size: usize) -> Scheduler {
    Scheduler::new(SchedulerConfig { max_batch, token_budget }, BlockManager::new(num_blocks, block_size))
}

const A: SequenceId = SequenceId(0);
const B: SequenceId = SequenceId(1);
const C: SequenceId = SequenceId(2);

fn entries(step: &Step) -> Vec<(SequenceId, Range<usize>)> {
    step.entries.iter().map(|entry| (entry.sequence, entry.tokens.clone())).collect()
}

/// Schedules a step and reports it computed; every sequence at its end gets a token.
fn advance(scheduler: &mut Scheduler) -> Step {
    let step = scheduler.schedule();
    for entry in &step.entries {
        if scheduler.computed(entry) {
            scheduler.push_token(entry.sequence);
        }
    }
    step
}

#[test]
fn a_prompt_is_cut_to_the_budget_and_then_decoded_token_by_token() {
    let mut scheduler = scheduler(2, 8, 10, 4);
    scheduler.add(A, 19);
    for tokens in [0..8, 8..16, 16..19, 19..20, 20..21] {
        assert_eq!(entries(&advance(&mut scheduler)), [(A, tokens)]);
    }
}

#[test]
fn a_long_prompt_does_not_stop_the_tokens_of_others() {
    let mut scheduler = scheduler(3, 8, 20, 4);
    scheduler.add(A, 2);
    advance(&mut scheduler);
    scheduler.add(B, 20);
    scheduler.add(C, 1);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 2..3), (B, 0..7)]);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 3..4), (B, 7..14)]);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 4..5), (B, 14..20), (C, 0..1)]);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 5..6), (B, 20..21), (C, 1..2)]);
}

#[test]
fn sequences_beyond_the_batch_wait_for_their_turn() {
    let mut scheduler = scheduler(2, 8, 20, 4);
    for id in [A, B, C] {
        scheduler.add(id, 1);
    }
    advance(&mut scheduler);
    assert_eq!((scheduler.num_running(), scheduler.num_waiting()), (2, 1));
    scheduler.remove(A);
    assert_eq!(entries(&advance(&mut scheduler)), [(B, 1..2), (C, 0..1)]);
}

#[test]
fn the_youngest_gives_its_blocks_to_the_oldest_and_recomputes_later() {
    let mut scheduler = scheduler(2, 8, 3, 4);
    scheduler.add(A, 4);
    scheduler.add(B, 4);
    // A takes one block; B needs one and leaves one free for A.
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 0..4), (B, 0..4)]);
    // A's fifth token takes the last block, so B's fifth has none: B, the youngest, gives up its own.
    let step = advance(&mut scheduler);
    assert_eq!((entries(&step), step.preempted), (vec![(A, 4..5)], vec![B]));
    for tokens in [5..6, 6..7, 7..8] {
        assert_eq!(entries(&advance(&mut scheduler)), [(A, tokens)], "B needs two blocks and one is free");
    }
    scheduler.remove(A);
    assert_eq!(entries(&advance(&mut scheduler)), [(B, 0..5)], "B computes its prompt and its token again");
}

#[test]
fn a_preempted_sequence_loses_its_place_in_the_step() {
    let mut scheduler = scheduler(2, 64, 7, 4);
    scheduler.add(A, 20);
    scheduler.add(B, 1);
    scheduler.schedule();
    // The prompt of A counts as computed up to its last two tokens, so that B's decode row is scheduled before A's.
    scheduler.computed(&StepEntry { sequence: A, tokens: 0..18 });
    scheduler.computed(&StepEntry { sequence: B, tokens: 0..1 });
    for known in 2..=4 {
        scheduler.push_token(B);
        scheduler.computed(&StepEntry { sequence: B, tokens: known - 1..known });
    }
    scheduler.push_token(B);
    // B's fifth token takes the seventh block; then A finds none for a range that ends in its sixth.
    scheduler.state_mut(A).num_tokens = 21;
    let step = scheduler.schedule();
    assert_eq!((entries(&step), step.preempted), (vec![(A, 18..21)], vec![B]));
}

#[test]
fn a_sequence_alone_that_outgrows_all_blocks_is_exhausted() {
    let mut scheduler = scheduler(2, 8, 2, 4);
    scheduler.add(A, 8);
    advance(&mut scheduler);
    let step = scheduler.schedule();
    assert_eq!((entries(&step), step.exhausted), (vec![], vec![A]));
    scheduler.remove(A);
    assert_eq!(scheduler.blocks().num_free(), 2);
}

#[test]
fn a_prompt_larger_than_all_blocks_does_not_block_the_queue() {
    let mut scheduler = scheduler(2, 8, 2, 4);
    scheduler.add(A, 9);
    scheduler.add(B, 3);
    let step = scheduler.schedule();
    assert_eq!((entries(&step), step.exhausted), (vec![(B, 0..3)], vec![A]));
}

#[derive(Debug, Clone)]
struct Client {
    arrives: usize,
    prompt_len: usize,
    answer_len: usize,
    leaves: Option<usize>,
}

#[derive(Debug, Clone)]
struct World {
    config: SchedulerConfig,
    num_blocks: usize,
    block_size: usize,
    clients: Vec<Client>,
}

fn world() -> impl Strategy<Value = World> {
    let client = (0usize..60, 1usize..50, 1usize..60, prop::option::weighted(0.3, 0usize..200));
    let clients = prop::collection::vec(client, 1..24);
    (1usize..9, 0usize..30, 4usize..40, 1usize..9, clients).prop_map(
        |(max_batch, spare, num_blocks, block_size, clients)| {
            let clients = clients.into_iter().map(|(arrives, prompt_len, answer_len, leaves)| Client {
                arrives,
                prompt_len,
                answer_len,
                leaves,
            });
            let mut clients: Vec<Client> = clients.collect();
            clients.sort_by_key(|client| client.arrives);
            let config = SchedulerConfig { max_batch, token_budget: max_batch + spare };
            World { config, num_blocks, block_size, clients }
        },
    )
}

/// What the test knows of a sequence, kept apart from the scheduler's own books.
#[derive(Debug, Default)]
struct Ledger {
    known: usize,
    computed: usize,
    last: usize,
}

fn check_step(world: &World, scheduler: &Scheduler, ledgers: &BTreeMap<SequenceId, Ledger>, step: &Step) {
    assert!(step.num_rows() <= world.config.token_budget, "over budget: {step:?}");
    assert!(scheduler.num_running() <= world.config.max_batch);
    let scheduled: BTreeSet<SequenceId> = step.entries.iter().map(|entry| entry.sequence).collect();
    assert_eq!(scheduled.len(), step.entries.len(), "a sequence twice in {step:?}");
    let mut held: BTreeSet<u32> = BTreeSet::new();
    for entry in &step.entries {
        let ledger = &ledgers[&entry.sequence];
        assert_eq!(entry.tokens.start, ledger.computed, "not where {entry:?} stopped");
        assert!(!entry.tokens.is_empty() && entry.tokens.end <= ledger.known, "{entry:?} of {ledger:?}");
        assert!(scheduler.block_table(entry.sequence).len() * world.block_size >= entry.tokens.end);
    }
    let mut num_held = 0;
    for (&id, state) in &scheduler.sequences {
        num_held += state.blocks.as_slice().len();
        held.extend(state.blocks.as_slice());
        assert!(state.is_running || state.blocks.as_slice().is_empty(), "{id:?} waits and holds blocks");
        let is_cut = step.exhausted.contains(&id);
        assert!(!state.is_running || state.pending() != 1 || scheduled.contains(&id) || is_cut, "{id:?} stalls");
    }
    assert_eq!(held.len(), num_held, "a block in two tables");
    assert_eq!(num_held + scheduler.blocks().num_free(), world.num_blocks, "blocks are lost");
    // No starvation: whoever has waited longest is served in every step (an exhausted sequence still holds its place in the
    // step that reports it).
    if let Some(oldest) = ledgers.keys().next().filter(|_| step.exhausted.is_empty()) {
        assert!(scheduled.contains(oldest), "{oldest:?} is the oldest and idle in {step:?}");
    }
    let oldest_waiting = scheduler.sequences.iter().find(|(_, state)| !state.is_running).map(|(&id, _)| id);
    let youngest_running = scheduler.running().next_back().map(|(id, _)| id);
    if let (Some(waiting), Some(running)) = (oldest_waiting.filter(|id| !step.exhausted.contains(id)), youngest_running)
    {
        assert!(running < waiting, "{running:?} overtook {waiting:?}");
    }
}

/// Lives through all arrivals, answers and departures. Returns the number of preemptions.
fn live(world: &World) -> usize {
    let mut scheduler = Scheduler::new(world.config, BlockManager::new(world.num_blocks, world.block_size));
    let mut ledgers: BTreeMap<SequenceId, Ledger> = BTreeMap::new();
    let (mut num_ended, mut num_left, mut num_preempted) = (0, 0, 0);
    for now in 0.. {
        assert!(now < 20_000, "someone waits forever: {ledgers:?}");
        for (number, client) in world.clients.iter().enumerate() {
            let id = SequenceId(number as u64);
            if client.arrives == now {
                scheduler.add(id, client.prompt_len);
                let last = client.prompt_len + client.answer_len;
                ledgers.insert(id, Ledger { known: client.prompt_len, computed: 0, last });
            }
            if client.leaves == Some(now) && ledgers.remove(&id).is_some() {
                scheduler.remove(id);
                num_left += 1;
            }
        }
        let step = scheduler.schedule();
        num_preempted += step.preempted.len();
        for id in &step.preempted {
            ledgers.get_mut(id).unwrap().computed = 0;
        }
        check_step(world, &scheduler, &ledgers, &step);
        for id in &step.exhausted {
            assert!(ledgers[id].known > world.num_blocks * world.block_size, "{id:?} was cut but fits");
            scheduler.remove(*id);
            ledgers.remove(id);
            num_ended += 1;
        }
        for entry in &step.entries {
            let ledger = ledgers.get_mut(&entry.sequence).unwrap();
            ledger.computed = entry.tokens.end;
            assert_eq!(scheduler.wants_logits(entry), ledger.computed == ledger.known);
            if !scheduler.computed(entry) {
                continue;
            }
            ledger.known += 1;
            if ledger.known == ledger.last {
                scheduler.remove(entry.sequence);
                ledgers.remove(&entry.sequence);
                num_ended += 1;
            } else {
                scheduler.push_token(entry.sequence);
            }
        }
        if ledgers.is_empty() && world.clients.iter().all(|client| client.arrives <= now) {
            break;
        }
    }
    assert_eq!(scheduler.blocks().num_free(), world.num_blocks, "blocks are missing at the end");
    assert_eq!(num_ended + num_left, world.clients.len());
    num_preempted
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]
    #[test]
    fn everyone_finishes_within_the_budget_and_every_block_returns(world in world()) {
        live(&world);
    }
}

#[test]
fn everyone_finishes_where_blocks_are_so_few_that_sequences_keep_preempting_each_other() {
    let client = |number| Client { arrives: number, prompt_len: 1 + number % 3, answer_len: 9, leaves: None };
    let config = SchedulerConfig { max_batch: 4, token_budget: 8 };
    let tight = World { config, num_blocks: 6, block_size: 2, clients: (0..8).map(client).collect() };
    assert!(live(&tight) > 0);
}
