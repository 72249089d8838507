//! Matrix products `[M, K] x [N, K]^T` as a model makes them: few rows are bound by reading the weights, many by arithmetic.
//!
//! Products walk a ring of distinct matrices, larger together than any cache, so weights come from memory as they do in a
//! model. The rate is in GFLOP/s, two operations per weight and row; the bandwidth beside it counts each product's weights
//! once, in the bytes that a file stores.

use crate::machine::afford;
use crate::plot::{Plot, Series};
use crate::{Effort, Error, Measurement, Record, Summary, params};
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use taper_kernels::{Backend, MatrixData, WeightType};

/// Name of the benchmark.
pub const NAME: &str = "gemm";
/// Bytes of distinct matrices, unless told otherwise.
pub const DEFAULT_RING_BYTES: usize = 288 << 20;
/// Numbers of rows, unless told otherwise.
pub const DEFAULT_ROWS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Shapes, unless told otherwise: those of SmolLM2-135M (qkv, o, gate and up, down, head) and of a Llama of 1B.
pub const DEFAULT_SHAPES: [Shape; 9] = [
    Shape { n: 960, k: 576 },
    Shape { n: 576, k: 576 },
    Shape { n: 3072, k: 576 },
    Shape { n: 576, k: 1536 },
    Shape { n: 49152, k: 576 },
    Shape { n: 2048, k: 2048 },
    Shape { n: 512, k: 2048 },
    Shape { n: 8192, k: 2048 },
    Shape { n: 2048, k: 8192 },
];

/// Outputs N and inputs K of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Shape, String> {
        let positive = |digits: &str| digits.parse().ok().filter(|n| (1..=1 << 24).contains(n));
        let sizes = text.split_once('x').and_then(|(n, k)| Some(Shape { n: positive(n)?, k: positive(k)? }));
        sizes.ok_or_else(|| format!("`{text}` is no shape: expected NxK, outputs and inputs, such as 2048x576"))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.n, self.k)
    }
}

/// What is measured: every type with every shape and every number of rows.
#[derive(Debug, Clone)]
pub struct Cases {
    /// Weight types.
    pub types: Vec<WeightType>,
    /// Matrices.
    pub shapes: Vec<Shape>,
    /// Rows M.
    pub rows: Vec<usize>,
    /// Bytes of distinct matrices to walk through.
    pub ring_bytes: usize,
    /// How long each product is timed.
    pub effort: Effort,
}

/// The clock of a backend: mean seconds of a call.
pub type Clock<'a> = &'a mut dyn FnMut(&mut dyn FnMut()) -> Result<f64, Error>;

/// Measures all cases; `progress` is told of each in words, and of those that a type cannot store.
///
/// # Errors
/// When there is not enough memory for a matrix, and the clock's.
pub fn measure<B: Backend>(
    backend: &B,
    clock: Clock<'_>,
    cases: &Cases,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>, Error> {
    let mut measured = Vec::new();
    for &shape in &cases.shapes {
        for &weight_type in &cases.types {
            match weight_type.row_bytes(shape.k) {
                Some(row_bytes) => one_matrix((backend, clock), cases, (weight_type, shape, row_bytes), &mut |row| {
                    let gbps = row.gbps.unwrap_or(f64::NAN);
                    progress(&format!("{}: {:.1} GFLOP/s, {gbps:.1} GB/s", row.case, row.summary.median));
                    measured.push(row);
                })?,
                None => {
                    let block = weight_type.block_len();
                    progress(&format!("{weight_type:?} {shape} is left out: {} is no multiple of {block}", shape.k));
                }
            }
        }
    }
    Ok(measured)
}

fn one_matrix<B: Backend>(
    (backend, clock): (&B, Clock<'_>),
    cases: &Cases,
    (weight_type, shape, row_bytes): (WeightType, Shape, usize),
    done: &mut dyn FnMut(Measurement),
) -> Result<(), Error> {
    let Shape { n, k } = shape;
    let most = cases.rows.iter().copied().max().unwrap_or(0);
    let matrix_bytes = n.saturating_mul(row_bytes);
    let count = cases.ring_bytes.div_ceil(matrix_bytes).max(1);
    let activations_bytes = n.saturating_add(k).saturating_mul(most).saturating_mul(4);
    let bytes = (count + 1).saturating_mul(matrix_bytes).saturating_add(activations_bytes);
    match backend.free_bytes() {
        Some(free) if bytes > free => return Err(Error::Memory { bytes }),
        // It has memory of its own; here one matrix is made ready.
        Some(_) => afford(matrix_bytes)?,
        None => afford(bytes)?,
    }
    // Which values are multiplied does not change the time, as long as none is subnormal: as a float of any size these
    // bytes are an ordinary number.
    let bytes = vec![0x3c; matrix_bytes];
    let data = MatrixData { weight_type, rows: n, cols: k, bytes: &bytes };
    let ring = (0..count).map(|_| backend.matrix(&[data])).collect::<Result<Vec<_>, _>>()?;
    let (x, mut out) = (activations(backend, most, k)?, backend.buffer(most, n)?);
    let mut next = ring.iter().cycle();
    for &rows in &cases.rows {
        let rates = cases.effort.rates_by(|| {
            clock(&mut || {
                if let Some(matrix) = next.next() {
                    backend.linear(rows, &x, matrix, None, &mut out);
                }
            })
        })?;
        let products = Summary::of(&rates);
        done(Measurement {
            bench: NAME,
            case: format!("{weight_type:?} {shape} M={rows}"),
            params: params([
                ("type", format!("{weight_type:?}").into()),
                ("n", n.into()),
                ("k", k.into()),
                ("m", rows.into()),
                ("ring_bytes", (count * bytes.len()).into()),
            ]),
            summary: products.times(2.0 * (rows * n * k) as f64 / 1e9),
            unit: "GFLOP/s",
            bytes: Some(bytes.len() as f64),
            gbps: Some(products.median * bytes.len() as f64 / 1e9),
        });
    }
    Ok(())
}

/// Rows of ordinary numbers.
fn activations<B: Backend>(backend: &B, rows: usize, k: usize) -> Result<B::Buffer, Error> {
    let values: Vec<f32> = (0..rows * k).map(|i| (i % k % 61) as f32 / 30.0 - 1.0).collect();
    Ok(backend.buffer_of(k, &values)?)
}

/// Per shape GB/s and GFLOP/s against rows, a line per type.
pub fn plots(records: &[Record], ceiling: Option<f64>) -> Vec<Plot> {
    let rows: Vec<&Record> = records.iter().filter(|record| record.bench == NAME).collect();
    let mut shapes = Vec::new();
    for shape in rows.iter().filter_map(|row| shape_of(row)) {
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    let of_shape = |shape: Shape, y: &str, value: &dyn Fn(&Record) -> f64| {
        let series = WeightType::ALL.map(|weight_type| {
            let name = format!("{weight_type:?}");
            let of_type = rows.iter().filter(|row| shape_of(row) == Some(shape) && row.params["type"] == name.as_str());
            let points = of_type.filter_map(|row| Some((row.params["m"].as_f64()?, value(row)))).collect();
            Series { name, points }
        });
        Plot { title: shape.to_string(), x: "rows M".into(), y: y.into(), series: series.into(), line: None }
    };
    let both = |shape| {
        let line = ceiling.map(|ceiling| ("read bandwidth".to_string(), ceiling));
        let bandwidth = of_shape(shape, "GB/s", &|row| row.gbps.unwrap_or(f64::NAN));
        [Plot { line, ..bandwidth }, of_shape(shape, "GFLOP/s", &|row| row.median)]
    };
    shapes.into_iter().flat_map(both).collect()
}

fn shape_of(record: &Record) -> Option<Shape> {
    let size = |name: &str| record.params.get(name).and_then(Value::as_u64).map(|size| size as usize);
    Some(Shape { n: size("n")?, k: size("k")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wall_seconds;
    use std::time::Duration;
    use taper_kernels::Reference;

    #[test]
    fn shapes_are_read_as_they_are_written() {
        assert_eq!("2048x576".parse(), Ok(Shape { n: 2048, k: 576 }));
        assert_eq!(Shape { n: 2048, k: 576 }.to_string(), "2048x576");
        for text in ["", "x", "1x", "0x1", "1x2x3", "-1x2", "99999999x1"] {
            assert!(text.parse::<Shape>().unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn a_matrix_beyond_memory_is_an_error() {
        let cases = Cases {
            types: vec![WeightType::F32],
            shapes: vec![Shape { n: 1 << 24, k: 1 << 24 }],
            rows: vec![1],
            ring_bytes: usize::MAX,
            effort: Effort { samples: 1, time: Duration::ZERO },
        };
        let error = measure(&Reference::new(), &mut |once| Ok(wall_seconds(once)), &cases, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("more memory than is free"), "{error}");
    }

    #[test]
    fn every_cell_is_measured_and_a_type_without_room_is_told() {
        let cases = Cases {
            types: vec![WeightType::Q8_0, WeightType::Q4_K],
            shapes: vec![Shape { n: 16, k: 64 }],
            rows: vec![1, 3],
            ring_bytes: 4000,
            effort: Effort { samples: 2, time: Duration::ZERO },
        };
        let mut told = Vec::new();
        let rows = measure(&Reference::new(), &mut |once| Ok(wall_seconds(once)), &cases, &mut |line| {
            told.push(line.to_string());
        })
        .unwrap();
        assert_eq!(rows.iter().map(|row| row.case.as_str()).collect::<Vec<_>>(), ["Q8_0 16x64 M=1", "Q8_0 16x64 M=3"]);
        assert_eq!(rows[0].bytes, Some(16.0 * 68.0));
        assert_eq!(rows[0].params["ring_bytes"], 4 * 16 * 68, "a ring is at least as large as asked for");
        let row = &rows[1];
        let flops_per_byte = row.summary.median / row.gbps.unwrap();
        assert!((flops_per_byte - 2.0 * 3.0 * 16.0 * 64.0 / (16.0 * 68.0)).abs() < 1e-9, "two per weight and row");
        assert!(told.iter().any(|line| line == "Q4_K 16x64 is left out: 64 is no multiple of 256"), "{told:?}");
    }
}
