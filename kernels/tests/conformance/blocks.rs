//! Moved blocks: what attention computes over a block has the same bits after the block was copied to another place, or
//! exported and imported.

use crate::fixture::{How, Sequences, no_rope, to_bits};
use taper_kernels::{BLOCK_SIZE, Backend, Error, HeadLayout, KvDtype, KvLayout};
use taper_testkit::rng::SplitMix;

pub(crate) const DTYPES: [KvDtype; 5] = [KvDtype::F16, KvDtype::BF16, KvDtype::F32, KvDtype::Q8_0, KvDtype::F8E4M3];
/// Two whole blocks and a part of a third.
const LEN: usize = 2 * BLOCK_SIZE + 9;

pub(crate) fn suite<B: Backend>(backend: &B) {
    for dtype in DTYPES {
        copies_serve_as_the_originals(backend, dtype);
        exported_blocks_serve_in_another_cache(backend, dtype);
        a_block_is_all_of_its_bytes_and_no_other_blocks(backend, dtype);
    }
}

/// A size of heads that every backend knows with keys of this type.
fn head_dim(dtype: KvDtype) -> usize {
    if dtype == KvDtype::F8E4M3 { 64 } else { 32 }
}

/// Two sequences of the same length, and a cache that holds the first.
fn sequences<B: Backend>(backend: &B, dtype: KvDtype) -> (Sequences, B::KvCache) {
    let head_dim = head_dim(dtype);
    let heads = HeadLayout { num_heads: 6, num_kv_heads: 2, head_dim };
    let sequences = Sequences { dtype, ..Sequences::new(&mut SplitMix::new(40), heads, &[LEN, LEN]) };
    let mut cache = sequences.cache(backend);
    sequences.store(backend, &mut cache, &no_rope(), &[(0, 0..LEN)]);
    (sequences, cache)
}

/// The bytes of a whole block, which another instruction set may go on with.
pub(crate) fn exported<B: Backend>(backend: &B, dtype: KvDtype) -> Vec<u32> {
    let (sequences, cache) = sequences(backend, dtype);
    let mut bytes = Vec::new();
    backend.export_kv_block(&cache, sequences.block_tables[0][1], &mut bytes);
    bytes.into_iter().map(u32::from).collect()
}

/// Attention of the last row of a sequence, in every way: its own block is written again, the others are read.
fn attend<B: Backend>(
    backend: &B,
    sequences: &Sequences,
    cache: &mut B::KvCache,
    sequence: usize,
) -> [Vec<u32>; How::ALL.len()] {
    How::ALL.map(|how| to_bits(&sequences.run(backend, cache, &no_rope(), how, &[(sequence, LEN - 1..LEN)])))
}

/// As when two answers to one prompt share its blocks and then go apart.
fn copies_serve_as_the_originals<B: Backend>(backend: &B, dtype: KvDtype) {
    let (mut sequences, mut cache) = sequences(backend, dtype);
    let expected = attend(backend, &sequences, &mut cache, 0);
    let originals = sequences.block_tables[0].clone();
    let others = sequences.block_tables[1].clone();
    for (&from, &to) in originals.iter().zip(&others) {
        backend.copy_kv_block(&mut cache, from, to);
    }
    sequences.block_tables[0] = others;
    // Whoever has the originals goes on with them.
    sequences.block_tables[1] = originals;
    sequences.store(backend, &mut cache, &no_rope(), &[(1, 0..LEN)]);
    assert!(attend(backend, &sequences, &mut cache, 0) == expected, "{dtype:?}: copies differ from their originals");
}

fn exported_blocks_serve_in_another_cache<B: Backend>(backend: &B, dtype: KvDtype) {
    let (mut sequences, mut cache) = sequences(backend, dtype);
    let expected = attend(backend, &sequences, &mut cache, 0);
    let export = |&block: &u32| {
        let mut bytes = Vec::new();
        backend.export_kv_block(&cache, block, &mut bytes);
        bytes
    };
    let exported: Vec<Vec<u8>> = sequences.block_tables[0].iter().map(export).collect();

    sequences.block_tables[0].rotate_left(1);
    sequences.num_blocks += 3;
    let mut restored = sequences.cache(backend);
    for (&block, bytes) in sequences.block_tables[0].iter().zip(&exported) {
        backend.import_kv_block(&mut restored, block, bytes).unwrap();
    }
    assert!(attend(backend, &sequences, &mut restored, 0) == expected, "{dtype:?}: imported blocks differ");
}

/// With bytes of no meaning, so that all layers, heads and places are seen.
fn a_block_is_all_of_its_bytes_and_no_other_blocks<B: Backend>(backend: &B, dtype: KvDtype) {
    let layout = KvLayout { num_layers: 3, num_blocks: 4, num_kv_heads: 2, head_dim: head_dim(dtype), dtype };
    let len = backend.kv_block_bytes(layout) * layout.num_layers;
    let mut rng = SplitMix::new(41);
    let blocks: Vec<Vec<u8>> = (0..4).map(|_| (0..len).map(|_| rng.below(256) as u8).collect()).collect();
    let mut cache = backend.kv_cache(layout).unwrap();
    for (block, bytes) in blocks.iter().enumerate() {
        backend.import_kv_block(&mut cache, block as u32, bytes).unwrap();
    }
    let assert_holds = |cache: &B::KvCache, expected: [usize; 4]| {
        for (block, of) in expected.into_iter().enumerate() {
            let mut bytes = vec![7];
            backend.export_kv_block(cache, block as u32, &mut bytes);
            assert!(bytes[0] == 7 && bytes[1..] == blocks[of], "{dtype:?}: block {block} is not that of {of}");
        }
    };
    assert_holds(&cache, [0, 1, 2, 3]);
    backend.copy_kv_block(&mut cache, 3, 1);
    assert_holds(&cache, [0, 3, 2, 3]);

    for wrong in [0, len - 1, len + 1, 2 * len] {
        let refused = backend.import_kv_block(&mut cache, 0, &vec![0; wrong]);
        assert!(matches!(refused, Err(Error::BlockSize { expected, actual }) if (expected, actual) == (len, wrong)));
    }
    assert_holds(&cache, [0, 3, 2, 3]);
}
