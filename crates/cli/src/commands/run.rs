//! `taper run`: one prompt, one answer.

use crate::answer::{AnswerWriter, Said, Splitter};
use crate::args::{ColorChoice, FormArgs, RunArgs};
use crate::generate::{self, ChatPrompt, Generator, TimingsJson};
use crate::load::{self, Loaded};
use crate::{color, output, piped};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use taper_engine::{FinishReason, Request, Usage};
use taper_text::{AnswerGrammar, ChatMessage, Grammar, GrammarCompiler, GrammarSpec, ReasoningMarks, ReasoningStart};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct RunJson<'a> {
    model: &'a str,
    prompt_tokens: &'a [u32],
    tokens: &'a [u32],
    text: &'a str,
    /// What the model thought before it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    finish_reason: Option<&'static str>,
    usage: Option<UsageJson>,
    timings: Option<TimingsJson>,
}

/// Counts, under the names of the API.
#[derive(Debug, Serialize)]
struct UsageJson {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    cached_tokens: usize,
}

impl From<Usage> for UsageJson {
    fn from(usage: Usage) -> UsageJson {
        let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = usage;
        UsageJson { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens, cached_tokens }
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let parameters = args.answer.parameters();
    let mut sampling = parameters.sampling()?;
    let form = form(&args.form)?;
    let prompt = prompt(args)?;
    let prompt = if args.raw { prompt.as_str() } else { prompt.trim_end_matches('\n') };
    if prompt.is_empty() {
        bail!("the prompt is empty: give one, as in `taper run \"TEXT\"` or with -p TEXT, or pipe one in");
    }
    let loaded = load::load_for_one(&args.answer)?;
    let (tokens, reasoning) = if args.raw {
        (generate::raw_tokens(&loaded, prompt)?, None)
    } else {
        let system = args.answer.system.iter().map(|text| ChatMessage::new("system", text));
        let messages: Vec<ChatMessage> = system.chain([ChatMessage::new("user", prompt)]).collect();
        let ChatPrompt { prompt, reasoning, .. } = generate::chat_prompt(&loaded, &messages, &parameters)?;
        // A form begins at once where the prompt ended the thoughts, with blanks if it has some.
        let reasoning = reasoning.filter(|(_, start)| form.is_none() || *start != ReasoningStart::Over);
        (loaded.tokenizer.encode_prompt(&prompt, true)?, reasoning)
    };
    let grammar = form.map(|form| grammar(form, reasoning, &loaded, &tokens)).transpose()?;
    let mut said = Splitter::new(&loaded, reasoning, false);
    sampling.shown_tokens = said.shown_tokens();
    let request = Request { prompt_tokens: tokens.clone(), sampling, grammar, ..Request::default() };
    let mut writer = AnswerWriter::new(color::of_stdout(ColorChoice::Never), color::on_stderr(ColorChoice::Auto));
    let mut show = |piece: Said<'_>| if args.json { Ok(()) } else { writer.show(piece) };
    let answer = Generator::new()?.generate(&loaded, request, &mut |text: &str| said.push(text, &mut show))?;
    said.finish(&mut show)?;
    if args.json {
        let json = RunJson {
            model: &loaded.id,
            prompt_tokens: &tokens,
            tokens: &answer.tokens,
            text: &said.text,
            reasoning_content: (!said.thoughts.is_empty()).then_some(said.thoughts.as_str()),
            finish_reason: answer.finish_reason.map(FinishReason::as_str),
            usage: answer.usage.map(UsageJson::from),
            timings: answer.timings(tokens.len()),
        };
        output::line(&serde_json::to_string(&json)?)?;
    } else {
        output::print(&(writer.finish() + "\n"))?;
    }
    output::status(&format!("[{}]", answer.summary(tokens.len())));
    Ok(())
}

/// What was typed, then the files, then what is piped in.
fn prompt(args: &RunArgs) -> Result<String> {
    let typed = args.typed();
    let mut parts = Vec::new();
    for path in &args.files {
        parts.push(read(path)?);
    }
    if (typed.is_none() && parts.is_empty()) || args.stdin {
        parts.push(piped::read()?);
    } else {
        parts.extend(piped::read_beside_prompt()?);
    }
    Ok(joined(typed, &parts))
}

/// What was typed with what was read behind it. Line ends at the end are those of files and pipes, where nobody sees them; what was
/// typed has those that are meant.
fn joined(typed: Option<&str>, read: &[String]) -> String {
    let read: Vec<&str> = read.iter().map(String::as_str).filter(|part| !part.trim_matches('\n').is_empty()).collect();
    let mut text = piped::joined(typed.into_iter().chain(read.iter().copied()));
    if !read.is_empty() {
        text.truncate(text.trim_end_matches('\n').len());
    }
    text
}

fn read(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    piped::text(file, &name)
}

/// The form that was asked for, as far as it can be known before there is a model.
fn form(args: &FormArgs) -> Result<Option<GrammarSpec>> {
    if let Some(schema) = &args.json_schema {
        return self::schema(schema).map(GrammarSpec::JsonSchema).map(Some);
    }
    if let Some(regex) = &args.regex {
        return Ok(Some(GrammarSpec::Regex(regex.clone())));
    }
    if args.choices.iter().any(String::is_empty) {
        bail!("--choice: an empty text is no answer");
    }
    Ok((!args.choices.is_empty()).then(|| GrammarSpec::Choice(args.choices.clone())))
}

/// A schema as it is typed, or out of a file.
fn schema(text: &str) -> Result<Value> {
    let is_schema = |value: &Value| value.is_object() || value.is_boolean();
    let typed = serde_json::from_str(text);
    let (schema, from) = match typed {
        Ok(schema) => (schema, "what was given".to_owned()),
        Err(error) if text.trim_start().starts_with('{') => {
            return Err(error).context("--json-schema: what was given is not JSON");
        }
        Err(_) => {
            let file = read(Path::new(text)).context("--json-schema is neither JSON nor a file that can be read")?;
            let schema = serde_json::from_str(&file).with_context(|| format!("--json-schema: {text} is not JSON"))?;
            (schema, text.to_owned())
        }
    };
    if !is_schema(&schema) {
        bail!("--json-schema: {from} is not a JSON schema, which is an object, true or false");
    }
    Ok(schema)
}

/// The grammar of an answer of this form, which stands behind the model's thoughts.
fn grammar(
    form: GrammarSpec,
    reasoning: Option<(ReasoningMarks, ReasoningStart)>,
    loaded: &Loaded,
    prompt: &[u32],
) -> Result<Grammar> {
    let flag = match form {
        GrammarSpec::Regex(_) => "--regex",
        GrammarSpec::Choice(_) => "--choice",
        _ => "--json-schema",
    };
    let spec = match reasoning {
        None => form,
        Some(_) => GrammarSpec::Answer(AnswerGrammar { reasoning, calls: None, content: Some(Box::new(form)) }),
    };
    GrammarCompiler::new(Arc::clone(&loaded.tokenizer)).compile(&spec, prompt).context(flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    // `--raw` continued a typed "a\n" as "a".
    #[test]
    fn line_ends_that_were_typed_stay() {
        let check = |typed: Option<&str>, read: &[&str], expected: &str| {
            let read: Vec<String> = read.iter().map(|&part| part.to_owned()).collect();
            assert_eq!(joined(typed, &read), expected, "{typed:?} {read:?}");
        };
        check(Some("a\n\n"), &[], "a\n\n");
        check(Some("a\n"), &["", "\n"], "a\n");
        check(Some("a\n"), &["b\n\n"], "a\nb");
        check(Some("a"), &["b\n\n", "c\n"], "a\nb\n\nc");
        check(None, &["b\n"], "b");
        check(None, &["\n"], "");
    }

    #[test]
    fn a_schema_is_typed_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schema.json");
        let file = path.to_str().unwrap();
        std::fs::write(&path, r#"{"type":"integer"}"#).unwrap();
        assert_eq!(schema(file).unwrap(), schema(r#"{"type":"integer"}"#).unwrap());
        std::fs::write(&path, "[1]").unwrap();
        for (text, words) in [
            (file, "is not a JSON schema"),
            ("{", "not JSON"),
            ("7", "is not a JSON schema"),
            ("/no/such/file", "neither JSON nor a file"),
        ] {
            let refused = format!("{:#}", schema(text).unwrap_err());
            assert!(refused.contains("--json-schema") && refused.contains(words), "{text}: {refused}");
        }
    }
}
