//! Keys and values without a prompt: measuring at a depth of many thousand positions must not wait for their computation.

use super::Llama;
use crate::{Error, LogitRows, SequenceSlice};
use taper_kernels::{AttentionParams, Backend, MatrixData, Softmax, WeightType};

/// Distinct rows of keys and values; positions still differ, because keys are turned by theirs.
const DISTINCT: usize = 256;

impl<B: Backend> Llama<B> {
    /// Writes keys and values made of the numbers that `next` gives to positions `0..len` of a sequence, in every layer.
    ///
    /// # Errors
    /// When there is not enough memory for a few rows of them.
    ///
    /// # Panics
    /// When the block table does not cover the positions, or the context has not so many.
    pub fn fill_cache(&mut self, block_table: &[u32], len: usize, next: &mut dyn FnMut() -> f32) -> Result<(), Error> {
        let Llama { backend, config, cache, workspace: ws, batch, plan, .. } = self;
        let cols = config.heads.qkv_width();
        let bytes: Vec<u8> = (0..DISTINCT * cols).flat_map(|_| next().to_le_bytes()).collect();
        // A backend's memory is its own; looking up rows of a table is how numbers get there.
        let table =
            backend.matrix(&[MatrixData { weight_type: WeightType::F32, rows: DISTINCT, cols, bytes: &bytes }])?;
        for start in (0..len).step_by(self.max_rows) {
            let rows = self.max_rows.min(len - start);
            let unread = vec![0; rows];
            let slice = SequenceSlice { tokens: &unread, start, block_table, logits: LogitRows::None };
            batch.fill(&[slice], plan.context_len, plan.num_blocks);
            backend.rope_angles(&config.rope, &batch.tables.positions, &mut ws.angles);
            for layer in 0..config.num_layers {
                let picked: Vec<u32> = (0..rows).map(|row| ((start + row + 17 * layer) % DISTINCT) as u32).collect();
                backend.embed(&table, &picked, &mut ws.qkv);
                let params = AttentionParams {
                    layer,
                    heads: config.heads,
                    scale: 1.0,
                    scheme: self.attention,
                    softmax: Softmax::Online,
                };
                backend.rope_kv_store(&batch.tables, &config.rope, &ws.angles, params, &mut ws.qkv, cache);
            }
        }
        Ok(())
    }
}
