//! What one forward pass is told and what it gives back: [`SequenceSlice`] in, [`Logits`] out, and between them the
//! [`StepTables`] that the backend reads.

use taper_kernels::{BLOCK_SIZE, SequenceSpan, StepTables};

/// Which rows of a slice need logits, or the hidden states that logits are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: the slice only fills the cache (a prompt chunk that is not the last).
    None,
    /// The last row, from which the next token is sampled.
    Last,
    /// Every row, in order: perplexity and the verification of guessed tokens.
    All,
    /// No logits, but the hidden state of the last row.
    LastHidden,
    /// No logits, but the hidden state of every row, in order.
    AllHidden,
}

/// Consecutive tokens of one sequence: one for a decode step, more for a piece of its prompt.
#[derive(Debug, Clone, Copy)]
pub struct SequenceSlice<'a> {
    /// The tokens; at least one.
    pub tokens: &'a [u32],
    /// Position of the first of them; the keys before it are in the cache.
    pub start: usize,
    /// Cache blocks of the sequence; entry j holds positions `j * BLOCK_SIZE ..`. Covers `start + tokens.len()`.
    pub block_table: &'a [u32],
    /// Which rows need logits.
    pub logits: LogitRows,
}

impl LogitRows {
    /// How many rows of logits these are of a slice of so many tokens.
    pub fn of(self, tokens: usize) -> usize {
        match self {
            LogitRows::None | LogitRows::LastHidden | LogitRows::AllHidden => 0,
            LogitRows::Last => 1,
            LogitRows::All => tokens,
        }
    }

    /// How many hidden states.
    pub fn hidden_of(self, tokens: usize) -> usize {
        match self {
            LogitRows::None | LogitRows::Last | LogitRows::All => 0,
            LogitRows::LastHidden => 1,
            LogitRows::AllHidden => tokens,
        }
    }
}

impl SequenceSlice<'_> {
    /// Rows of logits that this slice asks for.
    pub fn num_logit_rows(&self) -> usize {
        self.logits.of(self.tokens.len())
    }
}

/// Logits of one step, in the order of the slices; a slice with [`LogitRows::All`] gives one row per token.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    values: &'a [f32],
    vocab_size: usize,
}

impl<'a> Logits<'a> {
    pub(crate) fn new(values: &'a [f32], vocab_size: usize) -> Self {
        Logits { values, vocab_size }
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.values.len() / self.vocab_size
    }

    /// One row, as wide as the vocabulary.
    pub fn row(&self, index: usize) -> &'a [f32] {
        &self.values[index * self.vocab_size..][..self.vocab_size]
    }
}

/// The tables of a step, kept between steps for their memory.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Token of each row.
    pub(crate) tokens: Vec<u32>,
    /// What the backend reads.
    pub(crate) tables: StepTables,
    /// The rows that need logits.
    pub(crate) logit_rows: Vec<u32>,
    /// The rows whose hidden states are wanted.
    pub(crate) hidden_rows: Vec<u32>,
}

impl Batch {
    /// Memory for steps of up to `max_rows` rows over contexts of up to `context_len` keys.
    pub(crate) fn with_capacity(max_rows: usize, max_logit_rows: usize, context_len: usize) -> Self {
        // A long context in every row is rare; beyond a megabyte the table may grow when it happens.
        let block_ids = max_rows.saturating_mul(context_len.div_ceil(BLOCK_SIZE)).min(1 << 18);
        Batch {
            tokens: Vec::with_capacity(max_rows),
            tables: StepTables {
                positions: Vec::with_capacity(max_rows),
                slots: Vec::with_capacity(max_rows),
                spans: Vec::with_capacity(max_rows),
                block_tables: Vec::with_capacity(block_ids),
            },
            logit_rows: Vec::with_capacity(max_logit_rows),
            // Few steps have any.
            hidden_rows: Vec::new(),
        }
    }

    /// Rows of the step.
    pub(crate) fn num_rows(&self) -> usize {
        self.tokens.len()
    }

    /// Whether anything is made of what the last layer gives.
    pub(crate) fn is_read(&self) -> bool {
        !self.logit_rows.is_empty() || !self.hidden_rows.is_empty()
    }

    /// Writes the tables of a step. What the engine must get right is asserted: no slice is empty, block tables cover their
    /// slices, blocks exist.
    pub(crate) fn fill(&mut self, sequences: &[SequenceSlice<'_>], context_len: usize, num_blocks: usize) {
        self.tokens.clear();
        self.tables.clear();
        self.logit_rows.clear();
        self.hidden_rows.clear();
        for slice in sequences {
            let end = slice.start + slice.tokens.len();
            assert!(!slice.tokens.is_empty(), "a slice without tokens");
            assert!(end <= context_len, "position {} is beyond the context of {context_len}", end - 1);
            let blocks_used = end.div_ceil(BLOCK_SIZE);
            assert!(
                slice.block_table.len() >= blocks_used,
                "a table of {} blocks does not cover {end} positions",
                slice.block_table.len()
            );
            self.push(slice, blocks_used, num_blocks);
        }
    }

    fn push(&mut self, slice: &SequenceSlice<'_>, blocks_used: usize, num_blocks: usize) {
        let first_row = self.tokens.len();
        let rows = first_row..first_row + slice.tokens.len();
        let first_block = self.tables.block_tables.len();
        let blocks = &slice.block_table[..blocks_used];
        assert!(blocks.iter().all(|&block| (block as usize) < num_blocks), "a block id beyond {num_blocks}");

        self.tokens.extend_from_slice(slice.tokens);
        self.tables.block_tables.extend_from_slice(blocks);
        for position in slice.start..slice.start + slice.tokens.len() {
            let block = blocks[position / BLOCK_SIZE] as usize;
            self.tables.positions.push(position as u32);
            self.tables.slots.push((block * BLOCK_SIZE + position % BLOCK_SIZE) as u32);
        }
        match slice.logits {
            LogitRows::None => {}
            LogitRows::Last => self.logit_rows.push(rows.end as u32 - 1),
            LogitRows::All => self.logit_rows.extend(rows.start as u32..rows.end as u32),
            LogitRows::LastHidden => self.hidden_rows.push(rows.end as u32 - 1),
            LogitRows::AllHidden => self.hidden_rows.extend(rows.start as u32..rows.end as u32),
        }
        self.tables.spans.push(SequenceSpan {
            rows,
            context_len: slice.start + slice.tokens.len(),
            blocks: first_block..first_block + blocks_used,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(sequences: &[SequenceSlice<'_>]) -> Batch {
        let mut batch = Batch::with_capacity(8, 8, 256);
        batch.fill(sequences, 256, 16);
        batch
    }

    #[test]
    fn a_step_of_a_prompt_piece_and_a_decode_row_becomes_tables() {
        let prompt = SequenceSlice { tokens: &[7, 8, 9], start: 63, block_table: &[5, 2, 11], logits: LogitRows::Last };
        let decode = SequenceSlice { tokens: &[4], start: 10, block_table: &[3], logits: LogitRows::All };
        let batch = filled(&[prompt, decode]);
        assert_eq!(batch.tokens, [7, 8, 9, 4]);
        assert_eq!(batch.tables.positions, [63, 64, 65, 10]);
        assert_eq!(batch.tables.slots, [5 * 64 + 63, 2 * 64, 2 * 64 + 1, 3 * 64 + 10]);
        // The third block of the prompt is not in use yet.
        assert_eq!(batch.tables.block_tables, [5, 2, 3]);
        assert_eq!(batch.tables.spans[0], SequenceSpan { rows: 0..3, context_len: 66, blocks: 0..2 });
        assert_eq!(batch.tables.spans[1], SequenceSpan { rows: 3..4, context_len: 11, blocks: 2..3 });
        assert_eq!(batch.logit_rows, [2, 3]);
    }

    #[test]
    fn rows_of_logits_and_hidden_states_are_listed_apart() {
        let slice = |logits| SequenceSlice { tokens: &[1, 2], start: 0, block_table: &[0], logits };
        let batch = filled(&[LogitRows::AllHidden, LogitRows::All, LogitRows::LastHidden].map(slice));
        assert_eq!((batch.logit_rows, batch.hidden_rows), (vec![2, 3], vec![0, 1, 5]));
    }

    #[test]
    fn filling_again_leaves_nothing_of_the_step_before() {
        let slice = SequenceSlice { tokens: &[1, 2], start: 0, block_table: &[0], logits: LogitRows::All };
        let mut batch = filled(&[slice, SequenceSlice { logits: LogitRows::AllHidden, ..slice }]);
        assert!(batch.is_read());
        batch.fill(&[SequenceSlice { logits: LogitRows::None, ..slice }], 256, 16);
        assert_eq!((batch.num_rows(), batch.tables.spans.len(), batch.is_read()), (2, 1, false));
    }

    #[test]
    #[should_panic(expected = "does not cover")]
    fn a_short_block_table_is_a_bug_of_the_caller() {
        filled(&[SequenceSlice { tokens: &[1], start: 64, block_table: &[0], logits: LogitRows::None }]);
    }

    #[test]
    #[should_panic(expected = "beyond the context")]
    fn a_position_beyond_the_context_is_a_bug_of_the_caller() {
        filled(&[SequenceSlice { tokens: &[1], start: 256, block_table: &[0; 5], logits: LogitRows::None }]);
    }
}
