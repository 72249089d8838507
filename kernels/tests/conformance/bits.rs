//! The determinism contract: what comes out for a row does not depend on the other rows of its step, on how its sequence
//! was cut into steps, on threads, or on the instruction set. Bits are compared.

use crate::blocks;
use crate::fixture::{How, Sequences, download, no_rope, to_bits, upload};
use crate::operations::{norm_of, qk_norm_of, silu_of, taken};
use std::ops::Range;
use taper_kernels::{Backend, HeadLayout, KvDtype, MatrixData, Rope, RopeKind, Softmax, UnifiedRange, WeightType};
use taper_testkit::rng::SplitMix;
use taper_testkit::thin::thinned;

pub(crate) fn suite<B: Backend>(backend: &B) {
    chunked_prompts_equal_whole_ones(backend);
    batched_sequences_equal_single_ones(backend);
    what_lies_behind_a_row_does_not_matter(backend);
    rows_of_other_operations_are_alone(backend);
    gate_and_up_in_one_pass_have_the_bits_of_two(backend);
}

/// Attention of the ends of some sequences, long enough that several threads leave more states than are kept at once and
/// merge them in rounds; one thread has one round.
pub(crate) fn of_attention_in_rounds<B: Backend>(backend: &B) -> Vec<Vec<u32>> {
    let mut rng = SplitMix::new(24);
    let heads = HeadLayout { num_heads: 12, num_kv_heads: 4, head_dim: 16 };
    let sequences = Sequences::new(&mut rng, heads, &[1100, 700, 1]);
    let ranges = [UnifiedRange { phi: 0, a: -1.0, b: 1.0 }; 4];
    let hows = [Softmax::Online, Softmax::Bounded, Softmax::Calibrated(&ranges)].map(How::split_kv);
    let attention = |how| {
        let mut cache = sequences.cache(backend);
        let all: Vec<_> = (0..3).map(|sequence| (sequence, 0..sequences.len(sequence))).collect();
        sequences.store(backend, &mut cache, &no_rope(), &all);
        // Thirty-two rows of twelve heads with five splits: 1920 states, and tasks of two threads leave 1024 at once.
        let ends = [(0, 1068..1100), (1, 699..700), (2, 0..1)];
        to_bits(&sequences.run(backend, &mut cache, &no_rope(), how, &ends))
    };
    hows.map(attention).into()
}

fn rope(rotary_dim: usize) -> Rope {
    let inv_freq = (0..rotary_dim / 2).map(|i| 500_f64.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
    Rope { kind: RopeKind::AdjacentPairs, rotary_dim, inv_freq, magnitude: 1.0 }
}

fn layouts() -> [HeadLayout; 3] {
    [(3, 1, 64), (2, 2, 16), (8, 1, 18)].map(|(num_heads, num_kv_heads, head_dim)| HeadLayout {
        num_heads,
        num_kv_heads,
        head_dim,
    })
}

/// Runs the steps one after the other on one cache; the rows in order of the steps.
fn run_steps<B: Backend>(
    backend: &B,
    sequences: &Sequences,
    how: How<'_>,
    steps: &[Vec<(usize, Range<usize>)>],
) -> Vec<Vec<u32>> {
    let mut cache = sequences.cache(backend);
    let width = sequences.heads.q_width();
    let rope = rope(sequences.heads.head_dim.min(16));
    let run = |step: &Vec<_>| sequences.run(backend, &mut cache, &rope, how, step);
    steps.iter().flat_map(run).collect::<Vec<f32>>().chunks_exact(width).map(to_bits).collect()
}

/// Steps that cut `0..len` at these lengths, the last repeated.
fn chunks(len: usize, lens: &[usize]) -> Vec<Vec<(usize, Range<usize>)>> {
    let mut steps = Vec::new();
    let mut start = 0;
    let mut lens = lens.iter().copied().chain(std::iter::repeat(*lens.last().unwrap()));
    while start < len {
        let end = len.min(start + lens.next().unwrap());
        steps.push(vec![(0, start..end)]);
        start = end;
    }
    steps
}

fn chunked_prompts_equal_whole_ones<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(20);
    for heads in thinned(layouts(), 3) {
        let len = 600;
        let sequences = Sequences::new(&mut rng, heads, &[len]);
        for how in thinned(How::ALL, 2) {
            let whole = run_steps(backend, &sequences, how, &chunks(len, &[len]));
            // Rows alone after a long prompt are decoding, a few are verified speculation, 7 cuts blocks unevenly.
            let cuts: [&[usize]; 5] = [&[500, 1], &[512, 5], &[64], &[7, 130, 300, 1, 33], &[598, 1]];
            for lens in thinned(cuts, 5) {
                let cut = run_steps(backend, &sequences, how, &chunks(len, lens));
                for (position, (cut, whole)) in cut.iter().zip(&whole).enumerate() {
                    assert!(cut == whole, "{heads:?} {how:?} cut {lens:?}: position {position} differs");
                }
            }
        }
    }
    // Five splits, whose states are merged in one order whoever made them.
    let sequences = Sequences::new(&mut rng, HeadLayout { num_heads: 2, num_kv_heads: 1, head_dim: 18 }, &[1100]);
    let whole = run_steps(backend, &sequences, How::ONLINE, &chunks(1100, &[1100]));
    assert!(run_steps(backend, &sequences, How::ONLINE, &chunks(1100, &[1000, 30, 1])) == whole);
    // From the first token on, one at a time.
    let sequences = Sequences::new(&mut rng, layouts()[0], &[140]);
    let whole = run_steps(backend, &sequences, How::ONLINE, &chunks(140, &[140]));
    assert!(run_steps(backend, &sequences, How::ONLINE, &chunks(140, &[1])) == whole);
}

fn batched_sequences_equal_single_ones<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(21);
    for heads in thinned(layouts(), 3) {
        // Two decode, one begins, one continues its prompt, one verifies three tokens, one has a single token.
        let lens = [530, 64, 130, 400, 520, 1];
        let last = [1, 1, 130, 300, 3, 1];
        let mut sequences = Sequences::new(&mut rng, heads, &lens);
        sequences.dtype = KvDtype::F16;
        for how in thinned(How::ALL, 2) {
            let before: Vec<_> = (0..6).filter(|&s| last[s] < lens[s]).map(|s| (s, 0..lens[s] - last[s])).collect();
            let parts: Vec<_> = (0..6).map(|s| (s, lens[s] - last[s]..lens[s])).collect();
            let together = run_steps(backend, &sequences, how, &[before.clone(), parts.clone()]);
            let together = &together[before.iter().map(|part| part.1.len()).sum()..];
            let mut alone = Vec::new();
            for part in parts {
                let start = part.1.start;
                let mut steps = vec![vec![part.clone()]];
                if start > 0 {
                    steps.insert(0, vec![(part.0, 0..start)]);
                }
                alone.extend(run_steps(backend, &sequences, how, &steps).into_iter().skip(start));
            }
            assert_eq!(together.len(), alone.len());
            for (row, (together, alone)) in together.iter().zip(&alone).enumerate() {
                assert!(together == alone, "{heads:?} {how:?}: row {row} of the batch differs");
            }
        }
    }
}

/// A block that another sequence has used holds stale keys, maybe not even numbers.
fn what_lies_behind_a_row_does_not_matter<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(22);
    for heads in thinned(layouts(), 3) {
        let sequences = Sequences::new(&mut rng, heads, &[70]);
        let mut stale = Sequences::new(&mut rng, heads, &[128]);
        stale.num_blocks = sequences.num_blocks;
        stale.block_tables = sequences.block_tables.clone();
        for how in thinned(How::ALL, 2) {
            let not_finite = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY].into_iter().cycle();
            stale.qkv[0].iter_mut().zip(not_finite).for_each(|(x, y)| *x = y);
            let mut cache = sequences.cache(backend);
            stale.run(backend, &mut cache, &rope(0), how, &[(0, 0..128)]);
            let on_stale = sequences.run(backend, &mut cache, &rope(0), how, &[(0, 0..70)]);
            let mut cache = sequences.cache(backend);
            let on_zeroes = sequences.run(backend, &mut cache, &rope(0), how, &[(0, 0..70)]);
            assert!(to_bits(&on_stale) == to_bits(&on_zeroes), "{heads:?} {how:?}");
        }
    }
}

fn rows_of_other_operations_are_alone<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(23);
    let (rows, cols) = (70, 576);
    let (x, weight) = (rng.normals(rows * cols, 1.0), rng.normals(cols, 1.0));
    let heads = HeadLayout { num_heads: 5, num_kv_heads: 2, head_dim: 64 };
    let head_weight = rng.normals(64, 1.0);
    let together = norm_of(backend, cols, &x, &weight);
    let activated = silu_of(backend, cols / 2, &x);
    let normed = qk_norm_of(backend, heads, &x, &head_weight, &head_weight);
    for row in [0, 1, 33, 69] {
        let at = row * cols..(row + 1) * cols;
        let x = &x[at.clone()];
        assert_eq!(to_bits(&together[at.clone()]), to_bits(&norm_of(backend, cols, x, &weight)));
        let half = row * cols / 2..(row + 1) * cols / 2;
        assert_eq!(to_bits(&activated[half]), to_bits(&silu_of(backend, cols / 2, x)));
        assert_eq!(to_bits(&normed[at]), to_bits(&qk_norm_of(backend, heads, x, &head_weight, &head_weight)));
    }
    for weight_type in taken(backend, &TYPES) {
        let together = linear_of(backend, weight_type, cols, &x);
        let outputs = together.len() / rows;
        for row in [0, 1, 33, 69] {
            let alone = linear_of(backend, weight_type, cols, &x[row * cols..(row + 1) * cols]);
            assert_eq!(to_bits(&together[row * outputs..][..outputs]), to_bits(&alone), "{weight_type:?}");
        }
    }
}

/// Types with kernels of their own kinds; processors have none for the last.
const TYPES: [WeightType; 6] =
    [WeightType::F32, WeightType::BF16, WeightType::Q8_0, WeightType::Q4_1, WeightType::Q4_0, WeightType::F8E4M3];

/// A product with a fixed matrix of 100 outputs.
fn linear_of<B: Backend>(b: &B, weight_type: WeightType, cols: usize, x: &[f32]) -> Vec<f32> {
    let (rows, outputs) = (x.len() / cols, 100);
    let bytes = weights_of(weight_type, outputs, cols, 24);
    let matrix = b.matrix(&[MatrixData { weight_type, rows: outputs, cols, bytes: &bytes }]).unwrap();
    let mut out = b.buffer(rows, outputs).unwrap();
    b.linear(rows, &upload(b, cols, x), &matrix, None, &mut out);
    download(b, &out, rows, outputs)
}

/// Gate and up in one pass, of two parts of one height and of one part: what the two operations give one after the other.
fn gate_and_up_in_one_pass_have_the_bits_of_two<B: Backend>(b: &B) {
    let (cols, outputs) = (512, 200);
    let x = SplitMix::new(26).normals(70 * cols, 1.0);
    for weight_type in taken(b, &TYPES) {
        let parts = [27, 28].map(|seed| weights_of(weight_type, outputs, cols, seed));
        let part = |bytes| MatrixData { weight_type, rows: outputs, cols, bytes };
        let pair = b.matrix(&parts.each_ref().map(|bytes| part(bytes))).unwrap();
        let single = b.matrix(&[part(&parts[0])]).unwrap();
        for (matrix, width) in [(pair, outputs), (single, outputs / 2)] {
            for rows in [1, 2, 7, 70] {
                let x = upload(b, cols, &x[..rows * cols]);
                let mut gate_up = b.buffer(rows, 2 * width).unwrap();
                let [mut expected, mut actual] = [(); 2].map(|()| b.buffer(rows, width).unwrap());
                b.linear(rows, &x, &matrix, None, &mut gate_up);
                b.silu_mul(rows, &gate_up, &mut expected);
                b.linear_silu_mul(rows, &x, &matrix, &mut gate_up, &mut actual);
                let [expected, actual] = [expected, actual].map(|out| to_bits(&download(b, &out, rows, width)));
                assert_eq!(actual, expected, "{weight_type:?}, {rows} rows to {width}");
            }
        }
    }
}

/// A fixed matrix.
fn weights_of(weight_type: WeightType, outputs: usize, cols: usize, seed: u64) -> Vec<u8> {
    let mut rng = SplitMix::new(seed);
    match weight_type {
        WeightType::F32 => rng.normals(outputs * cols, 1.0).iter().flat_map(|x| x.to_le_bytes()).collect(),
        WeightType::BF16 => {
            rng.normals(outputs * cols, 1.0).iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect()
        }
        // Any bytes are nibbles; a scale of 0x2c.. is about 0.06.
        _ => {
            let mut bytes = rng.bytes(outputs * weight_type.row_bytes(cols).unwrap());
            for block in bytes.chunks_exact_mut(weight_type.block_bytes()) {
                (block[1], block[3]) = (0x2c, 0x2c);
                if weight_type == WeightType::F8E4M3 {
                    block[2..].iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code ^= 1);
                }
            }
            bytes
        }
    }
}

/// Bits of the results of every operation that computes, on fixed inputs.
pub(crate) fn of_every_operation<B: Backend>(backend: &B) -> Vec<(String, Vec<u32>)> {
    let mut rng = SplitMix::new(25);
    let (rows, cols) = (130, 576);
    let (x, weight) = (rng.normals(rows * cols, 1.0), rng.normals(cols, 1.0));
    let heads = HeadLayout { num_heads: 5, num_kv_heads: 2, head_dim: 64 };
    let head_weight = rng.normals(64, 1.0);
    let mut results = vec![
        ("rms_norm".to_string(), to_bits(&norm_of(backend, cols, &x, &weight))),
        ("silu_mul".into(), to_bits(&silu_of(backend, cols / 2, &x))),
        ("qk_norm".into(), to_bits(&qk_norm_of(backend, heads, &x, &head_weight, &head_weight))),
    ];
    for weight_type in &TYPES[..5] {
        for rows in [1, 2, 7, 130] {
            let product = linear_of(backend, *weight_type, cols, &x[..rows * cols]);
            results.push((format!("linear, {weight_type:?}, {rows} rows"), to_bits(&product)));
        }
    }
    for heads in thinned(layouts(), 3) {
        let mut sequences = Sequences::new(&mut rng, heads, &[620, 300]);
        for dtype in thinned([KvDtype::F16, KvDtype::BF16, KvDtype::F32, KvDtype::Q8_0], 3) {
            if dtype == KvDtype::Q8_0 && !heads.head_dim.is_multiple_of(32) {
                continue;
            }
            sequences.dtype = dtype;
            for how in thinned(How::ALL, 2) {
                let steps = [vec![(0, 0..500), (1, 0..299)], vec![(0, 500..600), (1, 299..300)], vec![(0, 600..620)]];
                let bits = run_steps(backend, &sequences, how, &steps);
                results.push((format!("attention, {how:?}, {dtype:?}, {heads:?}"), bits.concat()));
            }
        }
    }
    let block = |dtype| (format!("export_kv_block, {dtype:?}"), blocks::exported(backend, dtype));
    results.extend(blocks::DTYPES.map(block));
    results
}
