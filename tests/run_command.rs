//! The commands that run once and end: what they print, where, and how they refuse. On tiny models made here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use taper_testkit::gguf::Value as Field;
use taper_testkit::tiny::{TinyModel, TinyType};
use tempfile::TempDir;

/// Positions of the tiny model.
const CONTEXT: usize = 256;

/// A folder with a tiny model, which is the home and the cache of the commands as well.
struct Place {
    folder: TempDir,
    model: PathBuf,
}

impl Place {
    fn new() -> Place {
        Place::with_model(&TinyModel { context: CONTEXT, ..TinyModel::default() }.to_gguf())
    }

    fn with_model(bytes: &[u8]) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("tiny.gguf");
        std::fs::write(&model, bytes).unwrap();
        Place { folder, model }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = support::taper();
        for (name, _) in std::env::vars_os().filter(|(name, _)| {
            let name = name.to_string_lossy();
            ["TAPER_", "HF_", "XDG_", "OLLAMA_"].iter().any(|prefix| name.starts_with(prefix))
        }) {
            command.env_remove(name);
        }
        command.args(arguments).current_dir(self.folder.path()).env("HOME", self.folder.path()).stdin(Stdio::null());
        command
    }

    /// `taper run` on the tiny model, greedy.
    fn run(&self, arguments: &[&str]) -> Output {
        self.command(&["run", "--temperature", "0", "--threads", "1", "--model", "tiny.gguf"])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// The same with something piped in.
    fn run_piped(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(&["run", "--temperature", "0", "--threads", "1", "--model", "tiny.gguf"]);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }
}

/// A pipe that says nothing and is never closed, as a service may hand it down.
#[test]
fn a_prompt_is_answered_although_stdin_stays_open() {
    let place = Place::new();
    let mut command = place.command(&["run", "--model", "tiny.gguf", "-p", "ab", "--raw", "-n", "2", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let held_open = child.stdin.take();
    let answer = child.wait_with_output().unwrap();
    assert_eq!(json(&answer)["prompt_tokens"], serde_json::json!([97, 98]));
    assert!(text(&answer.stderr).contains("--stdin"), "{}", text(&answer.stderr));
    drop(held_open);
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The stdout of a command that succeeded.
fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The one line of JSON that is all of stdout.
fn json(output: &Output) -> Value {
    let stdout = stdout(output);
    assert_eq!(stdout.lines().count(), 1, "{stdout:?}");
    assert!(stdout.ends_with('\n'));
    serde_json::from_str(stdout).unwrap()
}

/// Why a command failed: the last line of stderr, the only one that begins with the program's name. stdout is empty.
fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().filter(|line| line.starts_with("taper: ")).count(), 1, "{stderr}");
    stderr.lines().last().unwrap().strip_prefix("taper: ").unwrap_or_else(|| panic!("{stderr}")).to_string()
}

/// A command line that clap refuses: exit code 2, and the usage.
fn misuse(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    text(&output.stderr).to_string()
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn keys_and_values_are_stored_as_is_asked_for_or_nothing_is_computed() {
    let run = |dtype: &str| {
        Place::new().run(&["-p", "ab", "--raw", "-n", "3", "--ignore-eos", "--json", "--kv-cache-dtype", dtype])
    };
    for dtype in ["f16", "bf16", "f32"] {
        assert_eq!(ids(&json(&run(dtype))["tokens"]).len(), 3, "{dtype}");
    }
    assert!(complaint(&run("f8")).contains("say f16, or q8_0 for a byte each"));
    assert!(misuse(&run("q3")).contains("[possible values: f16, bf16, f32, q8_0, f8]"));
}

#[test]
fn a_processor_refuses_fp8_before_anything_is_fetched() {
    let place = Place::new();
    for words in ["run -p ab", "serve", "chat", "perplexity missing.txt", "bench model", "bench chat", "tune"] {
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = place.command(&words);
        let refused = complaint(
            &command.args(["--quantization", "fp8", "--model", "hf:nobody/nothing/missing.gguf"]).output().unwrap(),
        );
        let parts = ["--quantization", "the processor", "Q8_0", "--device cuda"];
        assert!(parts.iter().all(|part| refused.contains(part)), "{words:?}: {refused}");
        let help = place.command(&words).arg("--help").output().unwrap();
        let help = stdout(&help);
        assert!(help.contains("--quantization <TYPE>") && help.contains("fp8: "), "{words:?}: {help}");
    }
    assert!(misuse(&place.run(&["-p", "ab", "--quantization", "int4"])).contains("[possible values: fp8]"));
}

#[test]
fn matrices_of_floats_are_quantized_where_that_is_asked_for() {
    let run = |weight_type| {
        let place = Place::with_model(&TinyModel { weight_type, context: CONTEXT, ..TinyModel::default() }.to_gguf());
        let words = ["-p", "ab", "--raw", "-n", "3", "--ignore-eos", "--json"];
        place.run(&[&words[..], &["--backend", "reference", "--quantization", "fp8"]].concat())
    };
    assert_eq!(ids(&json(&run(TinyType::BF16))["tokens"]).len(), 3);
    let refused = complaint(&run(TinyType::Q8_0));
    assert!(refused.contains("fp8 would change nothing") && refused.contains("Q8_0"), "{refused}");
}

#[test]
fn json_is_one_line_with_everything_in_it() {
    let answer = json(&Place::new().run(&["-p", "ab", "--raw", "-n", "5", "--ignore-eos", "--json"]));
    let keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["model", "prompt_tokens", "tokens", "text", "finish_reason", "usage", "timings"]);
    let usage =
        serde_json::json!({ "prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7, "cached_tokens": 0 });
    assert_eq!(answer["usage"], usage);
    // A tiny model's tokens are bytes first.
    assert_eq!(ids(&answer["prompt_tokens"]), [97, 98]);
    assert_eq!(ids(&answer["tokens"]).len(), 5);
    assert_eq!(answer["finish_reason"], "length");
    for name in ["queue_s", "prefill_s", "decode_s", "sample_s", "detokenize_s", "prompt_tokens_per_s", "tokens_per_s"]
    {
        assert!(answer["timings"][name].as_f64().unwrap() >= 0.0, "{name}");
    }
}

#[test]
fn raw_continues_the_prompt_and_the_default_is_the_chat_template() {
    let place = Place::new();
    let raw = json(&place.run(&["-p", "ab", "--raw", "-n", "1", "--json"]));
    let chat = json(&place.run(&["-p", "ab", "-n", "1", "--json"]));
    let system = json(&place.run(&["-p", "ab", "--system", "x", "-n", "1", "--json"]));
    let length = |answer: &Value| ids(&answer["prompt_tokens"]).len();
    assert!(length(&raw) < length(&chat) && length(&chat) < length(&system));
    let none = Place::with_model(&TinyModel::default().builder().without("tokenizer.chat_template").build());
    let refused = complaint(&none.run(&["-p", "ab"]));
    assert!(refused.contains("no chat template") && refused.contains("--chat-template"), "{refused}");
    assert!(none.run(&["-p", "ab", "--raw"]).status.success());
    assert!(none.run(&["-p", "ab", "--chat-template", "chatml"]).status.success());
}

#[test]
fn the_answer_goes_to_stdout_and_the_rest_to_stderr() {
    let place = Place::new();
    let plain = place.run(&["-p", "ab", "--raw", "-n", "5", "--ignore-eos"]);
    let answer = json(&place.run(&["-p", "ab", "--raw", "-n", "5", "--ignore-eos", "--json"]));
    assert_eq!(stdout(&plain), format!("{}\n", answer["text"].as_str().unwrap()));
    assert!(text(&plain.stderr).contains("5 tokens"), "{}", text(&plain.stderr));
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure_that_says_so() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let place = Place::new();
    let mut command = place.command(&["run", "--model", "tiny.gguf", "-p", "ab", "--raw", "-n", "2"]);
    let refused = command.stdout(full).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("cannot write to stdout"), "{}", text(&refused.stderr));
}

#[test]
fn a_prompt_is_given_piped_or_both() {
    let place = Place::new();
    let prompt = |output: Output| ids(&json(&output)["prompt_tokens"]);
    let options = ["--raw", "-n", "1", "--json"];
    assert_eq!(prompt(place.run_piped(&options, b"ab\n")), [97, 98], "a last line end is not part of it");
    let both = [&options[..], &["-p", "ab"]].concat();
    let expected = prompt(place.run(&[&options[..], &["-p", "ab\ncd"]].concat()));
    assert_eq!(prompt(place.run_piped(&both, b"cd\n")), expected);
    assert_eq!(prompt(place.run_piped(&[&both[..], &["--stdin"]].concat(), b"cd\n")), expected);
    assert!(complaint(&place.run_piped(&options, b"\xff\xfe")).contains("not UTF-8"));
    assert!(complaint(&place.run_piped(&options, b"\n\n")).contains("the prompt is empty"));
}

#[test]
fn a_prompt_needs_no_option_and_there_is_one() {
    let place = Place::new();
    let prompt = |output: Output| ids(&json(&output)["prompt_tokens"]);
    fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["--raw", "-n", "1", "--json"], more].concat()
    }
    assert_eq!(prompt(place.run(&with(&["ab"]))), [97, 98]);
    assert_eq!(prompt(place.run(&with(&["--", "-b"]))), prompt(place.run(&with(&["--prompt=-b"]))));
    std::fs::write(place.folder.path().join("file"), "cd\n").unwrap();
    let expected = prompt(place.run(&with(&["-p", "ab\ncd\nef"])));
    assert_eq!(prompt(place.run_piped(&with(&["ab", "-f", "file"]), b"ef\n")), expected);
    assert!(complaint(&place.run(&with(&[""]))).contains("the prompt is empty"));
    assert!(misuse(&place.run(&with(&["ab", "-p", "cd"]))).contains("cannot be used with"));
    let two = misuse(&place.run(&with(&["what", "is", "this"])));
    assert!(two.contains("\"what\" and \"is\" are two") && two.contains("quotes"), "{two}");
}

#[test]
fn files_come_after_the_prompt_and_before_what_is_piped() {
    let place = Place::new();
    for (name, text) in [("one", "ab\n"), ("two", "cd")] {
        std::fs::write(place.folder.path().join(name), text).unwrap();
    }
    let prompt = |output: Output| ids(&json(&output)["prompt_tokens"]);
    let options = ["--raw", "-n", "1", "--json"];
    let expected = |text: &str| prompt(place.run(&[&options[..], &["-p", text]].concat()));
    assert_eq!(prompt(place.run(&[&options[..], &["--file", "one"]].concat())), expected("ab"));
    let all = ["-p", "x", "-f", "one", "-f", "two"];
    assert_eq!(prompt(place.run(&[&options[..], &all[..]].concat())), expected("x\nab\ncd"));
    assert_eq!(prompt(place.run_piped(&[&options[..], &all[..]].concat(), b"y\n")), expected("x\nab\ncd\ny"));
    assert!(complaint(&place.run(&["-f", "none"])).contains("cannot read none"));
    std::fs::write(place.folder.path().join("bytes"), b"\xff").unwrap();
    assert!(complaint(&place.run(&["-f", "bytes"])).contains("bytes is not UTF-8"));
}

#[test]
fn an_answer_has_the_form_that_was_asked_for() {
    let place = Place::new();
    let answer = |form: &[&str]| {
        let output = place.run(&[&["-p", "ab", "--raw", "-n", "40", "--json"], form].concat());
        let answer = json(&output);
        assert_eq!(answer["finish_reason"], "stop", "{answer}");
        answer["text"].as_str().unwrap().to_owned()
    };
    let schema = r#"{"type":"object","properties":{"a":{"enum":[1,2]}},"required":["a"],"additionalProperties":false}"#;
    std::fs::write(place.folder.path().join("schema.json"), schema).unwrap();
    for given in [schema, "schema.json"] {
        let value: Value = serde_json::from_str(&answer(&["--json-schema", given])).unwrap();
        assert!([1, 2].map(|number| serde_json::json!({ "a": number })).contains(&value), "{value}");
    }
    assert!(["left", "right"].contains(&answer(&["--choice", "left", "--choice", "right"]).as_str()));
    let word = answer(&["--regex", "[xyz]{3}"]);
    assert!(word.len() == 3 && word.chars().all(|c| "xyz".contains(c)), "{word}");

    let refused = |form: &[&str]| complaint(&place.run(&[&["-p", "ab", "--raw"], form].concat()));
    assert!(refused(&["--json-schema", "{"]).contains("--json-schema"));
    assert!(refused(&["--json-schema", "nowhere.json"]).contains("neither JSON nor a file"));
    let regex = place.run(&["-p", "ab", "--raw", "--regex", "("]);
    assert_eq!(regex.status.code(), Some(1));
    assert!(text(&regex.stderr).contains("taper: --regex: the regex cannot be used"), "{}", text(&regex.stderr));
    assert!(refused(&["--choice", ""]).contains("--choice"));
    assert!(misuse(&place.run(&["-p", "ab", "--regex", "a", "--choice", "b"])).contains("cannot be used with"));
}

/// A tiny model whose last token ends thoughts, which its template begins or leaves to the model.
fn thinking_model(opens: bool) -> Vec<u8> {
    let tiny = TinyModel { context: CONTEXT, ..TinyModel::default() }.builder();
    let template = format!(
        "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}<|im_end|>\n{{% endfor %}}<|im_start|>assistant\n{}",
        if opens { "<think>\n" } else { "" }
    );
    tiny.set_last("tokenizer.ggml.tokens", &[Field::String("</think>".into())])
        .set_last("tokenizer.ggml.token_type", &[Field::I32(3)])
        .set("tokenizer.chat_template", Field::String(template.into_bytes()))
        .build()
}

#[test]
fn a_model_that_thinks_does_so_before_the_form() {
    let place = Place::with_model(&thinking_model(true));
    let ask = |options: &[&str]| {
        let common = ["run", "--threads", "1", "--model", "tiny.gguf", "-p", "ab", "--regex", "[xyz]{3}"];
        place.command(&common).args(options).output().unwrap()
    };
    let cut = json(&ask(&["--temperature", "0", "-n", "5", "--json"]));
    assert_eq!((&cut["text"], &cut["finish_reason"]), (&"".into(), &"length".into()), "{cut}");
    let is_form = |text: &str| text.len() == 3 && text.chars().all(|c| "xyz".contains(c));
    // Nearly every token has the same chance, the one that ends the thoughts as well.
    let wild = |seed: &str, more: &[&str]| {
        let options = ["--temperature", "50", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", seed];
        ask(&[&options, more].concat())
    };
    let done = (0..100).map(|seed: u32| (seed.to_string(), json(&wild(&seed.to_string(), &["--json"]))));
    let (seed, answer) = done.into_iter().find(|(_, answer)| answer["finish_reason"] == "stop").expect("one ends");
    let (text, thoughts) = (answer["text"].as_str().unwrap(), answer["reasoning_content"].as_str().unwrap());
    assert!(is_form(text) && !thoughts.is_empty() && !thoughts.contains("think"), "{answer}");
    let plain = wild(&seed, &[]);
    assert_eq!(stdout(&plain), format!("{text}\n"), "stdout has the form alone");

    let place = Place::with_model(&thinking_model(false));
    let form = ["-p", "ab", "--regex", "[xyz]{3}", "--json"];
    let free = json(&place.run(&form));
    assert!(is_form(free["text"].as_str().unwrap()) || free["reasoning_content"].is_string(), "it may: {free}");
    let raw = json(&place.run(&[&form[..], &["--raw"]].concat()));
    assert!(is_form(raw["text"].as_str().unwrap()) && raw["reasoning_content"].is_null(), "no turn begins: {raw}");
}

/// Options with which nearly every token has the same chance, the one that ends the thoughts as well, and the answer that first
/// comes to words with them: its seed, and what `--json` prints of it.
const WILD: [&str; 12] =
    ["--temperature", "50", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--max-tokens", "40", "--threads", "1"];

fn thought_and_said(place: &Place) -> (String, Value) {
    let answers = (0..200).map(|seed: u32| {
        let seed = seed.to_string();
        let mut command = place.command(&["run", "--model", "tiny.gguf", "ab", "--json", "--seed", &seed]);
        let answer = json(&command.args(WILD).output().unwrap());
        (seed, answer)
    });
    let is_both = |answer: &Value| answer["text"] != "" && answer["reasoning_content"].is_string();
    answers.into_iter().find(|(_, answer)| is_both(answer)).expect("one ends its thoughts")
}

#[test]
fn thoughts_are_no_part_of_the_answer() {
    let place = Place::with_model(&thinking_model(true));
    let (seed, answer) = thought_and_said(&place);
    let (said, thoughts) = (answer["text"].as_str().unwrap(), answer["reasoning_content"].as_str().unwrap());
    assert!(!said.contains("</think>") && !thoughts.contains("</think>"), "{answer}");
    let mut command = place.command(&["run", "--model", "tiny.gguf", "ab", "--seed", &seed]);
    let plain = command.args(WILD).output().unwrap();
    assert_eq!(stdout(&plain), format!("{said}\n"), "stdout has the answer alone");
    // What is no letter is spelled out on the way to a terminal.
    let first: String = thoughts.chars().take_while(char::is_ascii_graphic).collect();
    assert!(text(&plain.stderr).contains(&first), "{thoughts:?} in {}", text(&plain.stderr));

    let raw = json(&place.run(&["ab", "--raw", "-n", "5", "--ignore-eos", "--json"]));
    assert!(raw["reasoning_content"].is_null() && raw["text"] != "", "{raw}");
}

#[test]
fn a_chat_keeps_what_was_said_and_not_what_was_thought() {
    let place = Place::with_model(&thinking_model(true));
    let (seed, answer) = thought_and_said(&place);
    let said = answer["text"].as_str().unwrap();
    let chat = |more: &[&str], lines: &[u8]| {
        let mut command = place.command(&["chat", "--model", "tiny.gguf"]);
        command.args(more).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = chat(&[&WILD[..], &["--seed", &seed]].concat(), b"ab\n/save talk.json\n");
    assert_eq!(stdout(&output), format!("{said}\n"), "{}", text(&output.stderr));
    let saved = std::fs::read_to_string(place.folder.path().join("talk.json")).unwrap();
    let saved: Value = serde_json::from_str(&saved).unwrap();
    let messages = serde_json::json!([{ "role": "user", "content": "ab" }, { "role": "assistant", "content": said }]);
    assert_eq!(saved["messages"], messages);

    // Cut in thought, it has said nothing.
    let cut = chat(&["--temperature", "0", "-n", "3", "--ignore-eos"], b"ab\n/show\n");
    assert_eq!(text(&cut.stdout), "\n");
    let stderr = text(&cut.stderr);
    assert!(stderr.contains("cut at the limit; the conversation is as it was"), "{stderr}");
    assert!(stderr.contains("0 messages and answers"), "{stderr}");
}

#[test]
fn whether_to_think_is_told_to_the_template() {
    let switched = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is not defined %}A{% elif enable_thinking \
                    %}BB<think>{% else %}CCC<think></think>{% endif %}";
    let tiny = TinyModel { context: CONTEXT, ..TinyModel::default() }.builder();
    let place = Place::with_model(&tiny.set("tokenizer.chat_template", Field::String(switched.into())).build());
    let answer = |think: &[&str]| json(&place.run(&[&["ab", "-n", "3", "--ignore-eos", "--json"], think].concat()));
    let len = |answer: &Value| ids(&answer["prompt_tokens"]).len();
    let (plain, auto) = (answer(&[]), answer(&["--think", "auto"]));
    let (on, off) = (answer(&["--think", "on"]), answer(&["--think", "off"]));
    assert_eq!(plain["prompt_tokens"], auto["prompt_tokens"]);
    assert!(len(&auto) < len(&on) && len(&on) < len(&off), "{auto} {on} {off}");
    assert!(on["reasoning_content"].is_string() && on["text"] == "", "it thinks until it is cut: {on}");
    assert!(off["reasoning_content"].is_null() && off["text"] != "", "{off}");

    let refused = |place: &Place, think| complaint(&place.run(&["ab", "-n", "1", "--think", think]));
    let always = Place::with_model(&thinking_model(true));
    assert!(refused(&always, "off").contains("no variable `enable_thinking`"));
    assert!(always.run(&["ab", "-n", "1", "--think", "on"]).status.success(), "it does so anyway");
    let never = Place::new();
    assert!(refused(&never, "on").contains("does not think"));
    assert!(never.run(&["ab", "-n", "1", "--think", "off"]).status.success(), "it does not anyway");
    assert!(misuse(&never.run(&["ab", "--raw", "--think", "on"])).contains("cannot be used with"));
    assert!(misuse(&never.run(&["ab", "--think", "hard"])).contains("[possible values: on, off, auto]"));
}

#[test]
fn shells_get_completions_and_man_its_pages() {
    let place = Place::new();
    let help = place.command(&["--help"]).output().unwrap();
    let commands = stdout(&help).split("Commands:").nth(1).unwrap().lines();
    let commands: Vec<&str> = commands.skip(1).map_while(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"serve") && commands.contains(&"man"), "{commands:?}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = place.command(&["completions", shell]).output().unwrap();
        for command in &commands {
            assert!(stdout(&script).contains(command), "{command} for {shell}");
        }
        assert!(stdout(&script).contains("kv-cache-size"), "{shell}");
    }
    assert!(misuse(&place.command(&["completions", "tcsh"]).output().unwrap()).contains("possible values"));

    assert!(stdout(&place.command(&["man"]).output().unwrap()).contains(".TH taper 1"));
    let written = place.command(&["man", "pages"]).output().unwrap();
    let pages = place.folder.path().join("pages");
    for command in commands.iter().filter(|command| **command != "help") {
        let page = std::fs::read_to_string(pages.join(format!("taper-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH taper-{command} 1")), "{page}");
        assert!(stdout(&written).contains(&format!("taper-{command}.1")));
    }
    assert!(pages.join("taper-bench-model.1").exists());
}

#[test]
fn what_cannot_be_done_is_said_in_a_line() {
    let place = Place::new();
    let folder = place.folder.path().to_str().unwrap();
    let cases: [(&[&str], &[&str]); 14] = [
        (&["-p", "x", "--model", "missing.gguf"], &["no file", "missing.gguf"]),
        (&["-p", "x", "--model", "smollm3"], &["unknown model", "smollm3", "taper list --aliases"]),
        (&["-p", "x", "--model", ""], &["empty"]),
        (&["-p", "x", "--model", "/dev/null"], &["/dev/null", "file"]),
        (&[], &["prompt is empty", "-p"]),
        (&["-p", ""], &["prompt is empty"]),
        (&["-p", "x", "--temperature", "-1"], &["temperature", "at least 0", "-1"]),
        (&["-p", "x", "--temperature", "nan"], &["temperature", "NaN"]),
        (&["-p", "x", "--top-p", "1.5"], &["top_p", "between 0 and 1", "1.5"]),
        (&["-p", "x", "--stop", ""], &["stop"]),
        (&["-p", "x", "--chat-template", "nosuch"], &["nosuch", "chatml"]),
        (&["-p", "x", "--threads", "9999"], &["9999 threads", "at most 1024"]),
        (&["-p", "x", "--threads", "18446744073709551615"], &["at most 1024"]),
        (&["-p", "x", "--raw", "--ctx", "1"], &["1 tokens", "context holds 1"]),
    ];
    for (arguments, words) in cases {
        // The case's own options come last, where they win over those of every run.
        let mut command = place.command(&["run"]);
        if !arguments.contains(&"--model") {
            command.args(["--model", "tiny.gguf"]);
        }
        let complaint = complaint(&command.args(arguments).output().unwrap());
        for word in words {
            assert!(complaint.contains(word), "{arguments:?}: {complaint}");
        }
    }
    std::fs::remove_file(&place.model).unwrap();
    let empty = complaint(&place.command(&["run", "-p", "x", "--model", folder]).output().unwrap());
    assert!(empty.contains("no GGUF file"), "{empty}");
}

#[test]
fn sampling_is_checked_before_anything_is_loaded() {
    let output = Place::new().run(&["-p", "x", "--top-p", "2"]);
    assert!(!text(&output.stderr).contains("loading"), "{}", text(&output.stderr));
}

#[test]
fn numbers_out_of_range_are_misuse() {
    let place = Place::new();
    for arguments in [["--ctx", "0"], ["--threads", "0"], ["-n", "0"], ["-n", "-1"], ["--temperature", "warm"]] {
        let usage = misuse(&place.command(&["run", "-p", "x"]).args(arguments).output().unwrap());
        assert!(usage.contains(arguments[1]), "{arguments:?}: {usage}");
    }
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_with_both_lengths() {
    let refused = complaint(&Place::new().run(&["-p", &"a".repeat(300), "--raw"]));
    assert!(refused.contains("300 tokens") && refused.contains("holds 256"), "{refused}");
}

#[test]
fn a_context_larger_than_the_model_is_cut_to_it_and_told() {
    let place = Place::new();
    for ctx in ["257", "100000", "999999999999", "18446744073709551615"] {
        let output = place.run(&["-p", "x", "--raw", "--ignore-eos", "--json", "--ctx", ctx]);
        assert_eq!(ids(&json(&output)["tokens"]).len(), CONTEXT - 1, "--ctx {ctx}");
        assert!(text(&output.stderr).contains("limited to the 256 positions"), "{}", text(&output.stderr));
    }
}

#[test]
fn any_number_of_threads_gives_the_same_answer() {
    let place = Place::new();
    let tokens = |threads| {
        let mut command = place.command(&["run", "--model", "tiny.gguf", "-p", "x", "--temperature", "0", "--json"]);
        ids(&json(&command.args(["-n", "20", "--threads", threads]).output().unwrap())["tokens"])
    };
    let one = tokens("1");
    for threads in ["2", "3", "64"] {
        assert_eq!(tokens(threads), one, "{threads} threads");
    }
}

#[test]
fn a_reader_that_leaves_ends_the_program_quietly() {
    let place = Place::new();
    let mut command = place.command(&["run", "--model", "tiny.gguf", "-p", "x", "--raw", "--ignore-eos"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(child.wait().unwrap().success(), "{stderr}");
    assert!(!stderr.contains("taper: ") && !stderr.contains("panicked"), "{stderr}");
}

#[test]
fn a_full_disk_behind_stdout_is_an_error() {
    let place = Place::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = place.command(&["run", "--model", "tiny.gguf", "-p", "x", "--json", "-n", "2"]);
    let refused = complaint(&command.stdout(full).output().unwrap());
    assert!(refused.contains("No space left"), "{refused}");
}

#[test]
fn a_file_that_may_not_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    std::fs::set_permissions(&place.model, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(&place.model).is_ok() {
        // The superuser may read everything.
        return;
    }
    let refused = complaint(&place.run(&["-p", "x"]));
    assert!(refused.contains("tiny.gguf") && refused.to_lowercase().contains("permission"), "{refused}");
}

#[test]
fn pull_of_a_path_prints_it_last_and_list_is_an_array() {
    let place = Place::new();
    let path = place.model.to_str().unwrap();
    assert_eq!(stdout(&place.command(&["pull", path]).output().unwrap()).lines().last(), Some(path));
    assert!(complaint(&place.command(&["pull", "missing.gguf"]).output().unwrap()).contains("missing.gguf"));
    assert_eq!(json(&place.command(&["list", "--json"]).output().unwrap()), Value::Array(Vec::new()));
    let aliases = json(&place.command(&["list", "--aliases", "--json"]).output().unwrap());
    assert!(aliases.as_array().unwrap().iter().any(|alias| alias["name"] == "smollm2:135m"), "{aliases}");
}

/// The perplexity of a file with this content in chunks of 16.
fn perplexity(place: &Place, file: &Path, more: &[&str]) -> Output {
    let mut command = place.command(&["perplexity", "--model", "tiny.gguf", "--ctx", "16", "--json"]);
    command.arg(file).args(more).output().unwrap()
}

#[test]
fn perplexity_scores_half_of_each_chunk() {
    let place = Place::new();
    let file = place.folder.path().join("text");
    std::fs::write(&file, "qz".repeat(50)).unwrap();
    let answer = json(&perplexity(&place, &file, &[]));
    let num_tokens =
        ids(&json(&place.run(&["-p", &"qz".repeat(50), "--raw", "-n", "1", "--json"]))["prompt_tokens"]).len();
    assert_eq!(answer["chunks"], num_tokens / 16);
    assert_eq!(answer["scored_tokens"], num_tokens / 16 * 7);
    assert!(answer["perplexity"].as_f64().unwrap() > 1.0 && answer["stderr"].as_f64().unwrap() > 0.0, "{answer}");
    assert_eq!(json(&perplexity(&place, &file, &["--chunks", "2"]))["scored_tokens"], 14);

    std::fs::write(&file, "short").unwrap();
    assert!(complaint(&perplexity(&place, &file, &[])).contains("at least 32"));
    std::fs::write(&file, b"\xff").unwrap();
    assert!(complaint(&perplexity(&place, &file, &[])).contains("not UTF-8"));
    assert!(complaint(&perplexity(&place, Path::new("missing"), &[])).contains("cannot read missing"));
}

#[test]
fn every_command_has_help_and_the_program_a_version() {
    let place = Place::new();
    let all = place.command(&["--help"]).output().unwrap();
    for command in ["serve", "chat", "run", "bench", "doctor", "perplexity", "pull", "list"] {
        assert!(stdout(&all).contains(command));
        let help = place.command(&[command, "--help"]).output().unwrap();
        assert!(stdout(&help).contains(&format!("Usage: taper {command}")), "{}", stdout(&help));
    }
    assert!(stdout(&place.command(&["bench", "model", "--help"]).output().unwrap()).contains("--case"));
    assert!(stdout(&place.command(&["--version"]).output().unwrap()).starts_with("taper "));
    assert!(misuse(&place.command(&["sevre"]).output().unwrap()).contains("serve"), "a slip is told");
}

#[test]
fn a_level_of_logging_that_is_none_is_told() {
    let output = Place::new().command(&["list", "--log-level", "a=b=c"]).output().unwrap();
    assert!(text(&output.stderr).contains("--log-level is not understood"), "{}", text(&output.stderr));
}
