//! `taper run`: one prompt, one answer.

use crate::generate::{self, SamplingArgs};
use crate::load::{Capacity, ModelArgs};
use crate::output;
use anyhow::{Context, bail};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::io::{IsTerminal, Read};
use taper_text::{ChatMessage, ChatTemplate, EncodeOptions, RenderContext, Tokenizer};

/// Arguments of `taper run`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// The prompt; with piped stdin, what is piped comes after it
    #[arg(long, short)]
    prompt: Option<String>,
    /// System message
    #[arg(long)]
    system: Option<String>,
    /// Most tokens to generate; the rest of the context by default
    #[arg(short = 'n', long, value_name = "TOKENS")]
    max_tokens: Option<usize>,
    /// Feed the prompt as it is, without a chat template
    #[arg(long, conflicts_with = "system")]
    raw: bool,
    /// Print one JSON object on one line when done, instead of the text as it comes
    #[arg(long)]
    json: bool,
    /// Context length in tokens; what the model and the memory allow by default
    #[arg(long)]
    ctx: Option<usize>,
    /// Chat template: a file, or the name of a built-in one
    #[arg(long, value_name = "FILE|NAME")]
    chat_template: Option<String>,
    /// Generate until --max-tokens even past the end-of-answer token
    #[arg(long)]
    ignore_eos: bool,
}

#[derive(Serialize)]
struct JsonAnswer<'a> {
    prompt_tokens: &'a [u32],
    tokens: &'a [u32],
    text: &'a str,
    finish_reason: Option<&'static str>,
    timings: JsonTimings,
}

#[derive(Serialize)]
struct JsonTimings {
    prefill_s: f64,
    decode_s: f64,
    prompt_tokens_per_s: f64,
    tokens_per_s: f64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let prompt = read_prompt(args)?;
    let capacity = Capacity { context_len: args.ctx, max_logit_rows: 1, single_sequence: true };
    let model = args.model.load(capacity, args.chat_template.as_deref())?;
    let tokens = if args.raw {
        model.tokenizer.encode(&prompt, EncodeOptions { parse_special: true, add_bos: true })?
    } else {
        let Some(template) = &model.template else {
            bail!("{} has no chat template: use --raw for plain completion, or --chat-template", model.id);
        };
        let message = |role: &str, content: &str| ChatMessage::new(role, content);
        let mut messages: Vec<ChatMessage> = args.system.iter().map(|text| message("system", text)).collect();
        messages.push(message("user", &prompt));
        encode_chat(&model.tokenizer, template, &messages)?
    };
    let engine = generate::start(model.runner, model.tokenizer);
    let mut sampling = args.sampling.params(args.max_tokens);
    sampling.ignore_eos = args.ignore_eos;
    let prompt_tokens = tokens.clone();
    let answer = generate::generate(&engine, tokens, sampling, |text| {
        if !args.json && !text.is_empty() {
            output::piece(text)?;
        }
        Ok(true)
    })?;
    let usage = answer.usage.context("the engine gave no usage")?;
    let (prefill_s, decode_s) = (usage.timings.prefill_s, usage.timings.decode_s);
    let rate = |tokens: usize, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    // The first token comes with the prompt; the others take the decode time.
    let tokens_per_s = rate(usage.completion_tokens.saturating_sub(1), decode_s);
    let prompt_tokens_per_s = rate(usage.prompt_tokens, prefill_s);
    if args.json {
        let json = JsonAnswer {
            prompt_tokens: &prompt_tokens,
            tokens: &answer.tokens,
            text: &answer.text,
            finish_reason: answer.reason.map(taper_engine::FinishReason::as_str),
            timings: JsonTimings { prefill_s, decode_s, prompt_tokens_per_s, tokens_per_s },
        };
        output::line(&serde_json::to_string(&json)?)?;
    } else {
        output::piece("\n")?;
    }
    output::note(&format!(
        "prompt {} tokens, {prompt_tokens_per_s:.1} tok/s; answer {} tokens, {tokens_per_s:.1} tok/s",
        usage.prompt_tokens, usage.completion_tokens
    ));
    Ok(())
}

/// Renders a conversation and encodes it, ready for an answer.
pub(crate) fn encode_chat(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[ChatMessage],
) -> anyhow::Result<Vec<u32>> {
    let context = RenderContext {
        bos_text: tokenizer.bos_text().to_string(),
        eos_text: tokenizer.eos_text().to_string(),
        add_generation_prompt: true,
        ..RenderContext::default()
    };
    let text = template.render(messages, &context)?;
    Ok(tokenizer.encode(&text, EncodeOptions { parse_special: true, add_bos: true })?)
}

fn read_prompt(args: &Args) -> anyhow::Result<String> {
    let mut prompt = args.prompt.clone().unwrap_or_default();
    let stdin = std::io::stdin();
    if !stdin.is_terminal() && (args.prompt.is_none() || has_piped_data()) {
        let mut piped = Vec::new();
        stdin.lock().read_to_end(&mut piped).context("cannot read stdin")?;
        let piped = String::from_utf8(piped).context("stdin is not UTF-8 text")?;
        if !prompt.is_empty() && !piped.is_empty() {
            prompt.push('\n');
        }
        prompt.push_str(&piped);
    }
    if prompt.is_empty() {
        bail!("there is no prompt: give one with -p \"...\" or pipe it to stdin");
    }
    Ok(prompt)
}

/// Whether stdin is a pipe or a file. With -p given, a stdin that is neither (inherited from a service, say) is left
/// alone, because reading it could wait for ever.
fn has_piped_data() -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata("/dev/stdin").is_ok_and(|meta| meta.file_type().is_fifo() || meta.file_type().is_file())
    }
    #[cfg(not(unix))]
    {
        false
    }
}
