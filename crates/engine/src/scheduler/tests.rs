use super::*;
use crate::BlockHash;
use crate::block_manager::Miss;

mod random_schedules;

fn scheduler(max_batch: usize, token_budget: usize, num_blocks: usize, block_size: usize) -> Scheduler {
    let config = SchedulerConfig { max_batch, token_budget, max_logit_rows: token_budget, patience: 3 };
    Scheduler::new(config, BlockManager::new(num_blocks, block_size))
}

const A: SequenceId = SequenceId(0);
const B: SequenceId = SequenceId(1);
const C: SequenceId = SequenceId(2);
const D: SequenceId = SequenceId(3);

/// No limit but the budget.
const FREE: StepLimits = StepLimits { prompt_tokens: usize::MAX, short_prompts: usize::MAX };

fn root() -> BlockHash {
    BlockHash::root("test", None)
}

/// Tokens that no other sequence has.
fn own_tokens(id: SequenceId, len: usize) -> Vec<u32> {
    (0..len as u32).map(|place| 1000 * (id.0 as u32 + 1) + place).collect()
}

fn arrival(scheduler: &Scheduler, tokens: &[u32]) -> Arrival {
    let chain = BlockChain::new(root(), scheduler.blocks().block_size(), tokens.to_vec());
    Arrival { chain, priority: 0, rows: KnownRows::Last }
}

fn add(scheduler: &mut Scheduler, id: SequenceId, len: usize) {
    scheduler.add(id, arrival(scheduler, &own_tokens(id, len)));
}

fn add_urgent(scheduler: &mut Scheduler, id: SequenceId, len: usize) {
    scheduler.add(id, Arrival { priority: -1, ..arrival(scheduler, &own_tokens(id, len)) });
}

fn entries(step: &Step) -> Vec<(SequenceId, Range<usize>)> {
    step.entries.iter().map(|entry| (entry.sequence, entry.tokens.clone())).collect()
}

/// Schedules a step and reports it computed; every sequence at its end gets a token.
fn advance_within(scheduler: &mut Scheduler, limits: StepLimits) -> Step {
    let step = scheduler.schedule(limits);
    for entry in &step.entries {
        let chosen: &[u32] = if scheduler.reaches_end(entry) { &[7] } else { &[] };
        scheduler.advance(entry, chosen, 0);
    }
    step
}

fn advance(scheduler: &mut Scheduler) -> Step {
    advance_within(scheduler, FREE)
}

#[test]
fn a_prompt_is_cut_to_the_budget_and_then_decoded_token_by_token() {
    let mut scheduler = scheduler(2, 8, 10, 4);
    add(&mut scheduler, A, 19);
    for tokens in [0..8, 8..16, 16..19, 19..20, 20..21] {
        assert_eq!(entries(&advance(&mut scheduler)), [(A, tokens)]);
    }
}

#[test]
fn a_long_prompt_stops_neither_the_tokens_nor_the_short_prompts_of_others() {
    let mut scheduler = scheduler(3, 9, 20, 4);
    add(&mut scheduler, A, 2);
    advance(&mut scheduler);
    add(&mut scheduler, B, 20);
    add(&mut scheduler, C, 3);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 2..3), (B, 0..5), (C, 0..3)]);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 3..4), (C, 3..4), (B, 5..12)]);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 4..5), (C, 4..5), (B, 12..19)]);
}

#[test]
fn prompts_of_one_length_are_computed_one_after_the_other() {
    let mut scheduler = scheduler(3, 8, 20, 4);
    add(&mut scheduler, A, 12);
    add(&mut scheduler, B, 12);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 0..8)]);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 8..12), (B, 0..4)]);
}

#[test]
fn while_others_decode_a_prompt_gets_what_the_limit_leaves() {
    let mut scheduler = scheduler(2, 64, 40, 4);
    add(&mut scheduler, A, 2);
    advance(&mut scheduler);
    add(&mut scheduler, B, 100);
    let limits = StepLimits { prompt_tokens: 10, short_prompts: 1 };
    assert_eq!(entries(&advance_within(&mut scheduler, limits)), [(A, 2..3), (B, 0..10)]);
    scheduler.remove(A);
    assert_eq!(entries(&advance_within(&mut scheduler, limits)), [(B, 10..74)], "nobody is held up");
}

#[test]
fn short_prompts_end_one_after_the_other_while_others_decode() {
    let mut scheduler = scheduler(4, 64, 40, 4);
    add(&mut scheduler, A, 2);
    advance(&mut scheduler);
    add(&mut scheduler, B, 24);
    add(&mut scheduler, C, 7);
    add(&mut scheduler, D, 9);
    let limits = StepLimits { prompt_tokens: 40, short_prompts: 12 };
    assert_eq!(entries(&advance_within(&mut scheduler, limits)), [(A, 2..3), (B, 0..12)]);
    assert_eq!(entries(&advance_within(&mut scheduler, limits)), [(A, 3..4), (B, 12..24)]);
    assert_eq!(entries(&advance_within(&mut scheduler, limits)), [(A, 4..5), (B, 24..25), (C, 0..7), (D, 0..5)]);
    assert_eq!(entries(&advance_within(&mut scheduler, limits)), [(A, 5..6), (B, 25..26), (C, 7..8), (D, 5..9)]);
}

/// Rows of short prompts in a step in which so many decode and prompts of so many tokens wait, where rows are dear.
fn rows_of_prompts(num_decoding: u64, prompts: &[usize]) -> usize {
    let mut scheduler = scheduler(40, 64, 200, 4);
    (0..num_decoding).for_each(|id| add(&mut scheduler, SequenceId(id), 2));
    advance(&mut scheduler);
    prompts.iter().zip(num_decoding..).for_each(|(&len, id)| add(&mut scheduler, SequenceId(id), len));
    let step = advance_within(&mut scheduler, StepLimits { prompt_tokens: 64, short_prompts: 1 });
    step.num_rows() - num_decoding as usize
}

#[test]
fn a_short_prompt_is_whole_where_rows_cost_nothing() {
    let mut scheduler = scheduler(2, 64, 40, 4);
    add(&mut scheduler, A, 2);
    advance(&mut scheduler);
    add(&mut scheduler, B, 50);
    assert_eq!(entries(&advance_within(&mut scheduler, FREE)), [(A, 2..3), (B, 0..50)]);
}

#[test]
fn a_step_has_half_as_many_rows_of_short_prompts_as_decode_and_more_where_many_wait() {
    assert_eq!(rows_of_prompts(20, &[30]), 10);
    assert_eq!(rows_of_prompts(2, &[16; 9]), 9, "one for each");
    assert_eq!(rows_of_prompts(2, &[48; 15]), 22, "of 720 tokens");
}

#[test]
fn what_a_grammar_forced_is_not_cut_as_a_prompt_is() {
    let limits = StepLimits { prompt_tokens: 40, short_prompts: 1 };
    let mut scheduler = scheduler(3, 64, 40, 4);
    add(&mut scheduler, A, 2);
    add(&mut scheduler, B, 2);
    let step = scheduler.schedule(limits);
    scheduler.advance(&step.entries[0], &[7], 0);
    scheduler.advance(&step.entries[1], &[7; 30], 0);
    assert_eq!(entries(&advance_within(&mut scheduler, limits)), [(A, 2..3), (B, 2..32)]);
}

#[test]
fn the_end_of_a_prompt_does_not_let_more_of_the_others_in() {
    let limits = StepLimits { prompt_tokens: 130, short_prompts: 1 };
    let mut scheduler = scheduler(3, 200, 200, 4);
    add(&mut scheduler, A, 2);
    advance(&mut scheduler);
    add(&mut scheduler, B, 380);
    for tokens in [0..130, 130..260] {
        assert_eq!(entries(&advance_within(&mut scheduler, limits))[1], (B, tokens));
    }
    assert_eq!(entries(&advance_within(&mut scheduler, limits))[1], (B, 260..324), "a sixth");
    add(&mut scheduler, C, 60);
    assert_eq!(entries(&advance_within(&mut scheduler, limits))[1..], [(B, 324..380)], "and not 64 with those of C");
}

#[test]
fn more_urgent_prompts_pass_one_that_runs_no_more_often_than_one_that_waits() {
    let limits = StepLimits { prompt_tokens: 16, short_prompts: 16 };
    let mut scheduler = scheduler(40, 64, 400, 4);
    add(&mut scheduler, A, 2);
    advance(&mut scheduler);
    add(&mut scheduler, B, 16);
    let patience = scheduler.config.patience as u64;
    for number in 0..=patience {
        let urgent = SequenceId(100 + number);
        add_urgent(&mut scheduler, urgent, 16);
        let step = advance_within(&mut scheduler, limits);
        assert!(entries(&step).contains(&(urgent, 0..16)) && step.entries.iter().all(|entry| entry.sequence != B));
        scheduler.remove(urgent);
    }
    add_urgent(&mut scheduler, C, 16);
    let step = advance_within(&mut scheduler, limits);
    assert!(entries(&step).contains(&(B, 0..16)), "{step:?}");
}

#[test]
fn a_short_prompt_takes_few_steps_while_others_decode() {
    assert_eq!(rows_of_prompts(1, &[60]), 10, "six steps");
    assert_eq!(rows_of_prompts(1, &[24]), 8, "and none for a few tokens");
    assert_eq!(rows_of_prompts(1, &[11]), 11);
    assert_eq!(rows_of_prompts(1, &[12]), 8);
}

#[test]
fn sequences_beyond_the_batch_wait_for_their_turn() {
    let mut scheduler = scheduler(2, 8, 20, 4);
    for id in [A, B, C] {
        add(&mut scheduler, id, 1);
    }
    advance(&mut scheduler);
    assert_eq!((scheduler.num_running(), scheduler.num_waiting()), (2, 1));
    scheduler.remove(A);
    assert_eq!(entries(&advance(&mut scheduler)), [(B, 1..2), (C, 0..1)]);
}

#[test]
fn the_youngest_gives_its_blocks_to_the_oldest_and_recomputes_later() {
    let mut scheduler = scheduler(2, 8, 3, 4);
    add(&mut scheduler, A, 4);
    add(&mut scheduler, B, 3);
    // A takes one block; B needs one and leaves one free for A.
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 0..4), (B, 0..3)]);
    // A's fifth token takes the last block.
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 4..5), (B, 3..4)]);
    // B's fifth has none: B, the youngest, gives up its own.
    let step = advance(&mut scheduler);
    assert_eq!((entries(&step), step.preempted), (vec![(A, 5..6)], vec![B]));
    for tokens in [6..7, 7..8] {
        assert_eq!(entries(&advance(&mut scheduler)), [(A, tokens)], "B needs two blocks and leaves one to A");
    }
    scheduler.remove(A);
    let step = advance(&mut scheduler);
    assert_eq!(entries(&step), [(B, 4..5)], "the first block of B was not needed by anyone");
    assert!(step.admitted[0].is_return);
    assert_eq!(step.admitted[0].cached_tokens, 4);
}

#[test]
fn a_more_urgent_sequence_takes_the_place_of_a_less_urgent_one() {
    let mut scheduler = scheduler(2, 8, 20, 4);
    add(&mut scheduler, A, 2);
    add(&mut scheduler, B, 2);
    advance(&mut scheduler);
    add_urgent(&mut scheduler, C, 2);
    let step = advance(&mut scheduler);
    assert_eq!((entries(&step), step.preempted), (vec![(A, 2..3), (C, 0..2)], vec![B]));
    assert_eq!(entries(&advance(&mut scheduler)), [(C, 2..3), (A, 3..4)]);
    scheduler.remove(C);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 4..5), (B, 0..3)]);
}

#[test]
fn equally_urgent_sequences_do_not_displace_each_other() {
    let mut scheduler = scheduler(1, 8, 20, 4);
    add(&mut scheduler, B, 2);
    advance(&mut scheduler);
    add(&mut scheduler, A, 2);
    let step = advance(&mut scheduler);
    assert_eq!((entries(&step), step.preempted), (vec![(B, 2..3)], vec![]));
}

#[test]
fn a_sequence_alone_that_outgrows_all_blocks_is_exhausted() {
    let mut scheduler = scheduler(2, 8, 2, 4);
    add(&mut scheduler, A, 8);
    advance(&mut scheduler);
    let step = scheduler.schedule(FREE);
    assert_eq!((entries(&step), step.exhausted), (vec![], vec![A]));
    scheduler.remove(A);
    assert_eq!(scheduler.blocks().num_free(), 2);
}

#[test]
fn a_prompt_larger_than_all_blocks_does_not_block_the_queue() {
    let mut scheduler = scheduler(2, 8, 2, 4);
    add(&mut scheduler, A, 9);
    add(&mut scheduler, B, 3);
    let step = scheduler.schedule(FREE);
    assert_eq!((entries(&step), step.exhausted), (vec![(B, 0..3)], vec![A]));
}

#[test]
fn a_prompt_that_was_here_before_is_computed_from_its_last_token_only() {
    let mut scheduler = scheduler(2, 64, 10, 4);
    let tokens: Vec<u32> = (0..9).collect();
    scheduler.add(A, arrival(&scheduler, &tokens));
    advance(&mut scheduler);
    scheduler.remove(A);
    scheduler.add(B, arrival(&scheduler, &tokens));
    let step = advance(&mut scheduler);
    assert_eq!(entries(&step), [(B, 8..9)]);
    let Admission { cached_tokens, cacheable_tokens, miss, is_return, .. } = step.admitted[0];
    assert_eq!((cached_tokens, cacheable_tokens, miss, is_return), (8, 8, None, false));
    // A prompt that ends with a block is computed from that block on: the logits of its last token are wanted.
    scheduler.add(C, arrival(&scheduler, &tokens[..8]));
    assert_eq!(entries(&advance(&mut scheduler)), [(B, 9..10), (C, 4..8)]);
}

#[test]
fn prompts_under_different_roots_share_nothing() {
    let mut scheduler = scheduler(2, 64, 10, 4);
    let tokens: Vec<u32> = (0..9).collect();
    scheduler.add(A, arrival(&scheduler, &tokens));
    advance(&mut scheduler);
    let tenant = BlockHash::root("test", Some("tenant"));
    let chain = BlockChain::new(tenant, scheduler.blocks().block_size(), tokens.clone());
    scheduler.add(B, Arrival { chain, ..arrival(&scheduler, &tokens) });
    let step = advance(&mut scheduler);
    assert_eq!(entries(&step), [(A, 9..10), (B, 0..9)]);
    assert_eq!(step.admitted[0].miss, Some(Miss::New));
}

#[test]
fn a_near_miss_says_where_it_departs() {
    let mut scheduler = scheduler(2, 64, 10, 4);
    scheduler.add(A, arrival(&scheduler, &[0, 1, 2, 3, 4, 5, 6, 7, 8]));
    advance(&mut scheduler);
    scheduler.add(B, arrival(&scheduler, &[0, 1, 2, 3, 4, 5, 0, 0, 0]));
    let admission = advance(&mut scheduler).admitted[0];
    assert_eq!((admission.cached_tokens, admission.miss), (4, Some(Miss::Departs { common: 2 })));
}

#[test]
fn sequences_that_begin_alike_wait_for_the_one_that_computes_the_beginning() {
    let mut scheduler = scheduler(3, 8, 20, 4);
    let alike = |end: u32| -> Vec<u32> { (0..16).chain([end]).collect() };
    for (id, end) in [(A, 50), (B, 51)] {
        scheduler.add(id, arrival(&scheduler, &alike(end)));
    }
    add(&mut scheduler, C, 2);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 0..6), (C, 0..2)], "C passes B");
    assert_eq!(entries(&advance(&mut scheduler)), [(C, 2..3), (A, 6..13)]);
    assert_eq!(entries(&advance(&mut scheduler)), [(C, 3..4), (A, 13..17)]);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 17..18), (C, 4..5), (B, 16..17)]);
}

#[test]
fn when_the_one_that_computes_the_beginning_leaves_the_next_takes_over() {
    let mut scheduler = scheduler(3, 8, 20, 4);
    let alike = |end: u32| -> Vec<u32> { (0..16).chain([end]).collect() };
    for (id, end) in [(A, 50), (B, 51), (C, 52)] {
        scheduler.add(id, arrival(&scheduler, &alike(end)));
    }
    advance(&mut scheduler);
    scheduler.remove(A);
    assert_eq!(entries(&advance(&mut scheduler)), [(B, 8..16)], "what A computed is there, the rest is B's");
    assert_eq!(entries(&advance(&mut scheduler)), [(B, 16..17), (C, 16..17)]);
}

#[test]
fn a_fork_shares_blocks_until_one_of_both_writes() {
    let mut scheduler = scheduler(3, 64, 10, 4);
    add(&mut scheduler, A, 6);
    let step = scheduler.schedule(FREE);
    scheduler.fork(&step.entries[0], B, &[71]);
    scheduler.advance(&step.entries[0], &[70], 0);
    assert_eq!(scheduler.blocks().num_free(), 8);
    assert_eq!(scheduler.block_table(A), scheduler.block_table(B));
    let step = advance(&mut scheduler);
    assert_eq!(entries(&step), [(A, 6..7), (B, 6..7)]);
    let shared = scheduler.block_table(B)[1];
    assert_eq!(step.copies, [BlockCopy { from: shared, to: scheduler.block_table(A)[1] }]);
    assert_eq!(scheduler.block_table(A)[0], scheduler.block_table(B)[0]);
    assert_eq!(advance(&mut scheduler).copies, []);
    scheduler.remove(A);
    scheduler.remove(B);
    assert_eq!(scheduler.blocks().num_free(), 10);
}

#[test]
fn a_fork_that_finds_no_room_in_the_batch_waits_without_blocks() {
    let mut scheduler = scheduler(1, 64, 10, 4);
    add(&mut scheduler, A, 6);
    let step = scheduler.schedule(FREE);
    scheduler.fork(&step.entries[0], B, &[71]);
    scheduler.advance(&step.entries[0], &[70], 0);
    assert_eq!((scheduler.num_running(), scheduler.num_waiting(), scheduler.blocks().num_free()), (1, 1, 8));
    scheduler.remove(A);
    assert_eq!(entries(&advance(&mut scheduler)), [(B, 4..7)], "its first block is A's");
}

#[test]
fn right_guesses_are_computed_and_wrong_ones_again() {
    let mut scheduler = scheduler(2, 8, 20, 4);
    add(&mut scheduler, A, 3);
    advance(&mut scheduler);
    scheduler.set_guesses(A, 3);
    let step = scheduler.schedule(FREE);
    assert_eq!((entries(&step), step.entries[0].num_guesses), (vec![(A, 3..7)], 3));
    // Two guesses were right, and a third token came from the row after them.
    scheduler.advance(&step.entries[0], &[1, 2, 3], 2);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 6..7)]);
    scheduler.set_guesses(A, 1);
    let step = scheduler.schedule(FREE);
    scheduler.advance(&step.entries[0], &[9], 0);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 8..9)]);
    // Tokens that were neither guessed nor computed, as a grammar forces them, make a short prompt.
    let step = scheduler.schedule(FREE);
    scheduler.advance(&step.entries[0], &[1, 2, 3], 0);
    assert_eq!(entries(&advance(&mut scheduler)), [(A, 10..13)]);
}

#[test]
fn forced_tokens_find_blocks_even_if_another_must_give_its_own() {
    let mut scheduler = scheduler(2, 16, 4, 4);
    add(&mut scheduler, A, 3);
    add(&mut scheduler, B, 3);
    let step = scheduler.schedule(FREE);
    scheduler.advance(&step.entries[0], &[9; 10], 0);
    scheduler.advance(&step.entries[1], &[9], 0);
    let step = advance(&mut scheduler);
    assert_eq!((entries(&step), step.preempted), (vec![(A, 3..13)], vec![B]));
    assert_eq!(scheduler.block_table(A).len(), 4);
}

#[test]
fn guesses_take_only_rows_that_nobody_else_needs() {
    let mut scheduler = scheduler(3, 5, 20, 4);
    for id in [A, B] {
        add(&mut scheduler, id, 1);
    }
    advance(&mut scheduler);
    scheduler.set_guesses(A, 9);
    scheduler.set_guesses(B, 9);
    let step = scheduler.schedule(FREE);
    assert_eq!(entries(&step), [(A, 1..5), (B, 1..2)]);
}

#[test]
fn wrong_guesses_are_never_published() {
    let mut scheduler = scheduler(1, 16, 8, 4);
    scheduler.add(A, arrival(&scheduler, &[1, 2, 3]));
    advance(&mut scheduler);
    scheduler.set_guesses(A, 4);
    let step = scheduler.schedule(FREE);
    scheduler.advance(&step.entries[0], &[40], 0);
    assert_eq!(scheduler.blocks().matching(&[root().child(&[1, 2, 3, 7])]), (1, 0));
    scheduler.remove(A);
    scheduler.add(B, arrival(&scheduler, &[1, 2, 3, 7, 40, 41, 42, 43]));
    assert_eq!(entries(&advance(&mut scheduler)), [(B, 4..8)]);
}

#[test]
fn a_prompt_whose_every_row_is_wanted_takes_nothing_from_the_cache_and_as_many_rows_as_have_logits() {
    let config = SchedulerConfig { max_batch: 2, token_budget: 64, max_logit_rows: 4, patience: 3 };
    let mut scheduler = Scheduler::new(config, BlockManager::new(20, 4));
    let tokens: Vec<u32> = (0..9).collect();
    scheduler.add(A, arrival(&scheduler, &tokens));
    advance(&mut scheduler);
    scheduler.add(B, Arrival { rows: KnownRows::AllLogits, ..arrival(&scheduler, &tokens) });
    for tokens in [0..3, 3..6, 6..9] {
        assert_eq!(entries(&advance(&mut scheduler))[1], (B, tokens));
    }
}

#[test]
fn a_prompt_whose_every_state_is_wanted_takes_nothing_from_the_cache_and_as_many_rows_as_there_are() {
    let config = SchedulerConfig { max_batch: 2, token_budget: 64, max_logit_rows: 4, patience: 3 };
    let mut scheduler = Scheduler::new(config, BlockManager::new(20, 4));
    let tokens: Vec<u32> = (0..9).collect();
    scheduler.add(A, arrival(&scheduler, &tokens));
    advance(&mut scheduler);
    scheduler.add(B, Arrival { rows: KnownRows::AllHidden, ..arrival(&scheduler, &tokens) });
    assert_eq!(entries(&advance(&mut scheduler))[1], (B, 0..9));
}

#[test]
fn a_prompt_that_ends_without_a_token_leaves_its_blocks_to_the_cache() {
    let mut scheduler = scheduler(2, 64, 10, 4);
    let tokens: Vec<u32> = (0..9).collect();
    scheduler.add(A, Arrival { rows: KnownRows::AllHidden, ..arrival(&scheduler, &tokens) });
    let step = scheduler.schedule(FREE);
    assert!(scheduler.reaches_end(&step.entries[0]));
    assert_eq!(scheduler.advance(&step.entries[0], &[], 0), 0..2, "blocks that are full");
    scheduler.remove(A);
    assert_eq!(scheduler.blocks().num_free(), 10);
    scheduler.add(B, arrival(&scheduler, &tokens));
    assert_eq!(entries(&advance(&mut scheduler)), [(B, 8..9)]);
}

#[test]
fn urgent_ones_pass_a_sequence_as_often_as_its_patience_says_and_then_none_does() {
    // One at a time, and always another urgent one in the queue.
    let mut scheduler = scheduler(1, 64, 20, 4);
    let urgent = |number: u64| SequenceId(1 + number);
    add_urgent(&mut scheduler, urgent(0), 4);
    add(&mut scheduler, A, 4);
    let mut served = Vec::new();
    for number in 0..8 {
        add_urgent(&mut scheduler, urgent(number + 1), 4);
        let step = advance(&mut scheduler);
        served.extend(step.entries.iter().map(|entry| entry.sequence));
        step.entries.iter().for_each(|entry| scheduler.remove(entry.sequence));
    }
    let place = served.iter().position(|&id| id == A).expect("served");
    assert_eq!(place, 4, "three pass, and the one that makes it lose its patience: {served:?}");
}
