//! What the server's endpoints may tell of the model's file and of the options that it was started with. Options are listed by
//! name, so that one that holds a secret is told of by nobody.

use crate::args::{Device, KvKind, ServeArgs};
use crate::suggestions::Suggestions;
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use taper_checkpoint::Checkpoint;
use taper_server::ServerFacts;

/// What a model's file says of itself. `made_for` is its context.
pub(crate) fn of_file(checkpoint: &Checkpoint, made_for: usize) -> ServerFacts {
    ServerFacts {
        model_path: Some(checkpoint.path().display().to_string()),
        architecture: checkpoint.metadata().architecture().ok().map(str::to_owned),
        quantization: quantization(checkpoint),
        num_params: Some(checkpoint.tensors().map(|tensor| tensor.num_elements() as u64).sum()),
        model_bytes: Some(checkpoint.file_len()),
        trained_context_len: Some(made_for),
        sampling: Suggestions::of(checkpoint.metadata()).defaults,
        ..ServerFacts::default()
    }
}

/// llama.cpp's names of a file's types, by the number in `general.file_type`.
const FILE_TYPES: &[(u32, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (21, "Q2_K_S"),
    (32, "BF16"),
];

/// The type that a file says it has; otherwise that of most of its numbers.
fn quantization(checkpoint: &Checkpoint) -> Option<String> {
    let number = checkpoint.metadata().u32("general.file_type").ok().flatten();
    let named = FILE_TYPES.iter().find(|(known, _)| Some(*known) == number).map(|(_, name)| *name);
    let mut stored: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        *stored.entry(tensor.dtype.name()).or_default() += tensor.num_elements();
    }
    let most = || stored.into_iter().max_by_key(|(_, num)| *num).map(|(name, _)| name);
    named.or_else(most).map(str::to_owned)
}

/// The same with what computes, and how.
pub(crate) fn of_server(file: ServerFacts, args: &ServeArgs) -> ServerFacts {
    let device = match args.model.device.device {
        Device::Auto => Device::Cpu,
        other => other,
    };
    ServerFacts { device: Some(device.to_string()), options: options(args), ..file }
}

/// By the names of the flags; what was not given is null.
fn options(args: &ServeArgs) -> Map<String, Value> {
    let ServeArgs { models, model, context, engine, several, .. } = args;
    let options = json!({
        "model": if models.0.len() > 1 { json!(models.0) } else { json!(model.model) },
        "device": model.device.device.to_string(),
        "deterministic": name(model.deterministic),
        "threads": model.threads,
        "isa": model.isa,
        "activations": name(model.activations),
        "quantization": model.quantization.map(name),
        "attention": name(model.attention),
        "softmax": name(model.softmax),
        "kv_cache_dtype": model.kv_dtype().ok().map(KvKind::name_of),
        "ctx": context.ctx,
        "chat_template": context.chat_template,
        "kv_cache_size": engine.kv_cache_size,
        "cache_dir": engine.cache_dir.as_ref().map(|folder| folder.display().to_string()),
        "cache_dir_size": engine.cache_dir_size,
        "speculation": name(engine.speculation),
        "draft_model": engine.draft_model,
        "max_loaded_models": several.max_loaded_models,
        "model_memory": several.model_memory,
        "host": args.host,
        "port": args.port,
        "max_batch": args.max_batch,
        "max_queued": args.max_queued,
        "max_queued_tokens": args.max_queued_tokens,
        "itl_target": args.itl_target.map(|target| json!({
            "ms": target.at_least.as_secs_f64() * 1e3, "times": target.times_decode,
        })),
        "request_timeout": args.request_timeout.map(|timeout| timeout.as_secs_f64()),
        "log_format": name(args.log_format),
    });
    let mut options = match options {
        Value::Object(options) => options,
        _ => Map::new(),
    };
    let sampling = args.sampling.defaults().fields();
    options.extend(sampling.into_iter().map(|(name, value)| (name.to_owned(), value.unwrap_or_default())));
    options
}

/// What a flag calls a value.
#[allow(clippy::needless_pass_by_value, reason = "they are small and copied")]
fn name<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use taper_testkit::gguf;
    use taper_testkit::tiny::{TinyModel, TinyType};

    #[test]
    fn a_file_says_what_it_is_stored_as_or_its_tensors_do() {
        let check = |file_type: u32, expected: &str| {
            let model = TinyModel { weight_type: TinyType::Q8_0, ..TinyModel::default() };
            let file = model.builder().set("general.file_type", gguf::Value::U32(file_type));
            let checkpoint = Checkpoint::from_bytes("tiny.gguf", file.build()).unwrap();
            assert_eq!(quantization(&checkpoint).as_deref(), Some(expected), "{file_type}");
        };
        check(15, "Q4_K_M");
        check(7, "Q8_0");
        check(1000, "Q8_0");
    }

    #[test]
    fn options_have_the_names_and_words_of_the_flags() {
        let flags = "taper serve --max-batch 3 --speculation off --request-timeout 0.5 --temperature 0.6";
        let Ok(Cli { command: Command::Serve(args), .. }) = Cli::try_parse_from(flags.split(' ')) else {
            panic!("it is understood")
        };
        let facts = of_server(ServerFacts::default(), &args);
        assert_eq!(facts.device.as_deref(), Some("cpu"));
        let of = |name: &str| &facts.options[name];
        assert_eq!(
            (of("max_batch"), of("speculation"), of("request_timeout")),
            (&json!(3), &json!("off"), &json!(0.5))
        );
        assert_eq!((of("kv_cache_dtype"), of("deterministic"), of("ctx")), (&json!("f16"), &json!("on"), &Value::Null));
        assert_eq!((of("temperature"), of("min_p")), (&json!(0.6), &Value::Null));
    }
}
