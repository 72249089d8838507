//! Attention of one generated token by candle's tensors, all scores in memory: `softmax(q k^T scale) v` with candle's matrix
//! product and candle-nn's softmax.
//!
//! The query heads that share a KV head are the rows of one product, so no key is copied. Keys and values are float16 numbers,
//! held as float16 or widened to float32 beforehand, whichever computes faster: candle's products of float16 convert as
//! they go. Calls walk a ring of layers, as a model does.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use std::time::{Duration, Instant};

/// Least time of one sample.
const MIN_SAMPLE: Duration = Duration::from_millis(1);
/// Calls of each type of keys before the faster is taken.
const TRIALS: usize = 5;

/// Heads, keys and batch: `32/8x64 b1@4096`, as `taper bench attention` writes it.
#[derive(Debug, Clone, Copy)]
struct Shape {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    batch: usize,
    len: usize,
}

impl Shape {
    fn parse(name: &str) -> Option<Shape> {
        let (heads, rest) = name.split_once(" b")?;
        let (num_heads, rest_of_heads) = heads.split_once('/')?;
        let (num_kv_heads, head_dim) = rest_of_heads.split_once('x')?;
        let (batch, len) = rest.split_once('@')?;
        let number = |digits: &str| digits.parse::<usize>().ok().filter(|n| *n > 0);
        Some(Shape {
            num_heads: number(num_heads)?,
            num_kv_heads: number(num_kv_heads)?,
            head_dim: number(head_dim)?,
            batch: number(batch)?,
            len: number(len)?,
        })
    }
}

/// A ring of keys and values of one shape and type.
struct Ring {
    dtype: DType,
    scale: f64,
    queries: Tensor,
    /// `[batch * KV heads, keys, head_dim]` each.
    layers: Vec<(Tensor, Tensor)>,
    next: usize,
}

impl Ring {
    fn new(shape: Shape, dtype: DType, num_layers: usize) -> Result<Ring> {
        let Shape { num_heads, num_kv_heads, head_dim, batch, len } = shape;
        let random = |rows: usize, cols: usize| {
            let size = (batch * num_kv_heads, rows, cols);
            Tensor::rand(-1f32, 1f32, size, &Device::Cpu)?.to_dtype(DType::F16)?.to_dtype(dtype)
        };
        let layers = (0..num_layers).map(|_| Ok((random(len, head_dim)?, random(len, head_dim)?)));
        Ok(Ring {
            dtype,
            scale: 1.0 / (head_dim as f64).sqrt(),
            queries: random(num_heads / num_kv_heads, head_dim)?,
            layers: layers.collect::<Result<_>>()?,
            next: 0,
        })
    }

    /// Seconds of one call, and the bytes of what it has in memory at once beside its operands.
    fn attend(&mut self) -> Result<(f64, usize)> {
        let (keys, values) = &self.layers[self.next];
        self.next = (self.next + 1) % self.layers.len();
        let start = Instant::now();
        let queries = (&self.queries * self.scale)?;
        let scores = queries.matmul(&keys.t()?)?;
        let weights = candle_nn::ops::softmax_last_dim(&scores)?;
        let out = weights.matmul(values)?;
        let seconds = start.elapsed().as_secs_f64();
        std::hint::black_box(&out);
        let elements = [&queries, &scores, &weights].map(Tensor::elem_count).iter().sum::<usize>();
        Ok((seconds, elements * self.dtype.size_in_bytes()))
    }

    /// Mean seconds of the calls of one sample, and their working memory.
    fn sample(&mut self) -> Result<(f64, usize)> {
        let (mut calls, mut spent) = (0, 0.0);
        loop {
            let (seconds, bytes) = self.attend()?;
            (calls, spent) = (calls + 1, spent + seconds);
            if spent >= MIN_SAMPLE.as_secs_f64() {
                return Ok((spent / f64::from(calls), bytes));
            }
        }
    }
}

/// Answers shapes, line by line.
pub fn serve(ring_bytes: usize) -> Result<()> {
    let mut known: Option<(String, Ring)> = None;
    for name in std::io::stdin().lines() {
        let name = name?;
        let ring = match &mut known {
            Some((known, ring)) if *known == name => ring,
            known => &mut {
                // The old ring first: two may be more than the machine has.
                *known = None;
                known.insert((name.clone(), faster(&name, ring_bytes)?))
            }
            .1,
        };
        let (seconds, working_bytes) = ring.sample()?;
        let kv = ring.dtype.as_str().to_uppercase();
        println!("{}", serde_json::json!({ "case": name, "median": seconds, "working_bytes": working_bytes, "kv": kv }));
    }
    Ok(())
}

/// The ring of the type that computes faster.
fn faster(name: &str, ring_bytes: usize) -> Result<Ring> {
    let shape = Shape::parse(name).with_context(|| format!("{name}: expected HEADS/KV_HEADSxDIM bBATCH@KEYS"))?;
    ensure!(shape.num_heads % shape.num_kv_heads == 0, "{name}: every KV head serves equally many query heads");
    let layer_bytes = 2 * shape.batch * shape.num_kv_heads * shape.len * shape.head_dim * DType::F16.size_in_bytes();
    let num_layers = ring_bytes.div_ceil(layer_bytes);
    let timed = |dtype| -> Result<(f64, Ring)> {
        let mut ring = Ring::new(shape, dtype, num_layers)?;
        let mut best = f64::INFINITY;
        for _ in 0..TRIALS {
            best = best.min(ring.sample()?.0);
        }
        Ok((best, ring))
    };
    let ((half, half_ring), (single, single_ring)) = (timed(DType::F16)?, timed(DType::F32)?);
    Ok(if half < single { half_ring } else { single_ring })
}
