//! The shape of a network, read from a checkpoint's metadata. Every number is checked against what the family allows and
//! against the tensors that the file really has, before anything is allocated from it.

use crate::registry::{self, Architecture, Presence};
use crate::{Error, Pooling, rope, weights};
use taper_checkpoint::{Checkpoint, Metadata};
use taper_kernels::{HeadLayout, Rope};

/// What a network of the registry looks like.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Its registry row's name.
    pub architecture: &'static str,
    /// `general.name`, as its authors call it.
    pub name: Option<String>,
    /// Layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query and key/value heads.
    pub heads: HeadLayout,
    /// Width of the feed-forward layer.
    pub ffn_size: usize,
    /// Token ids, and the width of the logits.
    pub vocab_size: usize,
    /// Positions the model was made for.
    pub context_len: usize,
    /// Keys that a token of the original model attends to, when that is fewer than `context_len`. Attention here is always
    /// full, which is the same thing for contexts up to the window.
    pub sliding_window: Option<usize>,
    /// Added to the mean square in RMS norm.
    pub norm_eps: f32,
    /// Position embedding, scaling included.
    pub rope: Rope,
    /// Whether the head is the embedding table.
    pub tied: bool,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether query and key heads are normed before RoPE.
    pub qk_norm: bool,
    /// How hidden states are pooled where nobody says; none when the file wants a way that is not here.
    pub pooling: Option<Pooling>,
}

impl ModelConfig {
    /// Reads and checks the configuration. Afterwards every tensor the network needs is known to exist in its shape, and
    /// no other tensor to be left over.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<ModelConfig, Error> {
        let metadata = checkpoint.metadata();
        refuse_other_files(metadata)?;
        let architecture = registry::find(metadata.architecture()?)?;
        let keys = Keys { metadata, prefix: architecture.name };
        refuse_other_networks(&keys)?;

        let mut config = dimensions(checkpoint, architecture, &keys)?;
        // RoPE allocates by head_dim, which is to be trusted only once the tensors agree with it.
        weights::check(checkpoint, architecture, &config)?;
        config.rope = rope::read(checkpoint, architecture, &keys, &config)?;
        Ok(config)
    }

    /// Positions for which full attention gives what the model's own attention would.
    pub fn usable_context_len(&self) -> usize {
        self.sliding_window.unwrap_or(usize::MAX).min(self.context_len)
    }
}

fn dimensions(
    checkpoint: &Checkpoint,
    architecture: &'static Architecture,
    keys: &Keys<'_>,
) -> Result<ModelConfig, Error> {
    let hidden_size = keys.count("embedding_length")?;
    let context_len = keys.count("context_length")?;
    let heads = head_layout(keys, hidden_size)?;
    let qkv_bias = match architecture.qkv_bias {
        Presence::Required => true,
        Presence::Absent => false,
        Presence::Optional => checkpoint.find("blk.0.attn_q.bias").is_some(),
    };
    let norm_eps = keys.metadata.require_f32(&keys.full("attention.layer_norm_rms_epsilon"))?;
    if !(norm_eps > 0.0 && norm_eps < 1.0) {
        return Err(keys.bad("attention.layer_norm_rms_epsilon", norm_eps, "it is a small positive number"));
    }
    let window = keys.metadata.u32(&keys.full("attention.sliding_window"))?.unwrap_or(0) as usize;
    Ok(ModelConfig {
        architecture: architecture.name,
        name: keys.metadata.string("general.name")?.map(|name| name.chars().take(256).collect()),
        num_layers: keys.count("block_count")?,
        hidden_size,
        heads,
        ffn_size: keys.uniform("feed_forward_length")?.ok_or_else(|| keys.missing("feed_forward_length"))?,
        vocab_size: vocab_size(checkpoint, keys.metadata)?,
        context_len,
        sliding_window: (window > 0 && window < context_len).then_some(window),
        norm_eps,
        rope: Rope { kind: architecture.rope, rotary_dim: 0, inv_freq: Vec::new(), magnitude: 1.0 },
        tied: checkpoint.find("output.weight").is_none(),
        qkv_bias,
        qk_norm: architecture.qk_norm,
        pooling: pooling(keys)?,
    })
}

/// What `pooling_type` says, in llama.cpp's numbers; a file of a chat model says nothing.
fn pooling(keys: &Keys<'_>) -> Result<Option<Pooling>, Error> {
    Ok(match keys.metadata.u32(&keys.full("pooling_type"))? {
        None | Some(0 | 1) => Some(Pooling::Mean),
        Some(3) => Some(Pooling::Last),
        Some(_) => None,
    })
}

fn head_layout(keys: &Keys<'_>, hidden_size: usize) -> Result<HeadLayout, Error> {
    let num_heads = keys.uniform("attention.head_count")?.ok_or_else(|| keys.missing("attention.head_count"))?;
    let num_kv_heads = keys.uniform("attention.head_count_kv")?.unwrap_or(num_heads);
    if num_kv_heads > num_heads || !num_heads.is_multiple_of(num_kv_heads) {
        let expected = format!("it divides the number of query heads, {num_heads}");
        return Err(keys.bad("attention.head_count_kv", num_kv_heads, &expected));
    }
    let head_dim = match keys.optional_count("attention.key_length")? {
        Some(length) => length,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let expected = format!(
                "without the key {} it divides the embedding length, {hidden_size}",
                keys.full("attention.key_length")
            );
            return Err(keys.bad("attention.head_count", num_heads, &expected));
        }
    };
    let value_dim = keys.optional_count("attention.value_length")?.unwrap_or(head_dim);
    if value_dim != head_dim {
        return Err(Error::UnsupportedFeature {
            feature: format!(
                "values of another width than keys ({}: {value_dim}, keys are {head_dim} wide)",
                keys.full("attention.value_length")
            ),
            advice: "choose a model whose key and value heads are equally wide".into(),
        });
    }
    if !head_dim.is_multiple_of(2) {
        return Err(keys.bad(
            "attention.key_length",
            head_dim,
            "a head has an even number of elements, which RoPE turns",
        ));
    }
    Ok(HeadLayout { num_heads, num_kv_heads, head_dim })
}

/// Rows of the embedding, which must be the number of tokens the file lists.
fn vocab_size(checkpoint: &Checkpoint, metadata: &Metadata) -> Result<usize, Error> {
    let embedding = checkpoint.tensor(weights::EMBEDDING)?;
    let [rows, _] = embedding.shape[..] else {
        return Err(Error::BadTensor {
            tensor: weights::EMBEDDING.into(),
            reason: format!("has {} dimensions where two are expected", embedding.shape.len()),
        });
    };
    if let Some(tokens) = metadata.strings("tokenizer.ggml.tokens")?
        && tokens.len() != rows
    {
        return Err(Error::BadKey {
            key: "tokenizer.ggml.tokens".into(),
            found: format!("a list of {} tokens", tokens.len()),
            expected: format!("`{}` has {rows} rows", weights::EMBEDDING),
        });
    }
    Ok(rows)
}

/// Adapters, projectors and parts of models are GGUF files too.
fn refuse_other_files(metadata: &Metadata) -> Result<(), Error> {
    if let Some(kind) = metadata.string("general.type")?
        && kind != "model"
    {
        return Err(Error::UnsupportedFeature {
            feature: format!("a file that is not a model by itself (general.type: {kind:.64})"),
            advice: "name the GGUF of the language model".into(),
        });
    }
    let parts = metadata.u32("split.count")?.unwrap_or(1);
    if parts > 1 {
        return Err(Error::UnsupportedFeature {
            feature: format!("a file that is one of {parts} parts (split.count)"),
            advice: "merge the parts with llama.cpp's `llama-gguf-split --merge FIRST_PART OUT.gguf`".into(),
        });
    }
    Ok(())
}

/// Keys by which a file asks for arithmetic that the network does not do, each with the value that asks for nothing.
/// Zero counts as "not set" in every one of them.
const NEUTRAL_NUMBERS: &[(&str, f32)] = &[
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("attention.scale", 0.0),
    ("attention.output_scale", 1.0),
    ("attention.temperature_scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("rope.scaling.alpha", 0.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_beta_fast", 32.0),
    ("rope.scaling.yarn_beta_slow", 1.0),
];

/// The same for switches.
const NEUTRAL_SWITCHES: &[(&str, bool)] = &[("attention.causal", true), ("use_parallel_residual", false)];

fn refuse_other_networks(keys: &Keys<'_>) -> Result<(), Error> {
    let refuse = |key: &str, value: String| {
        Err(Error::UnsupportedFeature {
            feature: format!("`{}` = {value}", keys.full(key)),
            advice: "choose a plain dense model of the same family".into(),
        })
    };
    for &(key, neutral) in NEUTRAL_NUMBERS {
        if let Some(value) = keys.metadata.f32(&keys.full(key))?
            && value != neutral
            && value != 0.0
        {
            return refuse(key, value.to_string());
        }
    }
    for &(key, neutral) in NEUTRAL_SWITCHES {
        if let Some(value) = keys.metadata.bool(&keys.full(key))?
            && value != neutral
        {
            return refuse(key, value.to_string());
        }
    }
    // One expert is a dense layer under another name, as llama.cpp treats it.
    match keys.metadata.u32(&keys.full("expert_count"))?.unwrap_or(0) {
        0 | 1 => Ok(()),
        experts => refuse("expert_count", format!("{experts} (a mixture of experts)")),
    }
}

/// Keys under an architecture's prefix.
pub(crate) struct Keys<'a> {
    pub(crate) metadata: &'a Metadata,
    prefix: &'static str,
}

impl Keys<'_> {
    pub(crate) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    pub(crate) fn bad(&self, key: &str, found: impl std::fmt::Display, expected: &str) -> Error {
        Error::BadKey { key: self.full(key), found: found.to_string(), expected: expected.into() }
    }

    fn missing(&self, key: &str) -> Error {
        self.bad(key, "absent", "every model of the family has it")
    }

    /// A number of things, of which there is at least one.
    fn count(&self, key: &str) -> Result<usize, Error> {
        self.optional_count(key)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn optional_count(&self, key: &str) -> Result<Option<usize>, Error> {
        match self.metadata.u32(&self.full(key))? {
            Some(0) => Err(self.bad(key, 0, "it is at least 1")),
            value => Ok(value.map(|value| value as usize)),
        }
    }

    /// A count that the file may give per layer, but that has to be the same in all.
    fn uniform(&self, key: &str) -> Result<Option<usize>, Error> {
        let Some(values) = self.metadata.u32s(&self.full(key))? else { return Ok(None) };
        let Some(&first) = values.first() else {
            return Err(self.bad(key, "an empty list", "it has one value or one per layer"));
        };
        if values.iter().any(|&value| value != first) {
            return Err(Error::UnsupportedFeature {
                feature: format!("layers of different shapes (`{}` differs between layers)", self.full(key)),
                advice: "choose a model whose layers are all alike".into(),
            });
        }
        if first == 0 {
            return Err(self.bad(key, 0, "it is at least 1"));
        }
        Ok(Some(first as usize))
    }
}
