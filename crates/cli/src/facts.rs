//! What the server's endpoints may tell of the model's file and of the options that it was started with. Options are listed by
//! name, so that one that holds a secret is told of by nobody.

use crate::args::{Device, KvKind, ServeArgs};
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use taper_checkpoint::Checkpoint;
use taper_server::ServerFacts;

/// What a model's file says of itself. `made_for` is its context.
pub(crate) fn of_file(checkpoint: &Checkpoint, made_for: usize) -> ServerFacts {
    ServerFacts {
        model_path: Some(checkpoint.path().display().to_string()),
        architecture: checkpoint.metadata().architecture().ok().map(str::to_owned),
        num_params: Some(checkpoint.tensors().map(|tensor| tensor.num_elements() as u64).sum()),
        model_bytes: Some(checkpoint.file_len()),
        trained_context_len: Some(made_for),
        ..ServerFacts::default()
    }
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
    match options {
        Value::Object(options) => options,
        _ => Map::new(),
    }
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

    #[test]
    fn options_have_the_names_and_words_of_the_flags() {
        let flags = ["taper", "serve", "--max-batch", "3", "--speculation", "off", "--request-timeout", "0.5"];
        let Ok(Cli { command: Command::Serve(args), .. }) = Cli::try_parse_from(flags) else {
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
    }
}
