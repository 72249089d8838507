//! `taper run`: one prompt, one answer.

use crate::args::{ColorChoice, FormArgs, RunArgs};
use crate::generate::{self, Generator, TimingsJson};
use crate::load::{self, Loaded};
use crate::markdown::{self, Renderer};
use crate::{color, output, piped};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use taper_engine::{FinishReason, Request, Usage};
use taper_text::{
    AnswerGrammar, AnswerParser, AnswerPart, AnswerSyntax, ChatMessage, Grammar, GrammarCompiler, GrammarSpec,
    ReasoningMarks, ReasoningStart,
};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct RunJson<'a> {
    model: &'a str,
    prompt_tokens: &'a [u32],
    tokens: &'a [u32],
    text: &'a str,
    /// Of an answer whose form stands behind them.
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
    let mut sampling = args.answer.sampling.parameters().sampling()?;
    let form = form(&args.form)?;
    let prompt = prompt(args)?;
    let prompt = prompt.trim_end_matches('\n');
    if prompt.is_empty() {
        bail!("the prompt is empty: give one, as in `taper run \"TEXT\"` or with -p TEXT, or pipe one in");
    }
    let loaded = load::load_for_one(&args.answer)?;
    let (tokens, reasoning) = if args.raw {
        (generate::raw_tokens(&loaded, prompt)?, None)
    } else {
        let system = args.answer.system.iter().map(|text| ChatMessage::new("system", text));
        let messages: Vec<ChatMessage> = system.chain([ChatMessage::new("user", prompt)]).collect();
        let prompt = generate::chat_prompt(&loaded, &messages)?;
        let reasoning = form.as_ref().and_then(|_| reasoning(&loaded, &prompt.text()));
        (loaded.tokenizer.encode_prompt(&prompt, true)?, reasoning)
    };
    let grammar = form.map(|form| grammar(form, reasoning, &loaded, &tokens)).transpose()?;
    let marks = reasoning.iter().flat_map(|(marks, _)| [marks.start, marks.end]);
    sampling.shown_tokens = marks.filter_map(|mark| loaded.tokenizer.control_token(mark)).collect();
    let request = Request { prompt_tokens: tokens.clone(), sampling, grammar, ..Request::default() };
    let mut shown = AnswerWriter::new(reasoning, !args.json);
    let answer = Generator::new()?.generate(&loaded, request, &mut |text: &str| shown.push(text))?;
    shown.finish()?;
    if args.json {
        let json = RunJson {
            model: &loaded.id,
            prompt_tokens: &tokens,
            tokens: &answer.tokens,
            text: &shown.text,
            reasoning_content: (!shown.thoughts.is_empty()).then_some(shown.thoughts.as_str()),
            finish_reason: answer.finish_reason.map(FinishReason::as_str),
            usage: answer.usage.map(UsageJson::from),
            timings: answer.timings(tokens.len()),
        };
        output::line(&serde_json::to_string(&json)?)?;
    } else {
        output::print("\n")?;
    }
    output::status(&format!("[{}]", answer.summary(tokens.len())));
    Ok(())
}

/// What was typed, then the files, then what is piped in.
fn prompt(args: &RunArgs) -> Result<String> {
    let mut parts: Vec<String> = args.typed().map(str::to_owned).into_iter().collect();
    for path in &args.files {
        parts.push(read(path)?);
    }
    if parts.is_empty() || args.stdin {
        parts.push(piped::read()?);
    } else {
        parts.extend(piped::read_beside_prompt()?);
    }
    // A file's last line end is not an empty line before the next part.
    let last = parts.len() - 1;
    let parts = parts.iter().enumerate().map(|(index, part)| match part.strip_suffix('\n') {
        Some(part) if index < last => part,
        _ => part.as_str(),
    });
    Ok(parts.collect::<Vec<_>>().join("\n"))
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

/// The marks of the thoughts that may come before a form, and where the answer begins; `None` where none may.
fn reasoning(loaded: &Loaded, prompt: &str) -> Option<(ReasoningMarks, ReasoningStart)> {
    let marks = ReasoningMarks::find(loaded.template.as_ref()?, &loaded.tokenizer)?;
    Some((marks, marks.at_end_of(prompt))).filter(|(_, start)| *start != ReasoningStart::Over)
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

/// An answer on its way to the reader: as the model wrote it, but that it cannot steer a terminal. Thoughts before a form go to
/// stderr, so that stdout has what was asked for and nothing else.
struct AnswerWriter {
    parser: AnswerParser,
    renderer: Renderer,
    /// Whether it is shown as it comes.
    is_shown: bool,
    text: String,
    thoughts: String,
}

impl AnswerWriter {
    fn new(reasoning: Option<(ReasoningMarks, ReasoningStart)>, is_shown: bool) -> AnswerWriter {
        let parser = AnswerParser::new(AnswerSyntax { reasoning, tools: None });
        let renderer = Renderer::new(color::of_stdout(ColorChoice::Never));
        AnswerWriter { parser, renderer, is_shown, text: String::new(), thoughts: String::new() }
    }

    fn push(&mut self, piece: &str) -> Result<()> {
        let parts = self.parser.push(piece);
        self.take(parts)
    }

    fn finish(&mut self) -> Result<()> {
        let parts = self.parser.finish();
        self.take(parts)?;
        if self.is_shown && self.text.is_empty() && !self.thoughts.is_empty() {
            output::aside("\n");
        }
        Ok(())
    }

    fn take(&mut self, parts: Vec<AnswerPart>) -> Result<()> {
        for part in parts {
            match part {
                AnswerPart::Text(text) => {
                    if self.is_shown {
                        if self.text.is_empty() && !self.thoughts.is_empty() {
                            output::aside("\n");
                        }
                        output::print(&self.renderer.push(&text))?;
                    }
                    self.text.push_str(&text);
                }
                AnswerPart::Reasoning(text) => {
                    if self.is_shown {
                        output::aside(&markdown::visible(&text));
                    }
                    self.thoughts.push_str(&text);
                }
                // No tools are offered.
                AnswerPart::CallBegun { .. } | AnswerPart::CallArguments { .. } => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
