//! The [`Runner`] of real models.

use crate::{Embeddings, LogitsBuffer, RowDraw, Runner, RunnerError, RunnerLimits};
use taper_models::{BLOCK_SIZE, Backend, Errand, Llama, SequenceSlice};

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

    fn embeddings(&self) -> Option<Embeddings> {
        let config = self.0.config();
        Some(Embeddings { hidden_size: config.hidden_size, pooling: config.pooling })
    }

    fn run(&mut self, step: &[SequenceSlice<'_>], logits: &mut LogitsBuffer) -> Result<(), RunnerError> {
        let rows = self.0.forward(step).map_err(|error| RunnerError(error.to_string()))?;
        for row in 0..rows.num_rows() {
            logits.push_row(rows.row(row));
        }
        logits.push_hidden(self.0.read_hidden());
        Ok(())
    }

    fn run_while(
        &mut self,
        step: &[SequenceSlice<'_>],
        draws: &[RowDraw],
        logits: &mut LogitsBuffer,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<bool, RunnerError> {
        let done = self.0.compute_while(step, is_wanted).map_err(|error| RunnerError(error.to_string()))?;
        let Some(num_rows) = done else { return Ok(false) };
        let of_rows: Vec<_> = draws.iter().map(|draw| (draw.row, draw.draw)).collect();
        let mut tokens = Vec::new();
        if draws.is_empty() || !self.0.choose(&of_rows, &mut tokens) {
            tokens = vec![None; draws.len()];
        }
        // Rows whose logits nobody looks at: all that was to be drawn was, and more is not wanted.
        let mut is_read = vec![true; num_rows];
        for of_row in draws.chunk_by(|one, next| one.row == next.row) {
            is_read[of_row[0].row] = false;
        }
        for (draw, token) in draws.iter().zip(&tokens) {
            is_read[draw.row] |= draw.keeps_logits || token.is_none();
        }
        logits.set_drawn(&tokens);
        for rows in (0..num_rows).collect::<Vec<_>>().chunk_by(|&one, &next| is_read[one] == is_read[next]) {
            let rows = rows[0]..rows[0] + rows.len();
            if is_read[rows.start] {
                self.0.read_logits(rows.clone(), logits.push_rows(rows.len()));
            } else {
                rows.for_each(|_| logits.push_drawn_row());
            }
        }
        logits.push_hidden(self.0.read_hidden());
        Ok(true)
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

    fn settle(&mut self) {
        self.0.settle();
    }

    fn send_out(&mut self, errand: Errand) {
        self.0.send_out(errand);
    }

    fn recomputed_rows(&self) -> u64 {
        self.0.recomputed_rows()
    }
}
