//! The forms of softmax on a GPU, by length: one row, and as many as fill the machine.

use super::{NAME, PATTERN};
use crate::gpu::seconds;
use crate::statistics::ratio;
use crate::{Effort, Error, Measurement, Summary, params};
use std::sync::Arc;
use taper_kernels::cuda::Device;
use taper_kernels::cuda::softmax::{SoftmaxForm, SoftmaxRows};

/// Elements of a call of many rows.
const ELEMENTS: usize = 1 << 22;
/// Calls whose rows lie in places of their own, at most: short rows stay in the second-level cache.
const MAX_SLOTS: usize = 64;
/// Rows of a call, at most.
const MAX_ROWS: usize = 65_535;

/// What is measured.
#[derive(Debug, Clone)]
pub struct GpuCases {
    /// Lengths of rows.
    pub lens: Vec<usize>,
    /// Bytes of scores and weights in memory.
    pub ring_bytes: usize,
    /// How long the forms of a length are timed together.
    pub effort: Effort,
}

/// Measures all cases; `progress` is told of each in words.
///
/// # Errors
/// When the device has not enough memory, and its others.
pub fn measure<D: Device>(
    device: &Arc<D>,
    cases: &GpuCases,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Measurement>, Error> {
    let mut measured = Vec::new();
    for &len in &cases.lens {
        let many = (ELEMENTS / len.max(1)).clamp(1, MAX_ROWS);
        let numbers = if many == 1 { vec![1] } else { vec![1, many] };
        for rows in numbers {
            let of_shape = one_shape(device, cases, (rows, len))?;
            let words: Vec<String> = of_shape
                .iter()
                .map(|row| format!("{} {:.2}", row.params["scheme"].as_str().unwrap_or_default(), row.summary.median))
                .collect();
            progress(&format!("{rows} rows of {len}, us a row: {}", words.join(", ")));
            measured.extend(of_shape);
        }
    }
    Ok(measured)
}

fn one_shape<D: Device>(
    device: &Arc<D>,
    cases: &GpuCases,
    (rows, len): (usize, usize),
) -> Result<Vec<Measurement>, Error> {
    let call_bytes = 2 * size_of::<f32>() * rows * len;
    let slots = cases.ring_bytes.div_ceil(call_bytes).clamp(1, MAX_SLOTS);
    // As on the processor: scores of a usual size, and rows that differ.
    let scores: Vec<f32> = (0..rows * len).map(|i| ((i * 7919 + 13) % PATTERN) as f32 / 50.0 - 10.0).collect();
    let mut ring = Vec::with_capacity(slots);
    for _ in 0..slots {
        let mut slot = SoftmaxRows::new(device, rows, len)?;
        slot.scores().write(0, &scores)?;
        ring.push(slot);
    }
    let forms: Vec<SoftmaxForm> =
        SoftmaxForm::ALL.into_iter().filter(|form| form.can_run(device.properties(), rows, len)).collect();
    let mut next = 0;
    let samples = cases.effort.rounds(forms.len(), |index| {
        let mean = seconds(&**device, &mut || {
            next = (next + 1) % slots;
            Ok(ring[next].run(device, forms[index])?)
        });
        mean.map(|seconds| seconds / rows as f64)
    })?;
    let three_pass = forms.iter().position(|form| *form == SoftmaxForm::ThreePass).map(|index| &samples[index]);
    let is_in_memory = slots * call_bytes > 2 * device.properties().l2_bytes;
    let row = |(form, of_form): (&SoftmaxForm, &Vec<f64>)| {
        let summary = Summary::of(of_form);
        let bytes = (2 * size_of::<f32>() * len) as f64;
        let mut params = params([
            ("scheme", form.name().into()),
            ("len", len.into()),
            ("rows_per_call", rows.into()),
            ("place", if is_in_memory { "memory" } else { "cached" }.into()),
            ("gelements", (len as f64 / summary.median / 1e9).into()),
        ]);
        if let Some(three_pass) = three_pass {
            params.insert("over_three_pass".into(), ratio(three_pass, of_form).into());
        }
        Measurement {
            bench: NAME,
            case: format!("{rows} rows of {len}, {}", form.name()),
            params,
            summary: summary.times(1e6),
            unit: "us",
            bytes: Some(bytes),
            gbps: is_in_memory.then(|| bytes / summary.median / 1e9),
        }
    };
    Ok(forms.iter().zip(&samples).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::recorder;
    use std::time::Duration;

    #[test]
    fn every_form_that_can_run_has_a_row_of_one_and_of_many_rows() {
        let cases = GpuCases {
            lens: vec![1 << 14, ELEMENTS],
            ring_bytes: 1 << 20,
            effort: Effort { samples: 1, time: Duration::ZERO },
        };
        let rows = measure(&Arc::new(recorder()), &cases, &mut |_| {}).unwrap();
        let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        let expected = [
            "1 rows of 16384, three-pass",
            "1 rows of 16384, warp",
            "1 rows of 16384, block",
            "1 rows of 16384, chunks",
            "1 rows of 16384, cooperative",
            "256 rows of 16384, three-pass",
            "256 rows of 16384, warp",
            "256 rows of 16384, block",
            "256 rows of 16384, chunks",
            "1 rows of 4194304, three-pass",
        ];
        assert_eq!(&cases[..10], expected);
        assert_eq!(cases.len(), 13);
    }
}
