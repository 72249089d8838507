//! `taper run`: one prompt, one answer.

use crate::args::RunArgs;
use crate::generate::{self, Generator, TimingsJson};
use crate::{load, output, piped};
use anyhow::{Result, bail};
use serde::Serialize;
use taper_engine::FinishReason;
use taper_text::ChatMessage;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct RunJson<'a> {
    prompt_tokens: &'a [u32],
    tokens: &'a [u32],
    text: &'a str,
    finish_reason: Option<&'static str>,
    timings: Option<TimingsJson>,
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let sampling = args.sampling.params()?;
    let prompt = match &args.prompt {
        Some(prompt) => {
            let more = if args.stdin { Some(piped::read()?) } else { piped::read_beside_prompt()? };
            more.map_or_else(|| prompt.clone(), |more| [prompt, more.as_str()].join("\n"))
        }
        None => piped::read()?,
    };
    let prompt = prompt.trim_end_matches('\n');
    if prompt.is_empty() {
        bail!("the prompt is empty: give one with -p TEXT, or pipe one in");
    }
    let loaded = load::load_for_one(&args.model, &args.context, &args.engine)?;
    let tokens = if args.raw {
        generate::raw_tokens(&loaded, prompt)?
    } else {
        let system = args.system.iter().map(|text| ChatMessage::new("system", text));
        let messages: Vec<ChatMessage> = system.chain([ChatMessage::new("user", prompt)]).collect();
        generate::chat_tokens(&loaded, &messages)?
    };
    let mut show = |text: &str| if args.json { Ok(()) } else { output::print(text) };
    let answer = Generator::new()?.generate(&loaded, tokens.clone(), sampling, false, &mut show)?;
    if args.json {
        let json = RunJson {
            prompt_tokens: &tokens,
            tokens: &answer.tokens,
            text: &answer.text,
            finish_reason: answer.finish_reason.map(FinishReason::as_str),
            timings: answer.timings(tokens.len()),
        };
        output::line(&serde_json::to_string(&json)?)?;
    } else {
        output::print("\n")?;
    }
    output::status(&format!("[{}]", answer.summary(tokens.len())));
    Ok(())
}
