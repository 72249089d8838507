//! `taper chat`: a conversation in the terminal.
//!
//! Ctrl-C stops the answer, not the program: while an answer streams, a flag set by the signal ends it; at the prompt the
//! line editor sees the key itself. What was said before the stop stays in the conversation.

use crate::commands::run::encode_chat;
use crate::generate::{self, Answer, SamplingArgs};
use crate::load::{Capacity, LoadedModel, ModelArgs};
use crate::output;
use anyhow::Context;
use clap::Args as ClapArgs;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use taper_engine::EngineHandle;
use taper_text::{ChatMessage, ChatTemplate, Tokenizer};

const HELP: &str = "\
/help            this list
/system [TEXT]   show or set the system message (starts the conversation anew)
/clear           forget the conversation
/exit            leave (Ctrl-D does, too)
Ctrl-C           stop the answer";

/// Arguments of `taper chat`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// System message
    #[arg(long)]
    system: Option<String>,
    /// Most tokens of an answer; the rest of the context by default
    #[arg(short = 'n', long, value_name = "TOKENS")]
    max_tokens: Option<usize>,
    /// Context length in tokens; what the model and the memory allow by default
    #[arg(long)]
    ctx: Option<usize>,
    /// Chat template: a file, or the name of a built-in one
    #[arg(long, value_name = "FILE|NAME")]
    chat_template: Option<String>,
}

/// A conversation and what answers it.
struct Chat<'a> {
    args: &'a Args,
    engine: EngineHandle,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    system: Option<String>,
    messages: Vec<ChatMessage>,
    interrupted: Arc<AtomicBool>,
}

/// What a line asks for beyond an answer.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Exit,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let capacity = Capacity { context_len: args.ctx, max_logit_rows: 1, single_sequence: true };
    let LoadedModel { id, tokenizer, template, runner } = args.model.load(capacity, args.chat_template.as_deref())?;
    let template = template.with_context(|| {
        format!("{id} has no chat template: give one with --chat-template, or use `taper run --raw`")
    })?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    ctrlc::set_handler(move || flag.store(true, Ordering::SeqCst)).context("cannot watch for Ctrl-C")?;
    let chat = Chat {
        args,
        engine: generate::start(runner, tokenizer.clone()),
        tokenizer,
        template,
        system: args.system.clone(),
        messages: Vec::new(),
        interrupted,
    };
    if std::io::stdin().is_terminal() { interactive(chat, &id) } else { piped(chat) }
}

fn interactive(mut chat: Chat<'_>, id: &str) -> anyhow::Result<()> {
    output::note(&format!("{id}. /help lists the commands, Ctrl-D leaves."));
    let mut editor = DefaultEditor::new().context("cannot use the terminal")?;
    let history = history_file();
    if let Some(history) = &history {
        let _ = editor.load_history(history); // none yet on the first day
    }
    loop {
        match editor.readline("> ") {
            Ok(line) => {
                let _ = editor.add_history_entry(line.as_str());
                if chat.line(&line)? == Next::Exit {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) => output::note("(Ctrl-D or /exit leaves)"),
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error).context("cannot read from the terminal"),
        }
    }
    if let Some(history) = &history {
        if let Some(folder) = history.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        if let Err(error) = editor.save_history(history) {
            output::note(&format!("the history was not saved to {}: {error}", history.display()));
        }
    }
    Ok(())
}

fn piped(mut chat: Chat<'_>) -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        if chat.line(&line.context("cannot read stdin")?)? == Next::Exit {
            break;
        }
    }
    Ok(())
}

/// Where the lines typed before are kept: `$XDG_STATE_HOME/taper/chat_history` or below `~/.local/state`.
fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    Some(state.join("taper/chat_history"))
}

impl Chat<'_> {
    /// Handles one line: a command or a message.
    fn line(&mut self, line: &str) -> anyhow::Result<Next> {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match word {
            "" => {}
            "/exit" | "/quit" | "/bye" => return Ok(Next::Exit),
            "/help" | "/?" => output::note(HELP),
            "/clear" => {
                self.messages.clear();
                output::note("the conversation is forgotten");
            }
            "/system" if rest.trim().is_empty() => {
                output::note(
                    self.system.as_deref().unwrap_or("there is no system message; the template may have its own"),
                );
            }
            "/system" => {
                self.system = Some(rest.trim().to_string());
                self.messages.clear();
                output::note("the system message is set, and the conversation starts anew");
            }
            command if command.starts_with('/') => output::note(&format!("{command} is no command; /help lists them")),
            _ => self.say(line)?,
        }
        Ok(Next::Continue)
    }

    /// Sends a message and streams the answer. A refused message (too long, say) is reported and not kept.
    fn say(&mut self, text: &str) -> anyhow::Result<()> {
        self.messages.push(ChatMessage::new("user", text));
        match self.answer() {
            Ok(answer) => {
                self.messages.push(ChatMessage::new("assistant", answer.text));
                Ok(())
            }
            Err(error) if error.downcast_ref::<std::io::Error>().is_some() => Err(error),
            Err(error) => {
                self.messages.pop();
                output::note(&format!("{error:#}"));
                Ok(())
            }
        }
    }

    fn answer(&self) -> anyhow::Result<Answer> {
        let system = self.system.iter().map(|text| ChatMessage::new("system", text.as_str()));
        let messages: Vec<ChatMessage> = system.chain(self.messages.iter().cloned()).collect();
        let tokens = encode_chat(&self.tokenizer, &self.template, &messages)?;
        self.interrupted.store(false, Ordering::SeqCst);
        let start = Instant::now();
        let sampling = self.args.sampling.params(self.args.max_tokens);
        let answer = generate::generate(&self.engine, tokens, sampling, |text| {
            if !text.is_empty() {
                output::piece(text)?;
            }
            Ok(!self.interrupted.load(Ordering::SeqCst))
        })?;
        output::piece("\n")?;
        output::note(&summary(&answer, start.elapsed().as_secs_f64()));
        Ok(answer)
    }
}

/// The line below an answer.
fn summary(answer: &Answer, seconds: f64) -> String {
    match &answer.usage {
        Some(usage) => format!(
            "[{} tokens, {:.1} tok/s, first after {:.2} s]",
            usage.completion_tokens,
            usage.completion_tokens.saturating_sub(1) as f64 / usage.timings.decode_s.max(1e-9),
            usage.timings.queue_s + usage.timings.prefill_s
        ),
        None => format!("[stopped after {} tokens, {seconds:.1} s]", answer.tokens.len()),
    }
}
