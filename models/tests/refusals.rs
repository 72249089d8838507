//! Files that are damaged, hostile or of another kind: each is refused with an error that names what is wrong, never by a
//! panic and never after allocating what the file does not justify.

mod support;

use support::load;
use taper_kernels::Reference;
use taper_testkit::gguf::{GgufBuilder, Value};
use taper_testkit::tiny::TinyModel;

/// Loads a changed tiny model and expects an error that contains all of `words`.
#[track_caller]
fn check(builder: &GgufBuilder, words: &[&str]) {
    let Err(error) = load(Reference::new(), builder.build()) else { panic!("loaded, but {words:?} was expected") };
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    assert!(message.len() < 1500, "an endless message: {message}");
}

fn tiny() -> GgufBuilder {
    TinyModel::default().builder()
}

/// A tiny llama with one key changed.
fn with(key: &str, value: Value) -> GgufBuilder {
    tiny().set(key, value)
}

#[test]
fn the_unchanged_model_loads() {
    assert!(load(Reference::new(), tiny().build()).is_ok());
}

#[test]
fn another_architecture_is_refused_by_name() {
    check(&with("general.architecture", Value::String("gemma3".into())), &["`gemma3`", "llama", "qwen3"]);
}

#[test]
fn counts_of_zero_are_refused_by_key() {
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "rope.dimension_count",
    ] {
        check(&with(&format!("llama.{key}"), Value::U32(0)), &[key, "at least 1"]);
    }
}

#[test]
fn absent_counts_are_refused_by_key() {
    for key in ["block_count", "context_length", "embedding_length", "attention.head_count"] {
        check(&tiny().without(&format!("llama.{key}")), &[key]);
    }
    check(&tiny().without("llama.attention.layer_norm_rms_epsilon"), &["layer_norm_rms_epsilon"]);
    check(&tiny().without("general.architecture"), &["general.architecture"]);
}

#[test]
fn huge_counts_meet_the_tensors_of_the_file() {
    let huge = Value::U32(u32::MAX);
    check(&with("llama.block_count", huge.clone()), &["blk.2."]);
    check(&with("llama.embedding_length", Value::U32(1 << 31)), &["token_embd.weight", "64"]);
    check(
        &with("llama.feed_forward_length", huge.clone()),
        &["blk.0.ffn_gate.weight", "[4294967295, 64]", "[128, 64]"],
    );
    check(&with("llama.attention.head_count", Value::U32(1 << 30)), &["attention.head_count"]);
    check(
        &with("llama.attention.key_length", Value::U32(1 << 31))
            .set("llama.attention.value_length", Value::U32(1 << 31)),
        &["attn_q"],
    );
    check(&with("llama.rope.dimension_count", huge), &["rope.dimension_count"]);
}

#[test]
fn a_huge_context_is_cut_to_what_memory_holds() {
    let builder = with("llama.context_length", Value::U32(u32::MAX));
    let model = load(Reference::new(), builder.build()).unwrap();
    assert_eq!(model.context_len(), 16 * 64);
    assert_eq!(model.config().context_len, u32::MAX as usize);
    assert!(!model.notes().is_empty());
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    check(&with("llama.attention.head_count_kv", Value::U32(3)), &["head_count_kv", "divides", "4"]);
    check(&with("llama.attention.head_count_kv", Value::U32(8)), &["head_count_kv", "divides"]);
    check(
        &with("llama.attention.head_count", Value::U32(6)).set("llama.attention.head_count_kv", Value::U32(2)),
        &["64"],
    );
}

#[test]
fn odd_and_unequal_heads_are_refused() {
    check(
        &with("llama.attention.key_length", Value::U32(15)).set("llama.attention.value_length", Value::U32(15)),
        &["15", "even"],
    );
    check(&with("llama.attention.value_length", Value::U32(8)), &["attention.value_length", "8"]);
    check(&with("llama.rope.dimension_count", Value::U32(7)), &["rope.dimension_count", "even"]);
    check(&with("llama.rope.dimension_count", Value::U32(18)), &["rope.dimension_count", "16"]);
}

#[test]
fn numbers_that_are_none_are_refused() {
    for value in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
        check(&with("llama.attention.layer_norm_rms_epsilon", Value::F32(value)), &["layer_norm_rms_epsilon"]);
        check(&with("llama.rope.freq_base", Value::F32(value)), &["rope.freq_base"]);
    }
    for value in [f32::NAN, f32::INFINITY, -2.0] {
        check(&tiny().f32("llama.rope.scaling.factor", value), &["rope.scaling.factor"]);
        check(&tiny().f32("llama.rope.scale_linear", value), &["rope.scale_linear"]);
    }
    check(
        &tiny().string("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.attn_factor", f32::NAN),
        &["attn_factor"],
    );
    let factors = TinyModel { rope_freqs: Some(vec![1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]), ..TinyModel::default() };
    check(&factors.builder(), &["rope_freqs.weight", "contains 0"]);
}

#[test]
fn keys_of_the_wrong_type_are_refused_by_key() {
    check(&with("llama.block_count", Value::String("two".into())), &["llama.block_count"]);
    check(&with("llama.rope.freq_base", Value::Bool(1)), &["llama.rope.freq_base"]);
}

#[test]
fn a_tensor_that_is_missing_is_named() {
    for name in ["token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight", "blk.0.attn_norm.weight"] {
        check(&tiny().without_tensor(name), &[name]);
    }
    let qwen = |architecture| TinyModel { architecture, ..TinyModel::default() }.builder();
    check(&qwen("qwen2").without_tensor("blk.1.attn_k.bias"), &["blk.1.attn_k.bias"]);
    check(&qwen("qwen3").without_tensor("blk.1.attn_k_norm.weight"), &["blk.1.attn_k_norm.weight"]);
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    let zeros = |len: usize| vec![0; 4 * len];
    let replaced = |name: &str, dims: &[u64]| {
        let len = dims.iter().product::<u64>() as usize;
        tiny().without_tensor(name).tensor(name, dims, 0, zeros(len))
    };
    // GGUF gives the columns first.
    check(&replaced("blk.1.attn_k.weight", &[64, 16]), &["blk.1.attn_k.weight", "[16, 64]", "[32, 64]"]);
    check(&replaced("output_norm.weight", &[32]), &["output_norm.weight", "[32]", "[64]"]);
    check(&replaced("blk.0.attn_norm.weight", &[64, 2]), &["blk.0.attn_norm.weight", "[2, 64]"]);
    check(&replaced("token_embd.weight", &[64]), &["token_embd.weight", "two"]);
    let factors = TinyModel { rope_freqs: Some(vec![1.0; 4]), ..TinyModel::default() };
    check(&factors.builder(), &["rope_freqs.weight", "[8]", "[4]"]);
}

#[test]
fn a_vocabulary_that_does_not_fit_the_embedding_is_refused() {
    check(&with("tokenizer.ggml.tokens", Value::strings(&["a", "b"])), &["tokenizer.ggml.tokens", "2 tokens", "rows"]);
}

#[test]
fn tensors_that_would_be_ignored_are_refused_by_name() {
    for name in ["blk.0.attn_output.bias", "blk.0.ffn_gate_inp.weight", "blk.7.attn_q.weight", "output.bias", "blk.x"] {
        check(&tiny().tensor(name, &[64], 0, vec![0; 256]), &[name, "llama"]);
    }
    let qwen3 = TinyModel { architecture: "qwen3", ..TinyModel::default() };
    check(&qwen3.builder().tensor("blk.0.attn_q.bias", &[64], 0, vec![0; 256]), &["blk.0.attn_q.bias"]);
    check(&qwen3.builder().tensor("rope_freqs.weight", &[8], 0, vec![0; 32]), &["rope_freqs.weight"]);
}

#[test]
fn networks_that_compute_something_else_are_refused_by_key() {
    check(&tiny().u32("llama.expert_count", 8), &["llama.expert_count", "mixture of experts"]);
    check(&tiny().f32("llama.logit_scale", 0.0625), &["llama.logit_scale"]);
    check(&tiny().f32("llama.attention.scale", 0.5), &["llama.attention.scale"]);
    check(&tiny().f32("llama.final_logit_softcapping", 30.0), &["final_logit_softcapping"]);
    check(&tiny().bool("llama.attention.causal", false), &["attention.causal"]);
    check(&tiny().string("llama.rope.scaling.type", "longrope"), &["longrope", "none, linear and yarn"]);
    check(&tiny().f32("llama.rope.scaling.yarn_beta_fast", 16.0), &["yarn_beta_fast"]);
    check(&tiny().string("general.type", "adapter"), &["adapter"]);
    check(&tiny().u32("split.count", 3), &["3 parts", "merge"]);
}

#[test]
fn neutral_values_of_these_keys_are_no_reason_to_refuse() {
    let builder = tiny()
        .u32("llama.expert_count", 0)
        .f32("llama.logit_scale", 1.0)
        .bool("llama.attention.causal", true)
        .string("general.type", "model")
        .u32("split.count", 1);
    assert!(load(Reference::new(), builder.build()).is_ok());
}

#[test]
fn layers_of_different_shapes_are_refused() {
    let layers = |values: &[u32]| Value::Array(5, values.iter().map(|&value| Value::I32(value as i32)).collect());
    check(&with("llama.attention.head_count_kv", layers(&[2, 1])), &["head_count_kv", "differs between layers"]);
    assert!(load(Reference::new(), with("llama.attention.head_count_kv", layers(&[2, 2])).build()).is_ok());
}

#[test]
fn a_sliding_window_limits_the_context_and_is_said() {
    let builder = tiny().u32("llama.attention.sliding_window", 100);
    let model = load(Reference::new(), builder.build()).unwrap();
    assert_eq!((model.context_len(), model.config().sliding_window), (100, Some(100)));
    assert!(model.notes()[0].contains("sliding window"), "{:?}", model.notes());
}
