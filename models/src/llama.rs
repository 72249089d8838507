//! The Llama-like decoder: embed, then per layer
//!
//! ```text
//! norm, qkv, [qk norm,] rope + kv store, attention, o, add, norm, gate-up, silu-mul, down, add
//! ```
//!
//! then norm and head for the rows that need logits, or the norm alone where hidden states are wanted. Prompt pieces and decode steps of any sequences run together; a row's
//! result depends on its own sequence only. All activations are allocated at load for the largest step; what depends on
//! the shape of steps (plans of attention, rounded activations) grows with the first of them, after which a forward pass
//! allocates nothing.

mod blocks;
mod fill;
mod observe;
mod pass;

use crate::step::Batch;
use crate::weights::{self, Weights};
use crate::{AttendedRows, Error, Logits, ModelConfig, ModelSoftmax, Quantization, SequenceSlice, memory};
use pass::Pass;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use taper_checkpoint::Checkpoint;
use taper_kernels::{
    AttentionScheme, BLOCK_SIZE, Backend, Demand, Draw, Errand, KvDtype, KvLayout, ScoreStatistics, StepInputs,
};

/// What a user may choose when a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// Positions of one sequence; at most what the model was made for. None: all of them, as far as a quarter of the free
    /// memory holds their cache.
    pub context_len: Option<usize>,
    /// Blocks of the KV cache, shared by all sequences. None: up to four full contexts, as far as a quarter of the free
    /// memory holds them, and never less than one.
    pub num_blocks: Option<usize>,
    /// Bytes of the KV cache, of which whole blocks are made, where `num_blocks` says nothing.
    pub kv_cache_bytes: Option<usize>,
    /// Bytes of memory that the defaults above go by, instead of a quarter of what is free.
    pub kv_cache_limit: Option<usize>,
    /// Most rows (tokens of all sequences) of one step.
    pub max_rows: usize,
    /// Most rows of one step that need logits.
    pub max_logit_rows: usize,
    /// Storage type of keys and values.
    pub kv_dtype: KvDtype,
    /// How attention is computed.
    pub attention: AttentionScheme,
    /// What matrices of floats become. None: what the file has.
    pub quantization: Option<Quantization>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            context_len: None,
            num_blocks: None,
            kv_cache_bytes: None,
            kv_cache_limit: None,
            max_rows: 512,
            max_logit_rows: 64,
            kv_dtype: KvDtype::default(),
            attention: AttentionScheme::default(),
            quantization: None,
        }
    }
}

/// How far loading has come, in bytes of the file's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes whose tensors are ready.
    pub done: usize,
    /// Bytes of all tensors.
    pub total: usize,
}

/// A network, its KV cache and the memory of a step.
pub struct Llama<B: Backend> {
    backend: B,
    config: ModelConfig,
    weights: Weights<B>,
    cache: B::KvCache,
    workspace: Workspace<B>,
    batch: Batch,
    attention: AttentionScheme,
    softmax: ModelSoftmax,
    quantization: Option<Quantization>,
    /// (row, head) pairs that attention computed in each layer since the network was loaded.
    attended: Vec<u64>,
    /// Steps of one form ask the backend for the same operations; another number after every change of those.
    form: u64,
    /// Per layer and KV head, while a calibration runs.
    observed: Option<Vec<Vec<ScoreStatistics>>>,
    plan: memory::Plan,
    layout: KvLayout,
    /// Names the content of the file that the weights are from.
    file_digest: String,
    max_rows: usize,
    max_logit_rows: usize,
    weight_bytes_per_token: usize,
    kv_bytes_per_token: usize,
}

/// Activations of the largest step.
struct Workspace<B: Backend> {
    residual: B::Buffer,
    normed: B::Buffer,
    qkv: B::Buffer,
    angles: B::Buffer,
    heads: B::Buffer,
    gate_up: B::Buffer,
    activated: B::Buffer,
    /// What attention or the feed-forward layer adds to the residual.
    delta: B::Buffer,
    gathered: B::Buffer,
    gathered_normed: B::Buffer,
    logits: B::Buffer,
    host_logits: Vec<f32>,
    /// Grows with the first steps that have any.
    host_hidden: Vec<f32>,
}

/// Rows and columns of the buffers of a [`Workspace`], in the order of its fields.
fn workspace_shapes(config: &ModelConfig, max_rows: usize, max_logit_rows: usize) -> [(usize, usize); 11] {
    let &ModelConfig { hidden_size, ffn_size, vocab_size, heads, .. } = config;
    let of_rows = [
        hidden_size,
        hidden_size,
        heads.qkv_width(),
        config.rope.rotary_dim,
        heads.q_width(),
        2 * ffn_size,
        ffn_size,
        hidden_size,
    ];
    let of_logit_rows = [hidden_size, hidden_size, vocab_size];
    std::array::from_fn(|buffer| match of_rows.get(buffer) {
        Some(&cols) => (max_rows, cols),
        None => (max_logit_rows, of_logit_rows[buffer - of_rows.len()]),
    })
}

impl<B: Backend> Workspace<B> {
    fn new(backend: &B, config: &ModelConfig, max_rows: usize, max_logit_rows: usize) -> Result<Self, Error> {
        let mut shapes = workspace_shapes(config, max_rows, max_logit_rows).into_iter();
        let mut next = || {
            let (rows, cols) = shapes.next().expect("a shape for each buffer");
            backend.buffer(rows, cols)
        };
        Ok(Workspace {
            residual: next()?,
            normed: next()?,
            qkv: next()?,
            angles: next()?,
            heads: next()?,
            gate_up: next()?,
            activated: next()?,
            delta: next()?,
            gathered: next()?,
            gathered_normed: next()?,
            logits: next()?,
            host_logits: vec![0.0; max_logit_rows * config.vocab_size],
            host_hidden: Vec::new(),
        })
    }
}

impl<B: Backend> Llama<B> {
    /// Loads a network. `progress` is called after every matrix.
    pub fn load(
        backend: B,
        checkpoint: &Checkpoint,
        options: LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, Error> {
        if options.max_rows == 0 || options.max_logit_rows == 0 {
            return Err(Error::BadOption("a step needs room for at least one row and one row of logits".into()));
        }
        let config = ModelConfig::from_checkpoint(checkpoint)?;
        let layout = |num_blocks| KvLayout {
            num_layers: config.num_layers,
            num_blocks,
            num_kv_heads: config.heads.num_kv_heads,
            head_dim: config.heads.head_dim,
            dtype: options.kv_dtype,
        };
        let block_bytes = backend.kv_block_bytes(layout(1)).saturating_mul(config.num_layers);
        let free_bytes = backend.free_bytes().unwrap_or_else(memory::available_bytes);
        let mut plan = memory::plan(&config, &options, block_bytes, free_bytes)?;
        if let Some(quantization) = options.quantization {
            plan.notes.extend(quantization.check(checkpoint)?);
        }
        let layout = layout(plan.num_blocks);
        backend.reserve(&Demand {
            matrices: &weights::stacks_of(checkpoint, &config, options.quantization)?,
            vectors: &weights::vector_lens(checkpoint),
            buffers: &workspace_shapes(&config, options.max_rows, options.max_logit_rows),
            cache: layout,
            heads: config.heads,
            max_rows: options.max_rows,
            max_logit_rows: options.max_logit_rows,
            context_len: plan.context_len,
        })?;
        let cache = backend.kv_cache(layout)?;
        let workspace = Workspace::new(&backend, &config, options.max_rows, options.max_logit_rows)?;
        let weights = Weights::load(&backend, checkpoint, &config, options.quantization, progress)?;
        Ok(Llama {
            weight_bytes_per_token: weights::bytes_per_token(checkpoint, &config, options.quantization),
            kv_bytes_per_token: block_bytes / BLOCK_SIZE,
            batch: Batch::with_capacity(options.max_rows, options.max_logit_rows, plan.context_len),
            attention: options.attention,
            softmax: ModelSoftmax::Online,
            quantization: options.quantization,
            attended: vec![0; config.num_layers],
            form: new_form(),
            observed: None,
            max_rows: options.max_rows,
            max_logit_rows: options.max_logit_rows,
            backend,
            config,
            weights,
            cache,
            workspace,
            plan,
            layout,
            file_digest: blocks::digest_of_nothing(),
        })
    }

    /// Takes the memory of the whole KV cache now, so that no step waits for it.
    pub fn populate_kv_cache(&mut self) {
        self.backend.populate_kv_cache(&mut self.cache);
    }

    /// What the network looks like.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
    /// Positions of one sequence.
    pub fn context_len(&self) -> usize {
        self.plan.context_len
    }
    /// Blocks of the KV cache.
    pub fn num_blocks(&self) -> usize {
        self.plan.num_blocks
    }
    /// What the user should know about what he gets: a context that is less than he asked for, or than the file offers; matrices that stay
    /// as they are.
    pub fn notes(&self) -> &[String] {
        &self.plan.notes
    }
    /// Most rows of a step.
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }
    /// Most rows of a step that need logits.
    pub fn max_logit_rows(&self) -> usize {
        self.max_logit_rows
    }
    /// What computes.
    pub fn backend(&self) -> &B {
        &self.backend
    }
    /// Bytes of weights, in the blocks of their types, that a step of one row reads.
    pub fn weight_bytes_per_token(&self) -> usize {
        self.weight_bytes_per_token
    }
    /// Bytes that one position takes in the KV cache.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.kv_bytes_per_token
    }

    /// Computes attention in another way from now on.
    pub fn set_attention(&mut self, attention: AttentionScheme) {
        self.attention = attention;
        self.form = new_form();
    }

    /// Which references attention has; running ones after loading.
    pub fn softmax(&self) -> &ModelSoftmax {
        &self.softmax
    }
    /// Gives attention other references from now on.
    ///
    /// # Errors
    /// When they are not of this network's layers and heads.
    pub fn set_softmax(&mut self, softmax: ModelSoftmax) -> Result<(), Error> {
        softmax.check(&self.config)?;
        self.softmax = softmax;
        self.form = new_form();
        Ok(())
    }
    /// What attention computed in each layer since the network was loaded.
    pub fn attended(&self) -> Vec<AttendedRows> {
        let recomputed = self.backend.recomputed(&self.cache);
        let layers = self.attended.iter().zip(recomputed);
        layers.map(|(&computed, recomputed)| AttendedRows { computed, recomputed }).collect()
    }
    /// (row, query head) pairs of all layers that were computed a second time since the network was loaded.
    pub fn recomputed_rows(&self) -> u64 {
        self.backend.recomputed(&self.cache).iter().sum()
    }

    /// The calling thread runs the steps from now on, see [`Backend::settle`].
    pub fn settle(&self) {
        self.backend.settle();
    }

    /// Has something done that nobody waits for, see [`Backend::send_out`].
    pub fn send_out(&self, errand: Errand) {
        self.backend.send_out(errand);
    }

    /// Runs one step: stores the keys and values of every token, and computes the logits that the slices ask for.
    ///
    /// # Panics
    /// When the step has more rows than there is room for, or a slice names cache blocks or positions that do not exist.
    pub fn forward(&mut self, sequences: &[SequenceSlice<'_>]) -> Result<Logits<'_>, Error> {
        let (rows, vocab_size) = (self.compute(sequences)?, self.config.vocab_size);
        let Workspace { logits, host_logits, .. } = &mut self.workspace;
        let host_logits = &mut host_logits[..rows * vocab_size];
        if rows > 0 {
            self.backend.read_rows(logits, 0..rows, host_logits);
        }
        Ok(Logits::new(host_logits, vocab_size))
    }

    /// As [`Llama::forward`], but the logits stay where they are until the next step; returns how many rows of them there are.
    ///
    /// # Errors
    /// Those of [`Llama::forward`].
    ///
    /// # Panics
    /// As [`Llama::forward`] does.
    pub fn compute(&mut self, sequences: &[SequenceSlice<'_>]) -> Result<usize, Error> {
        let rows = self.compute_while(sequences, &|| true)?;
        Ok(rows.expect("a step that is wanted is done"))
    }

    /// As [`Llama::compute`], but the step is left as soon as `is_wanted` says no, which is asked before each layer where that saves
    /// anything ([`Backend::is_done_at_once`]). Then there are no logits, and the keys and values of the step's tokens are anything.
    ///
    /// # Errors
    /// Those of [`Llama::forward`].
    ///
    /// # Panics
    /// As [`Llama::forward`] does.
    pub fn compute_while(
        &mut self,
        sequences: &[SequenceSlice<'_>],
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<usize>, Error> {
        let vocab_size = self.config.vocab_size;
        let rows: usize = sequences.iter().map(|slice| slice.tokens.len()).sum();
        let logit_rows: usize = sequences.iter().map(SequenceSlice::num_logit_rows).sum();
        assert!(rows <= self.max_rows, "{rows} rows in a step with room for {}", self.max_rows);
        assert!(logit_rows <= self.max_logit_rows, "{logit_rows} rows of logits, room for {}", self.max_logit_rows);
        let tokens = sequences.iter().flat_map(|slice| slice.tokens);
        if let Some(&token) = tokens.into_iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size });
        }
        self.batch.fill(sequences, self.plan.context_len, self.plan.num_blocks);
        let is_done = rows == 0 || self.run(is_wanted);
        Ok(is_done.then_some(logit_rows))
    }

    /// Copies rows of logits of the last step into `out`, row-major.
    pub fn read_logits(&self, rows: Range<usize>, out: &mut [f32]) {
        if !rows.is_empty() {
            self.backend.read_rows(&self.workspace.logits, rows, out);
        }
    }

    /// The hidden states that the slices of the last step asked for, `[rows, hidden_size]`, in their order: after the last layer and
    /// the final norm.
    pub fn read_hidden(&mut self) -> &[f32] {
        let Llama { backend, batch, config, workspace: Workspace { normed, host_hidden, .. }, .. } = self;
        let width = config.hidden_size;
        host_hidden.resize(batch.hidden_rows.len() * width, 0.0);
        let mut left = host_hidden.as_mut_slice();
        for rows in batch.hidden_rows.chunk_by(|&one, &next| next == one + 1) {
            let (of_rows, others) = left.split_at_mut(rows.len() * width);
            let first = rows[0] as usize;
            backend.read_rows(normed, first..first + rows.len(), of_rows);
            left = others;
        }
        host_hidden
    }

    /// Draws tokens from rows of logits of the last step, where the backend does such ([`Backend::choose`]).
    pub fn choose(&self, draws: &[(usize, Draw)], tokens: &mut Vec<Option<u32>>) -> bool {
        self.backend.choose(&self.workspace.logits, draws, tokens)
    }

    /// Everything of a step that the backend computes; false if it was left because it is not wanted any more.
    fn run(&mut self, is_wanted: &dyn Fn() -> bool) -> bool {
        let Llama { backend, batch, config, attention, softmax, observed, .. } = self;
        let inputs = StepInputs { tokens: &batch.tokens, tables: &batch.tables, logit_rows: &batch.logit_rows };
        // What calibrates or is a baseline reads back or needs memory as it goes. Steps with hidden states end in another operation
        // than those of the form, and pieces of prompts are seldom of one length.
        let is_plain = observed.is_none() && batch.hidden_rows.is_empty();
        let form = (is_plain && *attention == AttentionScheme::SplitKv).then_some(self.form);
        let mut pass = Pass {
            config,
            weights: &self.weights,
            batch,
            attention: *attention,
            softmax,
            cache: &mut self.cache,
            workspace: &mut self.workspace,
            observed: observed.as_deref_mut(),
            is_wanted: if backend.is_done_at_once() { is_wanted } else { &|| true },
            is_left: false,
        };
        backend.step(inputs, form, &mut |backend| pass.run(backend));
        if pass.is_left {
            return false;
        }
        // The last layer attends for those who read its output alone.
        let layers = config.num_layers - usize::from(!batch.is_read());
        let pairs = (batch.num_rows() * config.heads.num_heads) as u64;
        self.attended[..layers].iter_mut().for_each(|attended| *attended += pairs);
        true
    }
}

/// A number that no network in this process had before.
fn new_form() -> u64 {
    static FORMS: AtomicU64 = AtomicU64::new(0);
    FORMS.fetch_add(1, Ordering::Relaxed)
}
