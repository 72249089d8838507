use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Names of the full blocks of `tokens`, beginning after the root.
fn chain(tokens: &[u32], block_size: usize) -> Vec<BlockHash> {
    let mut parent = BlockHash::root("test", None);
    let blocks = tokens.chunks_exact(block_size);
    blocks
        .map(|block| {
            parent = parent.child(block);
            parent
        })
        .collect()
}

/// Publishes the first `num_full` blocks of `table`, whose tokens are `tokens`.
fn publish(blocks: &mut BlockManager, table: &BlockTable, tokens: &[u32]) {
    let mut parent = BlockHash::root("test", None);
    let size = blocks.block_size();
    for (index, (hash, tokens)) in chain(tokens, size).into_iter().zip(tokens.chunks_exact(size)).enumerate() {
        blocks.publish(table, index, NamedBlock { parent, hash, tokens });
        parent = hash;
    }
}

#[test]
fn a_table_grows_by_whole_blocks_and_only_when_needed() {
    let mut blocks = BlockManager::new(4, 8);
    let mut table = BlockTable::default();
    for (num_tokens, held) in [(0, 0), (1, 1), (8, 1), (9, 2), (3, 2)] {
        assert!(blocks.grow(&mut table, num_tokens));
        assert_eq!(table.as_slice().len(), held, "after growing to {num_tokens}");
        assert_eq!(blocks.num_free(), 4 - held);
    }
}

#[test]
fn growing_beyond_the_free_blocks_changes_nothing() {
    let mut blocks = BlockManager::new(2, 8);
    let (mut first, mut second) = (BlockTable::default(), BlockTable::default());
    assert!(blocks.grow(&mut first, 8));
    assert!(!blocks.grow(&mut second, 9));
    assert_eq!((second.as_slice().len(), blocks.num_free()), (0, 1));
}

#[test]
fn a_published_block_outlives_its_holder_and_is_shared_by_name() {
    let mut blocks = BlockManager::new(4, 2);
    let tokens = [1, 2, 3, 4];
    let names = chain(&tokens, 2);
    let mut first = BlockTable::default();
    assert!(blocks.grow(&mut first, 5));
    publish(&mut blocks, &first, &tokens);
    let ids = first.as_slice().to_vec();
    blocks.release(&mut first);
    assert_eq!((blocks.num_free(), blocks.num_idle()), (4, 2), "the third block was never published");
    assert_eq!(blocks.matching(&names), (2, 2));
    let (mut second, mut third) = (BlockTable::default(), BlockTable::default());
    assert!(blocks.share(&mut second, &names[0]) && blocks.share(&mut third, &names[0]));
    assert_eq!((second.as_slice(), third.as_slice()), (&ids[..1], &ids[..1]));
    assert_eq!(blocks.matching(&names), (2, 1));
    assert!(!blocks.share(&mut second, &BlockHash::root("other", None)));
    blocks.release(&mut second);
    assert_eq!(blocks.num_free(), 3, "the third table still holds it");
}

#[test]
fn blank_blocks_go_first_then_the_ends_of_what_was_idle_longest() {
    let mut blocks = BlockManager::new(5, 1);
    let hold = |blocks: &mut BlockManager, tokens: &[u32]| {
        let mut table = BlockTable::default();
        assert!(blocks.grow(&mut table, tokens.len()));
        publish(blocks, &table, tokens);
        table
    };
    let (mut old, mut new) = (hold(&mut blocks, &[1, 2]), hold(&mut blocks, &[7, 8]));
    blocks.release(&mut old);
    blocks.release(&mut new);
    let mut table = BlockTable::default();
    for (num_tokens, old_left, new_left) in [(1, 2, 2), (2, 1, 2), (3, 0, 2), (4, 0, 1), (5, 0, 0)] {
        assert!(blocks.grow(&mut table, num_tokens));
        let left = (blocks.matching(&chain(&[1, 2], 1)).0, blocks.matching(&chain(&[7, 8], 1)).0);
        assert_eq!(left, (old_left, new_left), "{num_tokens} blocks taken");
    }
    let root = BlockHash::root("test", None);
    assert_eq!(blocks.why_missed(&root, &chain(&[1], 1)[0], &[1]), Miss::Evicted);
}

#[test]
fn a_miss_says_how_far_another_prompt_agreed() {
    let mut blocks = BlockManager::new(4, 4);
    let mut table = BlockTable::default();
    assert!(blocks.grow(&mut table, 8));
    publish(&mut blocks, &table, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let root = BlockHash::root("test", None);
    let miss = |tokens: &[u32]| blocks.why_missed(&root, &root.child(tokens), tokens);
    assert_eq!(miss(&[1, 2, 3, 9]), Miss::Departs { common: 3 });
    assert_eq!(miss(&[9, 2, 3, 4]), Miss::New);
    let first = root.child(&[1, 2, 3, 4]);
    let next = [5, 0, 0, 0];
    assert_eq!(blocks.why_missed(&first, &first.child(&next), &next), Miss::Departs { common: 1 });
}

#[test]
fn who_writes_to_a_shared_block_gets_a_copy_and_the_last_holder_none() {
    let mut blocks = BlockManager::new(3, 4);
    let mut first = BlockTable::default();
    assert!(blocks.grow(&mut first, 6));
    let mut second = blocks.fork(&first);
    assert_eq!(first.as_slice(), second.as_slice());
    let mut copies = Vec::new();
    assert!(blocks.make_writable(&mut second, 6, &mut copies));
    assert_eq!(copies, [BlockCopy { from: first.as_slice()[1], to: second.as_slice()[1] }]);
    assert!(blocks.make_writable(&mut first, 6, &mut copies) && blocks.make_writable(&mut second, 7, &mut copies));
    assert_eq!(copies.len(), 1, "each has its own now");
    assert_eq!(blocks.num_free(), 0);
    assert!(!blocks.make_writable(&mut second, 0, &mut copies), "the first block is shared and none is free");
    assert_eq!(second.as_slice()[0], first.as_slice()[0]);
}

#[test]
fn contents_from_elsewhere_are_found_by_name_and_held_by_nobody() {
    let mut blocks = BlockManager::new(2, 2);
    let parent = BlockHash::root("test", None);
    let hash = parent.child(&[1, 2]);
    let named = NamedBlock { parent, hash, tokens: &[1, 2] };
    let block = blocks.adopt(named).unwrap();
    assert_eq!((blocks.adopt(named), blocks.num_free(), blocks.num_idle()), (None, 2, 1));
    let mut table = BlockTable::default();
    assert!(blocks.share(&mut table, &hash));
    assert_eq!(table.as_slice(), [block]);
}

#[test]
fn forgotten_contents_are_found_no_more_and_refreshed_ones_stay_longest() {
    let mut blocks = BlockManager::new(3, 1);
    let root = BlockHash::root("test", None);
    let named = |tokens| NamedBlock { parent: root, hash: root.child(tokens), tokens };
    let first = blocks.adopt(named(&[1])).unwrap();
    blocks.adopt(named(&[2])).unwrap();
    blocks.adopt(named(&[3])).unwrap();
    blocks.refresh(&root.child(&[1]));
    let mut table = BlockTable::default();
    assert!(blocks.grow(&mut table, 2));
    assert_eq!(blocks.matching(&[root.child(&[1])]), (1, 1), "the others were idle longer");
    blocks.forget(first);
    assert_eq!((blocks.matching(&[root.child(&[1])]).0, blocks.num_free(), blocks.num_idle()), (0, 1, 0));
}

#[derive(Debug, Clone)]
enum Action {
    Begin { owner: usize, kind: u32, len: usize },
    Extend { owner: usize, by: usize },
    Fork { from: usize, to: usize },
    End { owner: usize },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (0usize..5, 0u32..3, 1usize..30).prop_map(|(owner, kind, len)| Action::Begin { owner, kind, len }),
        (0usize..5, 1usize..9).prop_map(|(owner, by)| Action::Extend { owner, by }),
        (0usize..5, 0usize..5).prop_map(|(from, to)| Action::Fork { from, to }),
        (0usize..5).prop_map(|owner| Action::End { owner }),
    ]
}

/// A table and the tokens that lie in it; those before `len` are written.
#[derive(Debug, Default)]
struct Owner {
    table: BlockTable,
    tokens: Vec<u32>,
}

/// What memory holds, written as a backend would.
struct Memory(Vec<[u32; 4]>);

impl Memory {
    fn write(&mut self, owner: &Owner, from: usize) {
        for (position, &token) in owner.tokens.iter().enumerate().skip(from) {
            self.0[owner.table.as_slice()[position / 4] as usize][position % 4] = token;
        }
    }

    fn check(&self, owner: &Owner) {
        for (position, &token) in owner.tokens.iter().enumerate() {
            assert_eq!(self.0[owner.table.as_slice()[position / 4] as usize][position % 4], token, "at {position}");
        }
    }
}

/// Appends tokens to an owner, if there is room, and publishes what is full.
fn extend(blocks: &mut BlockManager, memory: &mut Memory, owner: &mut Owner, tokens: &[u32]) {
    let begin = owner.tokens.len();
    if !begin.is_multiple_of(4) {
        let mut copies = Vec::new();
        if !blocks.make_writable(&mut owner.table, begin, &mut copies) {
            return;
        }
        for BlockCopy { from, to } in copies {
            memory.0[to as usize] = memory.0[from as usize];
        }
    }
    if blocks.grow(&mut owner.table, begin + tokens.len()) {
        owner.tokens.extend(tokens);
        memory.write(owner, begin);
        publish(blocks, &owner.table, &owner.tokens);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]
    #[test]
    fn no_block_is_lost_and_nobody_reads_what_another_wrote(actions in prop::collection::vec(action(), 1..60)) {
        let mut blocks = BlockManager::new(16, 4);
        let mut memory = Memory(vec![[0; 4]; 16]);
        let mut owners: Vec<Owner> = (0..5).map(|_| Owner::default()).collect();
        let mut next = 100;
        for action in actions {
            match action {
                // Few kinds of prompts, so that many begin alike.
                Action::Begin { owner, kind, len } if owners[owner].tokens.is_empty() => {
                    let tokens: Vec<u32> = (0..len as u32).map(|i| if i < 9 { i } else { i + kind }).collect();
                    let owner = &mut owners[owner];
                    let names = chain(&tokens, 4);
                    let (found, _) = blocks.matching(&names);
                    for name in &names[..found] {
                        prop_assert!(blocks.share(&mut owner.table, name));
                    }
                    owner.tokens.extend(&tokens[..4 * found]);
                    extend(&mut blocks, &mut memory, owner, &tokens[4 * found..]);
                }
                Action::Extend { owner, by } if !owners[owner].tokens.is_empty() => {
                    next += by as u32;
                    let tokens: Vec<u32> = (next - by as u32..next).collect();
                    extend(&mut blocks, &mut memory, &mut owners[owner], &tokens);
                }
                Action::Fork { from, to } if owners[to].tokens.is_empty() => {
                    let table = blocks.fork(&owners[from].table);
                    owners[to] = Owner { table, tokens: owners[from].tokens.clone() };
                }
                Action::End { owner } => {
                    blocks.release(&mut owners[owner].table);
                    owners[owner].tokens.clear();
                }
                _ => {}
            }
            owners.iter().for_each(|owner| memory.check(owner));
            let held: BTreeSet<u32> = owners.iter().flat_map(|owner| owner.table.as_slice()).copied().collect();
            let free: BTreeSet<u32> = blocks.blank.iter().chain(blocks.idle.values()).copied().collect();
            prop_assert!(held.is_disjoint(&free));
            prop_assert_eq!((held.len() + free.len(), free.len()), (16, blocks.num_free()));
        }
    }
}
