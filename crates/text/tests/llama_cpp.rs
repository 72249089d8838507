//! Against the files that llama.cpp tests itself with. They are tens of megabytes, so these tests run on request:
//!
//!     LLAMA_CPP=/path/to/llama.cpp cargo test --release -p taper-text --test llama_cpp -- --ignored --nocapture

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use taper_checkpoint::Checkpoint;
use taper_text::{ChatMessage, ChatTemplate, Detokenizer, EncodeOptions, RenderContext, Tokenizer};

fn models() -> PathBuf {
    let root = std::env::var_os("LLAMA_CPP").expect("LLAMA_CPP names a checkout of llama.cpp");
    PathBuf::from(root).join("models")
}

fn tokenizer(vocabulary: &str) -> Result<Tokenizer, taper_text::Error> {
    let path = models().join(format!("ggml-vocab-{vocabulary}.gguf"));
    Tokenizer::from_metadata(Checkpoint::open(&path).expect("it opens").metadata())
}

#[test]
#[ignore = "needs a checkout of llama.cpp"]
fn golden_vocabularies_give_golden_tokens() {
    for vocabulary in
        ["llama-bpe", "qwen2", "gpt-2", "starcoder", "refact", "command-r", "llama-spm", "phi-3", "deepseek-r1-qwen"]
    {
        // Vocabularies that the checkout does not have as GGUF are skipped with a line.
        let Ok(inputs) = std::fs::read_to_string(models().join(format!("ggml-vocab-{vocabulary}.gguf.inp"))) else {
            println!("{vocabulary}: no golden file");
            continue;
        };
        let outputs = std::fs::read_to_string(models().join(format!("ggml-vocab-{vocabulary}.gguf.out")));
        let outputs = outputs.expect("an .inp has its .out");
        let tokenizer = Arc::new(tokenizer(vocabulary).expect("it is supported"));
        let mut num_equal = 0;
        for (text, expected) in inputs.split("\n__ggml_vocab_test__\n").zip(outputs.lines()) {
            let expected: Vec<u32> = expected.split_whitespace().map(|id| id.parse().expect("an id")).collect();
            let ids = tokenizer.encode(text, EncodeOptions::default()).expect("it can be encoded");
            assert_eq!(ids, expected, "{vocabulary}: {text:?}");
            assert_eq!(tokenizer.decode(&ids, false), text, "{vocabulary}");
            let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer));
            let mut streamed: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
            streamed.push_str(&detokenizer.finish());
            assert_eq!(streamed, text, "{vocabulary}, token by token");
            num_equal += 1;
        }
        println!("{vocabulary}: {num_equal} of {} equal", outputs.lines().count());
        assert_eq!(num_equal, outputs.lines().count());
    }
}

#[test]
#[ignore = "needs a checkout of llama.cpp"]
fn vocabularies_of_other_kinds_are_refused_by_name() {
    for vocabulary in ["falcon", "mpt", "deepseek-llm", "qwen35", "bert-bge", "gemma-4", "gpt-neox"] {
        let error = tokenizer(vocabulary).expect_err("it is not supported").to_string();
        println!("{vocabulary}: {error}");
        assert!(error.contains("not supported") && error.contains("Supported: "), "{vocabulary}: {error}");
    }
}

#[test]
#[ignore = "needs a checkout of llama.cpp"]
fn the_template_collection_renders() {
    let messages =
        [ChatMessage::new("user", "hi"), ChatMessage::new("assistant", "yo"), ChatMessage::new("user", "again")];
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters":
        {"type": "object", "properties": {"x": {"type": "string", "description": "q"}}, "required": ["x"]}}});
    let (mut num_rendered, mut failures) = (0, Vec::new());
    for file in std::fs::read_dir(models().join("templates")).expect("it has templates") {
        let path = file.expect("it can be listed").path();
        if path.extension().is_none_or(|extension| extension != "jinja") {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("it is text");
        let template = match ChatTemplate::from_source(&path.display().to_string(), &source) {
            Ok(template) => template,
            Err(error) => {
                failures.push(error.to_string());
                continue;
            }
        };
        for tools in [None, Some(json!([tool]))] {
            let context = RenderContext {
                bos_text: "<s>".to_owned(),
                eos_text: "</s>".to_owned(),
                add_generation_prompt: true,
                tools,
                ..RenderContext::default()
            };
            match template.render(&messages, &context) {
                Ok(text) if text.contains("again") => num_rendered += 1,
                Ok(text) => failures.push(format!("{}: the last message is missing in {text:?}", path.display())),
                Err(error) => failures.push(format!("{}: {error}", path.display())),
            }
        }
    }
    println!("{num_rendered} renderings; these failed:\n{}", failures.join("\n"));
    // Templates written for a fixed system of their own ask for variables that no server passes.
    assert!(failures.len() <= 3 && num_rendered >= 100, "{num_rendered} rendered, {} failed", failures.len());
}
