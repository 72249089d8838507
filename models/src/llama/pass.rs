//! The operations of one step, in order.

use super::Workspace;
use crate::step::Batch;
use crate::weights::{Layer, Weights};
use crate::{ModelConfig, ModelSoftmax};
use taper_kernels::{AttentionParams, AttentionScheme, Backend, Norm, ScoreStatistics, Turn};

/// What the operations of a step read and write.
pub(super) struct Pass<'a, B: Backend> {
    pub(super) config: &'a ModelConfig,
    pub(super) weights: &'a Weights<B>,
    pub(super) batch: &'a Batch,
    pub(super) attention: AttentionScheme,
    pub(super) softmax: &'a ModelSoftmax,
    pub(super) cache: &'a mut B::KvCache,
    pub(super) workspace: &'a mut Workspace<B>,
    /// Per layer and KV head, while a calibration runs.
    pub(super) observed: Option<&'a mut [Vec<ScoreStatistics>]>,
    /// Asked before each layer; after a no there are neither logits nor hidden states.
    pub(super) is_wanted: &'a dyn Fn() -> bool,
    /// Whether the answer was no.
    pub(super) is_left: bool,
}

impl<B: Backend> Pass<'_, B> {
    /// From tokens to the logits, or the hidden states, of the rows that need them.
    pub(super) fn run(&mut self, backend: &B) {
        let (weights, batch) = (self.weights, self.batch);
        let is_read = batch.is_read();
        backend.embed(&weights.embedding, &batch.tokens, &mut self.workspace.residual);
        backend.rope_angles(&self.config.rope, &batch.tables.positions, &mut self.workspace.angles);
        for (index, layer) in weights.layers.iter().enumerate() {
            if !(self.is_wanted)() {
                self.is_left = true;
                return;
            }
            let next = weights.layers.get(index + 1);
            self.attend(backend, index, layer, next.is_some() || is_read);
            if next.is_some() || is_read {
                self.feed_forward(backend, layer, next.map_or(weights.head(), |next| &next.qkv));
            }
        }
        if !batch.logit_rows.is_empty() {
            self.head(backend);
        }
        if !batch.hidden_rows.is_empty() {
            self.norm_hidden(backend);
        }
    }

    /// `residual += o(attention(norm(residual)))`; the keys and values alone where nobody reads that.
    fn attend(&mut self, backend: &B, index: usize, layer: &Layer<B>, is_read: bool) {
        let Pass { config, batch, cache, workspace: ws, .. } = self;
        let (rows, eps, heads, step) = (batch.num_rows(), config.norm_eps, config.heads, &batch.tables);
        let scale = 1.0 / (heads.head_dim as f32).sqrt();
        let softmax = self.softmax.of_layer(index);
        let params = AttentionParams { layer: index, heads, scale, scheme: self.attention, softmax };
        let qk_norm = layer.qk_norm.as_ref().map(|(q_norm, k_norm)| (q_norm, k_norm, eps));
        let turn = Turn { qk_norm, rope: &config.rope, angles: &ws.angles };
        let norm = Norm { x: &ws.residual, weight: &layer.attn_norm, eps, normed: &mut ws.normed };

        backend.soon(&layer.attn_output);
        backend.norm_linear(rows, norm, &layer.qkv, layer.qkv_bias.as_ref(), &mut ws.qkv);
        match &mut self.observed {
            None if is_read => backend.rope_attention(step, turn, params, &mut ws.qkv, cache, &mut ws.heads),
            None => backend.turn_and_store(step, turn, params, &mut ws.qkv, cache),
            Some(observed) => {
                backend.turn_and_store(step, turn, params, &mut ws.qkv, cache);
                backend.observe_scores(step, params, &ws.qkv, cache, &mut observed[index]);
                if is_read {
                    backend.attention(step, params, &ws.qkv, cache, &mut ws.heads);
                }
            }
        }
        if is_read {
            backend.soon(&layer.gate_up);
            backend.linear_add(rows, &ws.heads, &layer.attn_output, &mut ws.delta, &mut ws.residual);
        }
    }

    /// `residual += down(silu(gate(y)) * up(y))` of `y = norm(residual)`.
    fn feed_forward(&mut self, backend: &B, layer: &Layer<B>, next: &B::Matrix) {
        let Pass { config, batch, workspace: ws, .. } = self;
        let (rows, eps) = (batch.num_rows(), config.norm_eps);
        let norm = Norm { x: &ws.residual, weight: &layer.ffn_norm, eps, normed: &mut ws.normed };
        backend.soon(&layer.ffn_down);
        backend.norm_linear_silu_mul(rows, norm, &layer.gate_up, &mut ws.gate_up, &mut ws.activated);
        backend.soon(next);
        backend.linear_add(rows, &ws.activated, &layer.ffn_down, &mut ws.delta, &mut ws.residual);
    }

    fn head(&mut self, backend: &B) {
        let Pass { config, weights, batch, workspace: ws, .. } = self;
        let rows = batch.logit_rows.len();
        backend.gather_rows(&ws.residual, &batch.logit_rows, &mut ws.gathered);
        backend.rms_norm(rows, &ws.gathered, &weights.output_norm, config.norm_eps, &mut ws.gathered_normed);
        backend.soon(&weights.layers[0].qkv);
        backend.logits(rows, &ws.gathered_normed, weights.head(), &mut ws.logits);
    }

    /// The final hidden states of all rows, into `normed`: to pick some first would take room for as many.
    fn norm_hidden(&mut self, backend: &B) {
        let Pass { config, weights, batch, workspace: ws, .. } = self;
        let rows = batch.num_rows();
        backend.rms_norm(rows, &ws.residual, &weights.output_norm, config.norm_eps, &mut ws.normed);
    }
}
