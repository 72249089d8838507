//! The [`Runner`] of real models.

use crate::{LogitsBuffer, Runner, RunnerError, RunnerLimits};
use taper_models::{BLOCK_SIZE, Backend, Draw, Llama, SequenceSlice};

/// A network with its weights and KV cache, as the engine thread runs it.
pub struct ModelRunner<B: Backend>(pub Llama<B>);

impl<B: Backend> Runner for ModelRunner<B> {
    fn limits(&self) -> RunnerLimits {
        RunnerLimits {
            context_len: self.0.context_len(),
            num_blocks: self.0.num_blocks(),
            block_size: BLOCK_SIZE,
            vocab_size: self.0.config().vocab_size,
            max_rows: self.0.max_rows(),
            max_logit_rows: self.0.max_logit_rows(),
        }
    }

    fn run(&mut self, step: &[SequenceSlice<'_>], logits: &mut LogitsBuffer) -> Result<(), RunnerError> {
        let rows = self.0.forward(step).map_err(|error| RunnerError(error.to_string()))?;
        for row in 0..rows.num_rows() {
            logits.push_row(rows.row(row));
        }
        Ok(())
    }

    fn run_and_draw(
        &mut self,
        step: &[SequenceSlice<'_>],
        draws: &[(usize, Draw)],
        logits: &mut LogitsBuffer,
    ) -> Result<(), RunnerError> {
        let num_rows = self.0.compute(step).map_err(|error| RunnerError(error.to_string()))?;
        let mut tokens = Vec::new();
        if draws.is_empty() || !self.0.choose(draws, &mut tokens) {
            tokens.clear();
        }
        let mut drawn = draws.iter().zip(&tokens).peekable();
        for row in 0..num_rows {
            match drawn.next_if(|((of, _), _)| *of == row) {
                Some((_, Some(token))) => logits.push_token(*token),
                // A row that is no distribution is looked at by who says so.
                Some((_, None)) | None => logits.push_row(self.0.read_logits(row..row + 1)),
            }
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), RunnerError> {
        self.0.copy_block(from, to);
        Ok(())
    }

    fn export_block(&self, block: u32, out: &mut Vec<u8>) -> Result<(), RunnerError> {
        self.0.export_block(block, out);
        Ok(())
    }

    fn import_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), RunnerError> {
        self.0.import_block(block, bytes).map_err(|error| RunnerError(error.to_string()))
    }

    fn block_bytes(&self) -> usize {
        self.0.block_bytes()
    }

    fn identity(&self) -> String {
        self.0.identity()
    }

    fn recomputed_rows(&self) -> u64 {
        self.0.recomputed_rows()
    }
}
