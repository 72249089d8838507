//! The seam between scheduling and arithmetic: a [`Runner`] computes one step. `ModelRunner` is the real one; the one in
//! `stub` lets engine and server be tested without weights.

use taper_models::{Draw, Errand, Pooling, SequenceSlice};

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

/// What hidden states a runner gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Embeddings {
    /// Width of a state.
    pub hidden_size: usize,
    /// How the states of a prompt are pooled where nobody says; none when it has to be said.
    pub pooling: Option<Pooling>,
}

/// A step that could not be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RunnerError(pub String);

/// A token that is to be drawn from a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowDraw {
    /// The row, in the order in which they are due.
    pub row: usize,
    /// How.
    pub draw: Draw,
    /// Whether the logits are wanted as well.
    pub keeps_logits: bool,
}

/// Rows of logits, tokens that were drawn from them, and hidden states; reused from step to step so that its memory is allocated once.
#[derive(Debug, Clone)]
pub struct LogitsBuffer {
    /// As long as it ever was; the entries behind `used` are of earlier steps.
    values: Vec<f32>,
    used: usize,
    width: usize,
    /// Where the logits of each row begin, if they are here.
    rows: Vec<Option<usize>>,
    drawn: Vec<Option<u32>>,
    hidden: Vec<f32>,
}

impl LogitsBuffer {
    /// An empty buffer of rows `width` wide.
    pub fn new(width: usize) -> Self {
        assert!(width > 0, "a row of logits has at least one entry");
        LogitsBuffer { values: Vec::new(), used: 0, width, rows: Vec::new(), drawn: Vec::new(), hidden: Vec::new() }
    }

    /// Empties the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.rows.clear();
        self.drawn.clear();
        self.hidden.clear();
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
        self.push_rows(1).copy_from_slice(row);
    }

    /// Appends a row of which only tokens that were drawn are wanted.
    pub fn push_drawn_row(&mut self) {
        self.rows.push(None);
    }

    /// Appends a row filled with `value` and returns it for writing.
    pub fn push_filled(&mut self, value: f32) -> &mut [f32] {
        let row = self.push_rows(1);
        row.fill(value);
        row
    }

    /// Appends `num_rows` rows and returns them for writing; they begin as anything.
    pub fn push_rows(&mut self, num_rows: usize) -> &mut [f32] {
        let begin = self.used;
        self.used += num_rows * self.width;
        self.rows.extend((begin..self.used).step_by(self.width).map(Some));
        if self.values.len() < self.used {
            self.values.resize(self.used, 0.0);
        }
        &mut self.values[begin..self.used]
    }

    /// Row `index`, in the order of the step's slices.
    ///
    /// # Panics
    /// When only what was drawn from it is here.
    pub fn row(&self, index: usize) -> &[f32] {
        let begin = self.rows[index].unwrap_or_else(|| panic!("the logits of row {index} are not here"));
        &self.values[begin..][..self.width]
    }

    /// Appends hidden states, row after row.
    pub fn push_hidden(&mut self, states: &[f32]) {
        self.hidden.extend_from_slice(states);
    }

    /// The hidden states that the step's slices asked for, in their order, row-major.
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Says which tokens were drawn, in the order of the draws; none where a row is no distribution.
    pub fn set_drawn(&mut self, tokens: &[Option<u32>]) {
        self.drawn.clear();
        self.drawn.extend_from_slice(tokens);
    }

    /// The token of draw `index`; none where the row has to be looked at.
    pub fn drawn(&self, index: usize) -> Option<u32> {
        self.drawn.get(index).copied().flatten()
    }
}

/// Computes steps. The engine thread owns it and calls it with at most `max_rows` tokens and `max_logit_rows` logit rows.
pub trait Runner: Send {
    /// What it can hold and do.
    fn limits(&self) -> RunnerLimits;

    /// The hidden states that it gives; none where no slice may ask for any.
    fn embeddings(&self) -> Option<Embeddings> {
        None
    }

    /// Computes the tokens of `step`, stores their keys and values through the block tables, and appends to the empty
    /// `logits` one row for each slice that asks for one, in order, and the hidden states that slices ask for.
    fn run(&mut self, step: &[SequenceSlice<'_>], logits: &mut LogitsBuffer) -> Result<(), RunnerError>;

    /// As [`Runner::run`], as long as anybody wants it: a runner that asks in the midst of a step and hears no may leave it and return
    /// false. Then there need be no logits, and what the step has stored is not read by anyone. A runner whose logits lie elsewhere
    /// may draw tokens there ([`LogitsBuffer::set_drawn`]) and leave out the logits of rows that are wanted for nothing else. `draws`
    /// ascend by their rows.
    fn run_while(
        &mut self,
        step: &[SequenceSlice<'_>],
        draws: &[RowDraw],
        logits: &mut LogitsBuffer,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<bool, RunnerError> {
        let _ = (draws, is_wanted);
        self.run(step, logits)?;
        Ok(true)
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

    /// The calling thread calls everything else, too; called before each step, and cheap.
    fn settle(&mut self) {}

    /// Has something done that nobody waits for, by a thread that has nothing to do between two steps, or by the calling one.
    fn send_out(&mut self, errand: Errand) {
        errand();
    }

    /// (row, head) pairs of attention that were computed a second time since the start, because the fixed reference of their
    /// softmax did not fit.
    fn recomputed_rows(&self) -> u64 {
        0
    }
}
