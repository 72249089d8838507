//! Keys and values without a prompt: measuring at a depth of many thousand positions must not wait for their computation.

use super::Llama;
use crate::{Error, LogitRows, SequenceSlice};
use taper_kernels::{AttentionParams, Backend, HeadLayout, Softmax};

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
        // Nobody asks, so the rows are keys and values alone.
        let heads = HeadLayout { num_heads: 0, ..config.heads };
        let distinct = random_rows(backend, heads.qkv_width(), next)?;
        let mut kv = backend.buffer(self.max_rows, heads.qkv_width())?;
        for start in (0..len).step_by(self.max_rows) {
            let rows = self.max_rows.min(len - start);
            let unread = vec![0; rows];
            let slice = SequenceSlice { tokens: &unread, start, block_table, logits: LogitRows::None };
            batch.fill(&[slice], plan.context_len, plan.num_blocks);
            backend.rope_angles(&config.rope, &batch.tables.positions, &mut ws.angles);
            for layer in 0..config.num_layers {
                let picked: Vec<u32> = (0..rows).map(|row| ((start + row + 17 * layer) % DISTINCT) as u32).collect();
                backend.gather_rows(&distinct, &picked, &mut kv);
                let params =
                    AttentionParams { layer, heads, scale: 1.0, scheme: self.attention, softmax: Softmax::Online };
                backend.rope_kv_store(&batch.tables, &config.rope, &ws.angles, params, &mut kv, cache);
            }
        }
        Ok(())
    }
}

/// `[DISTINCT, cols]` of the numbers that `next` gives.
fn random_rows<B: Backend>(backend: &B, cols: usize, next: &mut dyn FnMut() -> f32) -> Result<B::Buffer, Error> {
    let values: Vec<f32> = (0..DISTINCT * cols).map(|_| next()).collect();
    Ok(backend.buffer_of(cols, &values)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadOptions;
    use taper_checkpoint::Checkpoint;
    use taper_kernels::{Cpu, CpuConfig};
    use taper_testkit::rng::SplitMix;
    use taper_testkit::tiny::TinyModel;

    /// More than two blocks, and no multiple of one.
    const LEN: usize = 150;
    const BLOCKS: [u32; 3] = [3, 1, 2];

    /// A network with a filled cache, and the logits of the token behind.
    fn filled(max_rows: usize, size: f32) -> (Llama<Cpu>, Vec<f32>) {
        let checkpoint = Checkpoint::from_bytes("tiny.gguf", TinyModel::default().to_gguf()).unwrap();
        let cpu = Cpu::new(CpuConfig { threads: Some(2), isa: None }).unwrap();
        let options = LoadOptions { num_blocks: Some(4), max_rows, max_logit_rows: 1, ..LoadOptions::default() };
        let mut model = Llama::load(cpu, &checkpoint, options, &mut |_| {}).unwrap();
        let mut rng = SplitMix::new(7);
        model.fill_cache(&BLOCKS, LEN, &mut || size * (rng.below(2001) as f32 / 1000.0 - 1.0)).unwrap();
        model.start_observing();
        let token = SequenceSlice { tokens: &[5], start: LEN, block_table: &BLOCKS, logits: LogitRows::Last };
        let logits = model.forward(&[token]).unwrap().row(0).to_vec();
        (model, logits)
    }

    #[test]
    fn every_position_of_every_layer_gets_keys() {
        // A key that was not written has the score 0; one of this size hardly ever has one between 0 and 1.
        let (mut model, _) = filled(40, 100.0);
        let heads = model.config.heads;
        for (layer, kv_heads) in model.finish_observing().iter().enumerate() {
            for scores in kv_heads {
                let near_zero: u64 = scores.all.floors().filter(|&(floor, _)| floor == 0).map(|(_, count)| count).sum();
                let queries = (heads.num_heads / heads.num_kv_heads) as u64;
                assert_eq!(scores.all.total(), queries * (LEN as u64 + 1));
                assert!(near_zero < queries * 8, "layer {layer}: {near_zero} scores near 0");
            }
        }
    }

    #[test]
    fn how_many_rows_are_written_at_once_does_not_matter() {
        let (_, whole) = filled(256, 1.0);
        for rows in [1, 40, 64] {
            assert_eq!(filled(rows, 1.0).1, whole, "{rows} rows");
        }
    }
}
