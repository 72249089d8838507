//! The seam between scheduling and arithmetic: a [`Runner`] computes one step. `ModelRunner` is the real one; the one in
//! `stub` lets engine and server be tested without weights.

use taper_models::{Draw, SequenceSlice};

/// What a runner can hold and do; fixed while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Longest sequence, prompt and answer together.
    pub context_len: usize,
    /// Blocks of the KV cache, shared by all sequences.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Width of a row of logits; token ids are below it.
    pub vocab_size: usize,
    /// Most tokens of one step.
    pub max_rows: usize,
    /// Most rows of logits of one step.
    pub max_logit_rows: usize,
}

/// A step that could not be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RunnerError(pub String);

/// Rows of logits, or the tokens that were drawn from them; reused from step to step so that its memory is allocated once.
#[derive(Debug, Clone)]
pub struct LogitsBuffer {
    values: Vec<f32>,
    width: usize,
    rows: Vec<Row>,
}

/// What there is of a row.
#[derive(Debug, Clone, Copy)]
enum Row {
    /// Its logits, from this place on.
    Logits(usize),
    /// The token that was drawn from it.
    Token(u32),
}

impl LogitsBuffer {
    /// An empty buffer of rows `width` wide.
    pub fn new(width: usize) -> Self {
        assert!(width > 0, "a row of logits has at least one entry");
        LogitsBuffer { values: Vec::new(), width, rows: Vec::new() }
    }

    /// Empties the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.rows.clear();
    }

    /// Entries per row: the vocabulary size.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows that the last step produced.
    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Appends a row.
    pub fn push_row(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.width, "a row of logits is one entry per token of the vocabulary");
        self.rows.push(Row::Logits(self.values.len()));
        self.values.extend_from_slice(row);
    }

    /// Appends a row as the token that was drawn from it.
    pub fn push_token(&mut self, token: u32) {
        self.rows.push(Row::Token(token));
    }

    /// Appends a row filled with `value` and returns it for writing.
    pub fn push_filled(&mut self, value: f32) -> &mut [f32] {
        let begin = self.values.len();
        self.rows.push(Row::Logits(begin));
        self.values.resize(begin + self.width, value);
        &mut self.values[begin..]
    }

    /// Row `index`, in the order of the step's slices.
    ///
    /// # Panics
    /// When all that is left of the row is the token that was drawn from it.
    pub fn row(&self, index: usize) -> &[f32] {
        match self.rows[index] {
            Row::Logits(begin) => &self.values[begin..][..self.width],
            Row::Token(token) => panic!("token {token} was drawn from row {index}, whose logits are not here"),
        }
    }

    /// The token that was drawn from row `index`; none where its logits are here.
    pub fn token(&self, index: usize) -> Option<u32> {
        match self.rows[index] {
            Row::Logits(_) => None,
            Row::Token(token) => Some(token),
        }
    }
}

/// Computes steps. The engine thread owns it and calls it with at most `max_rows` tokens and `max_logit_rows` logit rows.
pub trait Runner: Send {
    /// What it can hold and do.
    fn limits(&self) -> RunnerLimits;

    /// Computes the tokens of `step`, stores their keys and values through the block tables, and appends to the empty
    /// `logits` one row for each slice that asks for one, in order.
    fn run(&mut self, step: &[SequenceSlice<'_>], logits: &mut LogitsBuffer) -> Result<(), RunnerError>;

    /// As [`Runner::run`]; rows of logits that have one of `draws`, which name rows in the order in which they are due, may be appended
    /// as the token so drawn. A runner whose logits lie with the processor has no reason to.
    fn run_and_draw(
        &mut self,
        step: &[SequenceSlice<'_>],
        draws: &[(usize, Draw)],
        logits: &mut LogitsBuffer,
    ) -> Result<(), RunnerError> {
        let _ = draws;
        self.run(step, logits)
    }

    /// Makes block `to` of the KV cache what block `from` is.
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), RunnerError>;

    /// Appends the bytes of a block to `out`, [`Runner::block_bytes`] of them.
    fn export_block(&self, block: u32, out: &mut Vec<u8>) -> Result<(), RunnerError>;

    /// Makes a block what a runner of the same [`Runner::identity`] exported. After an error the block is not to be read
    /// before it is written again.
    fn import_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), RunnerError>;

    /// Bytes of one exported block.
    fn block_bytes(&self) -> usize;

    /// Everything that decides the bytes of a block beside its tokens and those before it. Runners with the same one may
    /// use each other's blocks.
    fn identity(&self) -> String;

    /// (row, head) pairs of attention that were computed a second time since the start, because the fixed reference of their
    /// softmax did not fit.
    fn recomputed_rows(&self) -> u64 {
        0
    }
}
