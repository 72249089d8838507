//! Checks that the kernels of this machine compute what the specification says, for machines where the test suite is not:
//! what `taper selftest` runs. Each operation gets seeded random operands and is held against [`Reference`].

mod data;

use crate::{
    Activations, AttentionParams, AttentionScheme, BLOCK_SIZE, Backend, Error, HeadLayout, KvDtype, KvLayout,
    MatrixData, Reference, Rope, RopeKind, SequenceSpan, Softmax, StepTables, UnifiedRange, WeightType, cuda,
};
use data::{Random, random_matrix};

/// One comparison with the reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Operation, types and sizes.
    pub name: String,
    /// Largest difference, over the root mean square of the reference's values.
    pub error: f64,
    /// What is allowed.
    pub tolerance: f64,
}

impl Check {
    /// Whether the kernel computes what it should. What is not a number has not.
    pub fn passed(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// Checks every operation of a backend; `done` is told of each check as it ends.
///
/// # Errors
/// When there is not enough memory (some megabytes).
pub fn run<B: Backend>(backend: &B, done: &mut dyn FnMut(Check)) -> Result<(), Error> {
    for weight_type in WeightType::ALL.into_iter().filter(|&weight_type| backend.takes(weight_type)) {
        for rows in [1, 3, 8, 50] {
            done(linear(backend, weight_type, rows, SHAPE)?);
        }
    }
    // Sums that a GPU may divide among several blocks of threads, and rows for each of its kernels.
    for rows in [16, 17, 40, 128, 200] {
        done(linear(backend, WeightType::BF16, rows, LONG_SHAPE)?);
    }
    for check in [norms(backend)?, qk_norm(backend)?, silu_mul(backend)?, additions(backend)?] {
        done(check);
    }
    if let Some(check) = choose(backend)? {
        done(check);
    }
    for dtype in DTYPES {
        for (name, scheme, softmax) in SCHEMES {
            done(attention(backend, dtype, (name, scheme, softmax))?);
        }
    }
    Ok(())
}

/// What keys and values are stored as.
const DTYPES: [KvDtype; 5] = [KvDtype::F32, KvDtype::F16, KvDtype::BF16, KvDtype::Q8_0, KvDtype::F8E4M3];

/// Outputs and inputs of products.
const SHAPE: (usize, usize) = (100, 512);
const LONG_SHAPE: (usize, usize) = (200, 1056);

const RANGES: [UnifiedRange; 2] = [UnifiedRange { phi: 0, a: -80.0, b: 80.0 }; 2];

/// Ways to compute attention.
const SCHEMES: [(&str, AttentionScheme, Softmax<'static>); 5] = [
    ("online", AttentionScheme::SplitKv, Softmax::Online),
    ("online with a threshold", AttentionScheme::SplitKv, Softmax::OnlineThreshold),
    ("bounded", AttentionScheme::SplitKv, Softmax::Bounded),
    ("calibrated", AttentionScheme::SplitKv, Softmax::Calibrated(&RANGES)),
    ("naive", AttentionScheme::Naive, Softmax::Online),
];

/// Tokens drawn from rows of logits, spread and flat; none where the backend leaves that to others.
fn choose<B: Backend>(backend: &B) -> Result<Option<Check>, Error> {
    const COLS: usize = 9000;
    let mut random = Random::new(7);
    let mut logits: Vec<f32> = random.normals(2 * COLS).iter().map(|x| 4.0 * x).collect();
    logits[COLS..].iter_mut().for_each(|x| *x *= 0.05);
    let mut draws = Vec::new();
    for (index, (min_p, top_k, top_p)) in
        [(0.0, 0, 1.0), (0.05, 0, 1.0), (0.0, 40, 1.0), (0.0, 0, 0.9), (0.01, 6000, 0.7)].into_iter().enumerate()
    {
        for (row, temperature) in [(0, 0.0), (0, 0.8), (1, 1.2)] {
            let unit = (index as u64 * 3 + row as u64 + 1).wrapping_mul(0x1357_9bdf_0246_8ace);
            draws.push((row, crate::Draw { temperature, min_p, top_k, top_p, unit }));
        }
    }
    let mut tokens = Vec::new();
    if !backend.choose(&backend.buffer_of(COLS, &logits)?, &draws, &mut tokens) {
        return Ok(None);
    }
    let as_floats =
        |tokens: &[Option<u32>]| tokens.iter().map(|token| token.map_or(-1.0, |token| token as f32)).collect();
    let actual: Vec<f32> = as_floats(&tokens);
    let expected = |reference: &Reference| {
        reference.choose(&reference.buffer_of(COLS, &logits)?, &draws, &mut tokens);
        Ok(as_floats(&tokens))
    };
    check("tokens drawn".into(), 0.0, backend, |_| Ok(actual), expected).map(Some)
}

/// Compares what two backends give for the same operands.
fn check<B: Backend>(
    name: String,
    tolerance: f64,
    backend: &B,
    actual: impl FnOnce(&B) -> Result<Vec<f32>, Error>,
    expected: impl FnOnce(&Reference) -> Result<Vec<f32>, Error>,
) -> Result<Check, Error> {
    let (actual, expected) = (actual(backend)?, expected(&Reference::new())?);
    let size = (expected.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / expected.len() as f64).sqrt();
    let differences = actual.iter().zip(&expected).map(|(&a, &e)| (f64::from(a) - f64::from(e)).abs() / size);
    // Not `max`, which would drop what is not a number.
    let error = differences.fold(0.0, |worst, x| if worst >= x || worst.is_nan() { worst } else { x });
    Ok(Check { name, error, tolerance })
}

/// `check!(name, tolerance, backend, |b| ...)`: the same closure for both backends, which are of different types.
macro_rules! check {
    ($name:expr, $tolerance:expr, $backend:expr, |$b:ident| $body:expr) => {
        check($name, $tolerance, $backend, |$b| $body, |$b| $body)
    };
}

fn download<B: Backend>(backend: &B, buffer: &B::Buffer, rows: usize, cols: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; rows * cols];
    backend.read_rows(buffer, 0..rows, &mut values);
    values
}

fn linear<B: Backend>(
    backend: &B,
    weight_type: WeightType,
    rows: usize,
    (outputs, inputs): (usize, usize),
) -> Result<Check, Error> {
    let mut random = Random::new(1);
    let bytes = random_matrix(&mut random, weight_type, outputs, inputs);
    let (x, bias) = (random.normals(rows * inputs), random.normals(outputs));
    let tolerance = match backend.info().numerics_class {
        // 6.5 standard deviations of the error that rounding to so many bits makes: `2^-bits / sqrt(3 * 3 / (2 ln 2))`.
        cuda::NUMERICS_CLASS | cuda::NUMERICS_CLASS_BY_ROWS
            if cuda::activation_bits(weight_type) < f32::MANTISSA_DIGITS =>
        {
            2.56 * 0.5_f64.powi(cuda::activation_bits(weight_type) as i32)
        }
        _ if matches!(weight_type, WeightType::F32 | WeightType::F16) => 1e-4,
        _ if weight_type == WeightType::BF16 => 1e-2,
        class if class == Activations::Mixed.class() => 5e-2,
        _ => 6e-4,
    };
    let name = format!("linear {weight_type:?}, {rows} rows of {inputs} to {outputs}");
    check!(name, tolerance, backend, |b| {
        let matrix = b.matrix(&[MatrixData { weight_type, rows: outputs, cols: inputs, bytes: &bytes }])?;
        let (x, bias, mut out) = (b.buffer_of(inputs, &x)?, b.vector(&bias)?, b.buffer(rows, outputs)?);
        b.linear(rows, &x, &matrix, Some(&bias), &mut out);
        Ok(download(b, &out, rows, outputs))
    })
}

fn norms<B: Backend>(backend: &B) -> Result<Check, Error> {
    let (rows, cols) = (5, 576);
    let mut random = Random::new(2);
    let (x, weight) = (random.normals(rows * cols), random.normals(cols));
    check!("rms_norm".into(), 1e-5, backend, |b| {
        let (x, weight, mut out) = (b.buffer_of(cols, &x)?, b.vector(&weight)?, b.buffer(rows, cols)?);
        b.rms_norm(rows, &x, &weight, 1e-5, &mut out);
        Ok(download(b, &out, rows, cols))
    })
}

fn qk_norm<B: Backend>(backend: &B) -> Result<Check, Error> {
    let rows = 3;
    let width = HEADS.qkv_width();
    let mut random = Random::new(3);
    let (qkv, q, k) = (random.normals(rows * width), random.normals(HEADS.head_dim), random.normals(HEADS.head_dim));
    check!("qk_norm".into(), 1e-5, backend, |b| {
        let (mut qkv, q, k) = (b.buffer_of(width, &qkv)?, b.vector(&q)?, b.vector(&k)?);
        b.qk_norm(rows, &mut qkv, HEADS, &q, &k, 1e-6);
        Ok(download(b, &qkv, rows, width))
    })
}

fn silu_mul<B: Backend>(backend: &B) -> Result<Check, Error> {
    let (rows, cols) = (4, 333);
    let gate_up = Random::new(4).normals(rows * 2 * cols);
    check!("silu_mul".into(), 1e-5, backend, |b| {
        let (gate_up, mut out) = (b.buffer_of(2 * cols, &gate_up)?, b.buffer(rows, cols)?);
        b.silu_mul(rows, &gate_up, &mut out);
        Ok(download(b, &out, rows, cols))
    })
}

fn additions<B: Backend>(backend: &B) -> Result<Check, Error> {
    let (rows, cols) = (6, 50);
    let mut random = Random::new(5);
    let (x, delta) = (random.normals(rows * cols), random.normals(rows * cols));
    check!("embed, add, gather_rows".into(), 0.0, backend, |b| {
        let (mut x, delta, mut out) = (b.buffer_of(cols, &x)?, b.buffer_of(cols, &delta)?, b.buffer(3, cols)?);
        b.add(rows, &mut x, &delta);
        b.gather_rows(&x, &[5, 0, 5], &mut out);
        Ok(download(b, &out, 3, cols))
    })
}

const HEADS: HeadLayout = HeadLayout { num_heads: 6, num_kv_heads: 2, head_dim: 64 };

/// A prompt of 700 tokens, then one more token: rotation, storing, prefill and decode.
fn attention<B: Backend>(
    backend: &B,
    dtype: KvDtype,
    (name, scheme, softmax): (&str, AttentionScheme, Softmax<'static>),
) -> Result<Check, Error> {
    const PROMPT: usize = 700;
    let width = HEADS.qkv_width();
    let qkv = Random::new(6).normals((PROMPT + 1) * width);
    let num_blocks = (PROMPT + 1).div_ceil(BLOCK_SIZE);
    let rope = Rope {
        kind: RopeKind::HalfSplit,
        rotary_dim: HEADS.head_dim,
        inv_freq: (0..HEADS.head_dim / 2).map(|i| 10_000_f64.powf(-(i as f64) / 32.0)).collect(),
        magnitude: 1.0,
    };
    // Differences that rounding keys and values makes, over a typical answer: averages of many values are small.
    let tolerance = match dtype {
        KvDtype::F32 => 1e-4,
        KvDtype::F16 => 2e-2,
        KvDtype::BF16 => 0.15,
        KvDtype::Q8_0 => 0.4,
        // Thirty-two times the rounding of bfloat16.
        KvDtype::F8E4M3 => 4.0,
    };
    check!(format!("attention {name}, {dtype:?} keys, decode and prefill"), tolerance, backend, |b| {
        let layout =
            KvLayout { num_layers: 1, num_blocks, num_kv_heads: HEADS.num_kv_heads, head_dim: HEADS.head_dim, dtype };
        let params = AttentionParams { layer: 0, heads: HEADS, scale: 0.125, scheme, softmax };
        let mut cache = b.kv_cache(layout)?;
        let mut answers = Vec::new();
        for rows in [0..PROMPT, PROMPT..PROMPT + 1] {
            let step = StepTables {
                positions: rows.clone().map(|position| position as u32).collect(),
                slots: rows.clone().map(|position| position as u32).collect(),
                spans: vec![SequenceSpan { rows: 0..rows.len(), context_len: rows.end, blocks: 0..num_blocks }],
                block_tables: (0..num_blocks as u32).collect(),
            };
            let mut qkv = b.buffer_of(width, &qkv[rows.start * width..rows.end * width])?;
            let mut angles = b.buffer(rows.len(), HEADS.head_dim)?;
            let mut out = b.buffer(rows.len(), HEADS.q_width())?;
            b.rope_angles(&rope, &step.positions, &mut angles);
            b.rope_kv_store(&step, &rope, &angles, params, &mut qkv, &mut cache);
            b.attention(&step, params, &qkv, &cache, &mut out);
            answers.extend(download(b, &out, rows.len(), HEADS.q_width()));
        }
        Ok(answers)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::{Cpu, CpuConfig};

    #[test]
    fn every_instruction_set_and_the_reference_pass() {
        let mut count = 0;
        let mut done = |check: Check| {
            assert!(check.passed(), "{check:?}");
            count += 1;
        };
        run(&Reference::new(), &mut done).unwrap();
        for isa in Isa::available() {
            let cpu = Cpu::new(CpuConfig { threads: Some(2), isa: Some(isa.name().into()) }).unwrap();
            for activations in [Activations::Full, Activations::Mixed] {
                run(&cpu.clone().with_activations(activations), &mut done).unwrap();
            }
        }
        let of_each = WeightType::OF_FILES.len() * 4 + 5 + 4 + DTYPES.len() * SCHEMES.len();
        // The reference has products with e4m3 and draws tokens, too.
        assert_eq!(count, of_each * (1 + 2 * Isa::available().len()) + 4 + 1);
    }

    #[test]
    fn a_wrong_value_and_one_that_is_no_number_fail() {
        let backend = Reference::new();
        let against =
            |actual: Vec<f32>| check("x".into(), 1e-3, &backend, |_| Ok(actual), |_| Ok(vec![1.0, -1.0])).unwrap();
        assert!(against(vec![1.0, -1.0005]).passed());
        assert!(!against(vec![1.0, -1.01]).passed());
        assert!(!against(vec![f32::NAN, -1.0]).passed());
        assert!(!against(vec![-1.0, f32::NAN]).passed());
    }
}
