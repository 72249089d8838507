//! Tiny seeded language models as GGUF files, in the shape of the architectures that run here.
//!
//! The weights are random but of sensible size: a token's embedding and each layer's contribution are of like
//! magnitude, attention is not uniform, and logits spread over a few units, so that errors show in them. A tensor's
//! values depend on seed and name only. llama.cpp loads the files, which is how their golden logits are made.

use crate::gguf::{GgufBuilder, Value};
pub use crate::quantize::TinyType;
use crate::quantize::encode;
use crate::rng::SplitMix;
use crate::vocab::{ByteVocab, CHATML, MIN_TOKENS};

/// What the model shall look like.
#[derive(Debug, Clone)]
pub struct TinyModel {
    /// `llama`, `qwen2` (adds biases to q, k, v) or `qwen3` (adds norms of q and k).
    pub architecture: &'static str,
    /// GGUF version, 2 or 3.
    pub version: u32,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; Qwen 2's is `hidden / heads`.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Number of tokens, at least [`MIN_TOKENS`].
    pub vocab: usize,
    /// Context length that the file states.
    pub context: usize,
    /// Storage type of the matrices. Norms and biases are F32.
    pub weight_type: TinyType,
    /// Storage type of the embedding and the output head, when it is another.
    pub embedding_type: Option<TinyType>,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Divisors of the rotary frequencies (`rope_freqs.weight`), `head_dim / 2` of them.
    pub rope_freqs: Option<Vec<f32>>,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// The pre-tokenizer that the file states.
    pub pre_tokenizer: &'static str,
    /// Whether the file asks for a BOS before every prompt.
    pub add_bos: bool,
    /// Factors on the q and k weights of the leading layers; scores grow with their square. 6 makes scores beyond 150.
    pub qk_gain: &'static [f32],
    /// Further keys, such as `llama.rope.scaling.type`.
    pub extra: Vec<(String, Value)>,
    /// Seed of the weights.
    pub seed: u64,
}

impl Default for TinyModel {
    fn default() -> TinyModel {
        TinyModel {
            architecture: "llama",
            version: 3,
            hidden: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ffn: 128,
            vocab: MIN_TOKENS.next_multiple_of(32),
            context: 256,
            weight_type: TinyType::F32,
            embedding_type: None,
            tied: true,
            rope_base: 10_000.0,
            rope_freqs: None,
            norm_eps: 1e-5,
            pre_tokenizer: "gpt-2",
            add_bos: false,
            qk_gain: &[],
            extra: Vec::new(),
            seed: 1,
        }
    }
}

impl TinyModel {
    /// The file.
    pub fn to_gguf(&self) -> Vec<u8> {
        self.builder().build()
    }

    /// The file before it is written, for tests that change something in it.
    pub fn builder(&self) -> GgufBuilder {
        let mut builder = self.add_text(self.add_config(GgufBuilder::new(self.version)));
        for (key, value) in &self.extra {
            builder = builder.value(key, value.clone());
        }
        self.add_weights(builder)
    }

    fn add_config(&self, builder: GgufBuilder) -> GgufBuilder {
        let arch = self.architecture;
        let key = |name: &str| format!("{arch}.{name}");
        let mut builder = builder
            .string("general.architecture", arch)
            .string("general.name", "tiny")
            .u32("general.file_type", self.weight_type.file_type())
            .u32("general.quantization_version", 2)
            .u32(&key("context_length"), self.context as u32)
            .u32(&key("embedding_length"), self.hidden as u32)
            .u32(&key("block_count"), self.layers as u32)
            .u32(&key("feed_forward_length"), self.ffn as u32)
            .u32(&key("attention.head_count"), self.heads as u32)
            .u32(&key("attention.head_count_kv"), self.kv_heads as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), self.norm_eps)
            .f32(&key("rope.freq_base"), self.rope_base)
            .u32(&key("vocab_size"), self.vocab as u32);
        // As the converters write it: Qwen 2 states neither, Qwen 3 the head's width, Llama the rotated part.
        assert!(arch != "qwen2" || self.heads * self.head_dim == self.hidden, "Qwen 2's heads are hidden / heads wide");
        if arch == "qwen3" || self.head_dim * self.heads != self.hidden {
            builder = builder.u32(&key("attention.key_length"), self.head_dim as u32);
            builder = builder.u32(&key("attention.value_length"), self.head_dim as u32);
        }
        if arch == "llama" {
            builder = builder.u32(&key("rope.dimension_count"), self.head_dim as u32);
        }
        builder
    }

    fn add_text(&self, builder: GgufBuilder) -> GgufBuilder {
        let vocab = ByteVocab::new(self.vocab);
        builder
            .string("tokenizer.ggml.model", "gpt2")
            .string("tokenizer.ggml.pre", self.pre_tokenizer)
            .strings("tokenizer.ggml.tokens", &vocab.tokens)
            .i32s("tokenizer.ggml.token_type", &vocab.token_types)
            .strings("tokenizer.ggml.merges", &vocab.merges)
            .u32("tokenizer.ggml.bos_token_id", vocab.id("<|endoftext|>"))
            .u32("tokenizer.ggml.eos_token_id", vocab.id("<|im_end|>"))
            .bool("tokenizer.ggml.add_bos_token", self.add_bos)
            .string("tokenizer.chat_template", CHATML)
    }

    fn add_weights(&self, mut builder: GgufBuilder) -> GgufBuilder {
        let (hidden, q, kv) = (self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let embedding_type = self.embedding_type.unwrap_or(self.weight_type);
        let layer_type = self.weight_type;
        let mut tensor = |name: &str, dims: &[usize], dtype: TinyType, mean: f32, deviation: f32| {
            let mut rng = SplitMix::named(self.seed, name);
            let values: Vec<f32> = rng.normals(dims.iter().product(), deviation).iter().map(|v| mean + v).collect();
            assert!(
                dims[0].is_multiple_of(dtype.block_len()),
                "{name}: rows of {} do not fill blocks of {dtype:?}",
                dims[0]
            );
            let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
            let data = encode(dtype, &values, &mut rng);
            builder = std::mem::replace(&mut builder, GgufBuilder::new(3)).tensor(name, &dims, dtype.type_id(), data);
        };
        // Deviations: outputs of about 1 from normed inputs; q and k a little more, so that attention has a direction.
        let one = |inputs: usize| 1.0 / (inputs as f32).sqrt();
        tensor("token_embd.weight", &[hidden, self.vocab], embedding_type, 0.0, 2.0 * one(hidden));
        tensor("output_norm.weight", &[hidden], TinyType::F32, 1.0, 0.1);
        if !self.tied {
            tensor("output.weight", &[hidden, self.vocab], embedding_type, 0.0, 2.0 * one(hidden));
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            tensor(&name("attn_norm.weight"), &[hidden], TinyType::F32, 1.0, 0.1);
            let qk = 1.5 * self.qk_gain.get(layer).unwrap_or(&1.0) * one(hidden);
            tensor(&name("attn_q.weight"), &[hidden, q], layer_type, 0.0, qk);
            tensor(&name("attn_k.weight"), &[hidden, kv], layer_type, 0.0, qk);
            tensor(&name("attn_v.weight"), &[hidden, kv], layer_type, 0.0, one(hidden));
            tensor(&name("attn_output.weight"), &[q, hidden], layer_type, 0.0, one(q));
            if self.architecture == "qwen2" {
                tensor(&name("attn_q.bias"), &[q], TinyType::F32, 0.0, 0.5);
                tensor(&name("attn_k.bias"), &[kv], TinyType::F32, 0.0, 0.5);
                tensor(&name("attn_v.bias"), &[kv], TinyType::F32, 0.0, 0.2);
            }
            if self.architecture == "qwen3" {
                tensor(&name("attn_q_norm.weight"), &[self.head_dim], TinyType::F32, 1.2, 0.2);
                tensor(&name("attn_k_norm.weight"), &[self.head_dim], TinyType::F32, 1.2, 0.2);
            }
            tensor(&name("ffn_norm.weight"), &[hidden], TinyType::F32, 1.0, 0.1);
            tensor(&name("ffn_gate.weight"), &[hidden, self.ffn], layer_type, 0.0, one(hidden));
            tensor(&name("ffn_up.weight"), &[hidden, self.ffn], layer_type, 0.0, one(hidden));
            tensor(&name("ffn_down.weight"), &[self.ffn, hidden], layer_type, 0.0, one(self.ffn));
        }
        if let Some(freqs) = &self.rope_freqs {
            let data = encode(TinyType::F32, freqs, &mut SplitMix::new(0));
            builder = builder.tensor("rope_freqs.weight", &[freqs.len() as u64], TinyType::F32.type_id(), data);
        }
        builder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_model_gives_the_same_bytes_and_another_seed_others() {
        let model = TinyModel::default();
        let other = TinyModel { seed: 2, ..model.clone() };
        assert_eq!(model.to_gguf(), model.to_gguf());
        assert_ne!(model.to_gguf(), other.to_gguf());
    }

    #[test]
    fn every_architecture_and_type_can_be_written() {
        for architecture in ["llama", "qwen2", "qwen3"] {
            for weight_type in TinyType::ALL {
                let model = TinyModel {
                    architecture,
                    weight_type,
                    hidden: 256,
                    heads: 4,
                    head_dim: 64,
                    ffn: 256,
                    layers: 1,
                    ..TinyModel::default()
                };
                assert!(model.to_gguf().len() > 100_000);
            }
        }
    }
}
