//! `out = x * matrix^T + bias`, and the embedding lookup. Weights are decoded a row at a time and never kept as floats.

use super::buffer::{Buffer, Matrix};
use super::parallel::for_each_chunk;

/// `out[r][n] = sum_k x[r][k] * matrix[n][k] (+ bias[n])`.
pub(super) fn linear(rows: usize, x: &Buffer, matrix: &Matrix, bias: Option<&[f32]>, out: &mut Buffer) {
    let (n, k) = (matrix.num_rows(), matrix.cols());
    assert_eq!(x.cols(), k, "the input is as wide as the matrix");
    assert_eq!(out.cols(), n, "the output is as wide as the matrix is high");
    assert!(bias.is_none_or(|bias| bias.len() == n), "one bias per output");
    if rows == 0 {
        return;
    }
    let x = x.rows(rows);
    // Transposed, so that what one weight row gives lies together and threads can share the weight rows.
    let mut transposed = vec![0.0; n * rows];
    for_each_chunk(&mut transposed, rows, n * k * rows, |output, sums| {
        let mut weights = vec![0.0; k];
        matrix.decode_row(output, &mut weights);
        let bias = bias.map_or(0.0, |bias| bias[output]);
        for (sum, x) in sums.iter_mut().zip(x.chunks_exact(k)) {
            *sum = dot(x, &weights) + bias;
        }
    });
    for (row, out) in out.rows_mut(rows).chunks_exact_mut(n).enumerate() {
        for (output, value) in out.iter_mut().enumerate() {
            *value = transposed[output * rows + row];
        }
    }
}

/// `out[i] = matrix[tokens[i]]`.
pub(super) fn embed(table: &Matrix, tokens: &[u32], out: &mut Buffer) {
    assert_eq!(out.cols(), table.cols(), "the output is as wide as the table");
    for (row, &token) in tokens.iter().enumerate() {
        table.decode_row(token as usize, out.row_mut(row));
    }
}

/// Dot product in sixteen partial sums, which a compiler turns into vectors, then one sum in float64.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    let (a_blocks, a_rest) = a.as_chunks::<16>();
    let (b_blocks, b_rest) = b.as_chunks::<16>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..16 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    (sums.iter().map(|&sum| f64::from(sum)).sum::<f64>() + rest) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MatrixData, WeightType};

    fn f32_bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn stacked_parts_multiply_as_one_matrix() {
        let top = f32_bytes(&[1.0, 2.0, 3.0, 4.0]);
        let bottom: Vec<u8> =
            [half::f16::from_f32(-1.0), half::f16::from_f32(0.5)].iter().flat_map(|x| x.to_le_bytes()).collect();
        let matrix = Matrix::new(&[
            MatrixData { weight_type: WeightType::F32, rows: 2, cols: 2, bytes: &top },
            MatrixData { weight_type: WeightType::F16, rows: 1, cols: 2, bytes: &bottom },
        ])
        .unwrap();
        let mut x = Buffer::new(2, 2).unwrap();
        x.rows_mut(2).copy_from_slice(&[1.0, 1.0, 10.0, 100.0]);
        let mut out = Buffer::new(2, 3).unwrap();
        linear(2, &x, &matrix, Some(&[0.0, 0.0, 7.0]), &mut out);
        assert_eq!(out.rows(2), [3.0, 7.0, 6.5, 210.0, 430.0, 47.0]);
        let mut rows = Buffer::new(2, 2).unwrap();
        embed(&matrix, &[2, 0], &mut rows);
        assert_eq!(rows.rows(2), [-1.0, 0.5, 1.0, 2.0]);
    }
}
