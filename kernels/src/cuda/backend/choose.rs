//! Tokens drawn from logits where these lie (`kernels/cuda/choose.cu`).

use super::buffer::Buffer;
use super::{Cuda, int};
use crate::Draw;
use crate::cuda::device::Device;
use crate::cuda::error::DeviceError;
use crate::cuda::kernels::Kernel;

/// Tokens of a vocabulary, at most: masses of more might not fit into 63 bits.
const MAX_VOCAB: usize = 1 << 19;
/// Words of a draw as the kernel reads it.
const WORDS: usize = 8;

fn words(row: usize, draw: &Draw) -> [u32; WORDS] {
    let &Draw { min_p, top_k, top_p, unit, .. } = draw;
    let inverse = if draw.temperature == 0.0 { 0.0 } else { draw.inverse_temperature() };
    let row = u32::try_from(row).expect("rows of a step fit into 31 bits");
    [row, inverse.to_bits(), min_p.to_bits(), top_p.to_bits(), top_k, unit as u32, (unit >> 32) as u32, 0]
}

/// Words that draws from so many rows take, with their tokens.
pub(super) fn words_of(draws: usize) -> usize {
    draws * (WORDS + 1)
}

/// Whether it was done.
pub(super) fn choose<D: Device>(
    cuda: &Cuda<D>,
    logits: &Buffer<D>,
    draws: &[(usize, Draw)],
    tokens: &mut Vec<Option<u32>>,
) -> Result<bool, DeviceError> {
    let vocab = logits.cols();
    if vocab > MAX_VOCAB {
        return Ok(false);
    }
    tokens.clear();
    let Some(last) = draws.iter().map(|&(row, _)| row).max() else { return Ok(true) };
    // The draws, and behind them the tokens.
    let mut integers: Vec<u32> = draws.iter().flat_map(|(row, draw)| words(*row, draw)).collect();
    let begin = integers.len();
    integers.resize(begin + draws.len(), 0);
    let mut work = cuda.work();
    let told = work.integers(&cuda.heap, &integers)?;
    let arguments = [logits.rows(last + 1), told, told.at(begin * size_of::<u32>()), int(vocab)];
    let bytes = draws.len() * vocab * size_of::<f32>();
    // SAFETY: the rows of the draws are rows of the logits, which have `vocab` columns, of which there are no more than the kernel
    // knows; draws and tokens lie behind each other in memory that has room for both, and draws begin where it does.
    unsafe { cuda.launch(Kernel::ChooseTokens, [draws.len(), 1, 1], 1024, &arguments, bytes) };
    let mut chosen = vec![0; draws.len()];
    work.integers.read(begin, &mut chosen)?;
    tokens.extend(chosen.into_iter().map(|token| u32::try_from(token).ok()));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;
    use crate::cuda::{DeviceProperties, Recorder};
    use std::sync::Arc;

    #[test]
    fn more_tokens_than_masses_can_be_added_of_are_left_to_the_host() {
        let properties = DeviceProperties {
            name: String::new(),
            multiprocessors: 4,
            shared_bytes_per_block: 227 << 10,
            l2_bytes: 0,
        };
        let cuda = Cuda::new(Arc::new(Recorder::new(properties))).unwrap();
        let draw = Draw { temperature: 1.0, min_p: 0.0, top_k: 0, top_p: 1.0, unit: 0 };
        for (vocab, is_drawn) in [(MAX_VOCAB, true), (MAX_VOCAB + 1, false)] {
            let logits = cuda.buffer(1, vocab).unwrap();
            cuda.device().take();
            assert_eq!(cuda.choose(&logits, &[(0, draw)], &mut Vec::new()), is_drawn);
            assert_eq!(cuda.device().take().len(), usize::from(is_drawn));
        }
    }
}
