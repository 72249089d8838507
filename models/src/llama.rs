//! The Llama-like decoder: embed, then per layer
//!
//! ```text
//! norm, qkv, [qk norm,] rope + kv store, attention, o, add + norm, gate-up, silu-mul, down, add + norm
//! ```
//!
//! then the head for the rows that need logits. Prompt pieces and decode steps of any sequences run together; a row's
//! result depends on its own sequence only. All activations are allocated at load for the largest step; what depends on
//! the shape of steps (plans of attention, rounded activations) grows with the first of them, after which a forward pass
//! allocates nothing.

mod blocks;
mod fill;
mod observe;

use crate::step::Batch;
use crate::weights::{self, Layer, Weights};
use crate::{AttendedRows, Error, Logits, ModelConfig, ModelSoftmax, SequenceSlice, memory};
use taper_checkpoint::Checkpoint;
use taper_kernels::{AttentionParams, AttentionScheme, BLOCK_SIZE, Backend, KvDtype, KvLayout, ScoreStatistics};

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
    /// Most rows (tokens of all sequences) of one step.
    pub max_rows: usize,
    /// Most rows of one step that need logits.
    pub max_logit_rows: usize,
    /// Storage type of keys and values.
    pub kv_dtype: KvDtype,
    /// How attention is computed.
    pub attention: AttentionScheme,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            context_len: None,
            num_blocks: None,
            kv_cache_bytes: None,
            max_rows: 512,
            max_logit_rows: 64,
            kv_dtype: KvDtype::default(),
            attention: AttentionScheme::default(),
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
    /// Per layer, since the network was loaded.
    attended: Vec<AttendedRows>,
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
    logits: B::Buffer,
    host_logits: Vec<f32>,
}

impl<B: Backend> Workspace<B> {
    fn new(backend: &B, config: &ModelConfig, max_rows: usize, max_logit_rows: usize) -> Result<Self, Error> {
        Ok(Workspace {
            residual: backend.buffer(max_rows, config.hidden_size)?,
            normed: backend.buffer(max_rows, config.hidden_size)?,
            qkv: backend.buffer(max_rows, config.heads.qkv_width())?,
            angles: backend.buffer(max_rows, config.rope.rotary_dim)?,
            heads: backend.buffer(max_rows, config.heads.q_width())?,
            gate_up: backend.buffer(max_rows, 2 * config.ffn_size)?,
            activated: backend.buffer(max_rows, config.ffn_size)?,
            delta: backend.buffer(max_rows, config.hidden_size)?,
            gathered: backend.buffer(max_logit_rows, config.hidden_size)?,
            logits: backend.buffer(max_logit_rows, config.vocab_size)?,
            host_logits: vec![0.0; max_logit_rows * config.vocab_size],
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
        let plan = memory::plan(&config, &options, block_bytes, memory::available_bytes())?;
        let layout = layout(plan.num_blocks);
        let cache = backend.kv_cache(layout)?;
        let workspace = Workspace::new(&backend, &config, options.max_rows, options.max_logit_rows)?;
        let weights = Weights::load(&backend, checkpoint, &config, progress)?;
        Ok(Llama {
            weight_bytes_per_token: weights::bytes_per_token(checkpoint, &config),
            kv_bytes_per_token: block_bytes / BLOCK_SIZE,
            batch: Batch::with_capacity(options.max_rows, options.max_logit_rows, plan.context_len),
            attention: options.attention,
            softmax: ModelSoftmax::Online,
            attended: vec![AttendedRows::default(); config.num_layers],
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
    /// What the user should know about the context he gets: it is less than he asked for, or than the file offers.
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
    /// Bytes of weights, as the file stores them, that a step of one row reads.
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
        Ok(())
    }
    /// What attention computed in each layer since the network was loaded.
    pub fn attended(&self) -> &[AttendedRows] {
        &self.attended
    }
    /// (row, query head) pairs of all layers that were computed a second time since the network was loaded.
    pub fn recomputed_rows(&self) -> u64 {
        self.attended.iter().map(|layer| layer.recomputed).sum()
    }

    /// Runs one step: stores the keys and values of every token, and computes the logits that the slices ask for.
    ///
    /// # Panics
    /// When the step has more rows than there is room for, or a slice names cache blocks or positions that do not exist.
    pub fn forward(&mut self, sequences: &[SequenceSlice<'_>]) -> Result<Logits<'_>, Error> {
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
        if rows > 0 {
            self.layers();
        }
        if logit_rows > 0 {
            self.head();
        }
        Ok(Logits::new(&self.workspace.host_logits[..logit_rows * vocab_size], vocab_size))
    }

    /// From tokens to the normed output of the last layer.
    fn layers(&mut self) {
        let Llama { backend, config, weights, cache, workspace: ws, batch, .. } = self;
        let (rows, eps) = (batch.num_rows(), config.norm_eps);
        let scale = 1.0 / (config.heads.head_dim as f32).sqrt();

        backend.embed(&weights.embedding, &batch.tokens, &mut ws.residual);
        backend.rope_angles(&config.rope, &batch.tables.positions, &mut ws.angles);
        backend.rms_norm(rows, &ws.residual, &weights.layers[0].attn_norm, eps, &mut ws.normed);
        for (index, layer) in weights.layers.iter().enumerate() {
            let (scheme, softmax) = (self.attention, self.softmax.of_layer(index));
            let params = AttentionParams { layer: index, heads: config.heads, scale, scheme, softmax };
            let next = weights.layers.get(index + 1);

            backend.soon(&layer.attn_output);
            backend.linear(rows, &ws.normed, &layer.qkv, layer.qkv_bias.as_ref(), &mut ws.qkv);
            if let Some((q_norm, k_norm)) = &layer.qk_norm {
                backend.qk_norm(rows, &mut ws.qkv, config.heads, q_norm, k_norm, eps);
            }
            backend.rope_kv_store(&batch.tables, &config.rope, &ws.angles, params, &mut ws.qkv, cache);
            if let Some(observed) = &mut self.observed {
                backend.observe_scores(&batch.tables, params, &ws.qkv, cache, &mut observed[index]);
            }
            if next.is_none() && batch.logit_rows.is_empty() {
                // Nobody reads the output of the last layer; its keys and values are stored.
                return;
            }
            let attended = &mut self.attended[index];
            attended.computed += (rows * config.heads.num_heads) as u64;
            attended.recomputed += backend.attention(&batch.tables, params, &ws.qkv, cache, &mut ws.heads);
            backend.soon(&layer.gate_up);
            backend.linear(rows, &ws.heads, &layer.attn_output, None, &mut ws.delta);
            backend.add_rms_norm(rows, &mut ws.residual, &ws.delta, &layer.ffn_norm, eps, &mut ws.normed);
            feed_forward(backend, rows, layer, ws, next.map_or(weights.head(), |next| &next.qkv));
            let norm = next.map_or(&weights.output_norm, |next| &next.attn_norm);
            backend.add_rms_norm(rows, &mut ws.residual, &ws.delta, norm, eps, &mut ws.normed);
        }
    }

    /// Logits of the rows that need them, copied to the host.
    fn head(&mut self) {
        let Llama { backend, config, weights, workspace: ws, batch, .. } = self;
        let rows = batch.logit_rows.len();
        backend.gather_rows(&ws.normed, &batch.logit_rows, &mut ws.gathered);
        backend.soon(&weights.layers[0].qkv);
        backend.logits(rows, &ws.gathered, weights.head(), &mut ws.logits);
        backend.read_rows(&ws.logits, 0..rows, &mut ws.host_logits[..rows * config.vocab_size]);
    }
}

/// `delta = down(silu(gate(normed)) * up(normed))`.
fn feed_forward<B: Backend>(backend: &B, rows: usize, layer: &Layer<B>, ws: &mut Workspace<B>, next: &B::Matrix) {
    backend.soon(&layer.ffn_down);
    backend.linear_silu_mul(rows, &ws.normed, &layer.gate_up, &mut ws.gate_up, &mut ws.activated);
    backend.soon(next);
    backend.linear(rows, &ws.activated, &layer.ffn_down, None, &mut ws.delta);
}
