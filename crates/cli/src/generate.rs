//! One prompt through the engine, its text shown as it comes.

use crate::answer;
use crate::load::Loaded;
use crate::parameters::Parameters;
use crate::signals;
use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use taper_engine::{Event, FinishReason, Request, Timings, Usage};
use taper_text::{ChatMessage, ContinuedPrompt, EncodeOptions, Prompt, ReasoningMarks, ReasoningStart, RenderContext};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What came out.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    /// `None` when it was stopped by Ctrl-C.
    pub(crate) finish_reason: Option<FinishReason>,
    /// What it cost; `None` when it was stopped.
    pub(crate) usage: Option<Usage>,
}

/// Where the time went, as `run --json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct TimingsJson {
    queue_s: f64,
    prefill_s: f64,
    decode_s: f64,
    sample_s: f64,
    detokenize_s: f64,
    prompt_tokens_per_s: f64,
    tokens_per_s: f64,
}

impl Answer {
    /// Seconds and rates. The first token comes out of the prompt's last step, so decoding makes one token less.
    pub(crate) fn timings(&self, prompt_tokens: usize) -> Option<TimingsJson> {
        let Timings { queue_s, prefill_s, decode_s, sample_s, detokenize_s } = self.usage?.timings;
        let rate =
            |tokens: usize, seconds: f64| if tokens > 0 && seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        Some(TimingsJson {
            queue_s,
            prefill_s,
            decode_s,
            sample_s,
            detokenize_s,
            prompt_tokens_per_s: rate(prompt_tokens, prefill_s),
            tokens_per_s: rate(self.tokens.len().saturating_sub(1), decode_s),
        })
    }

    /// One line for people.
    pub(crate) fn summary(&self, prompt_tokens: usize) -> String {
        let Some(timings) = self.timings(prompt_tokens) else {
            return format!("stopped after {} tokens", self.tokens.len());
        };
        let end = match self.finish_reason {
            Some(FinishReason::Length) => ", cut at the limit",
            _ => "",
        };
        format!(
            "{} tokens, {:.1} tokens/s; prompt of {prompt_tokens}, {:.1} tokens/s, first token after {:.0} ms{end}",
            self.tokens.len(),
            timings.tokens_per_s,
            timings.prompt_tokens_per_s,
            (timings.queue_s + timings.prefill_s) * 1e3
        )
    }
}

/// A conversation as the model reads it, and how the answer to it begins.
pub(crate) struct ChatPrompt {
    pub(crate) prompt: Prompt,
    /// The marks of the model's thoughts, and where the answer begins; `None` if it does not think.
    pub(crate) reasoning: Option<(ReasoningMarks, ReasoningStart)>,
    /// Whether it goes on with an answer that the conversation ends with.
    pub(crate) goes_on: bool,
}

/// A conversation as the model reads it, with the beginning of an answer at its end; one that ends with an answer ends within it.
/// Names of special tokens in messages are text.
///
/// # Errors
/// When the model has no template, when that refuses the conversation, or when it cannot be told whether to think.
pub(crate) fn chat_prompt(loaded: &Loaded, messages: &[ChatMessage], parameters: &Parameters) -> Result<ChatPrompt> {
    let template = loaded.template.as_ref().ok_or_else(|| {
        anyhow!("the model's file has no chat template; --chat-template names one, `taper run --raw` needs none")
    })?;
    answer::check_thinking(loaded, parameters)?;
    let context = RenderContext {
        bos_text: loaded.tokenizer.bos_text().to_string(),
        eos_text: loaded.tokenizer.eos_text().to_string(),
        add_generation_prompt: true,
        extra: parameters.variables(),
        ..RenderContext::default()
    };
    let marks = ReasoningMarks::find(template, &loaded.tokenizer);
    if messages.last().is_some_and(|last| last.role == "assistant") {
        let ContinuedPrompt { prompt, in_thoughts } =
            template.continued(&loaded.tokenizer, messages, &context, marks)?;
        let start = if in_thoughts { ReasoningStart::Open } else { ReasoningStart::Over };
        return Ok(ChatPrompt { prompt, reasoning: marks.map(|marks| (marks, start)), goes_on: true });
    }
    let prompt = template.prompt(&loaded.tokenizer, messages, &context)?;
    let reasoning = marks.map(|marks| (marks, marks.at_end_of(&prompt.text())));
    Ok(ChatPrompt { prompt, reasoning, goes_on: false })
}

/// The tokens of a text that is continued as it is. Names of special tokens in it are these tokens.
pub(crate) fn raw_tokens(loaded: &Loaded, text: &str) -> Result<Vec<u32>> {
    Ok(loaded.tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: true })?)
}

/// Runs requests; a runtime is only needed so that a signal can be waited for together with a token.
pub(crate) struct Generator {
    runtime: Runtime,
    /// Where [`Generator::watch`] has begun.
    interrupt: Mutex<Option<Signal>>,
    /// Whether Ctrl-C ends the program, not an answer alone.
    ends_by_interrupt: bool,
}

impl Generator {
    pub(crate) fn new() -> Result<Generator> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the runtime")?;
        runtime.block_on(async { signals::survive_file_size_limit() })?;
        Ok(Generator { runtime, interrupt: Mutex::default(), ends_by_interrupt: false })
    }

    /// Leaves Ctrl-C to the system, which ends the program, with status 130 in a shell: for input that nobody types, where the next
    /// message would only be begun. A handler, once there, would stay between answers too.
    pub(crate) fn ended_by_interrupt(self) -> Generator {
        Generator { ends_by_interrupt: true, ..self }
    }

    /// Generates an answer and hands its text to `show` as it comes.
    pub(crate) fn generate(
        &self,
        loaded: &Loaded,
        request: Request,
        show: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Answer> {
        let mut answer = Answer::default();
        self.runtime.block_on(follow(loaded, request, &mut answer, show))?;
        Ok(answer)
    }

    /// The same, but that Ctrl-C ends the answer and not the program.
    pub(crate) fn generate_stoppable(
        &self,
        loaded: &Loaded,
        request: Request,
        show: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Answer> {
        let mut answer = Answer::default();
        self.unless_stopped(follow(loaded, request, &mut answer, show))?.transpose()?;
        Ok(answer)
    }

    /// Every Ctrl-C from now on is meant for the next answer, every one before for none. To be called while the line editor has the
    /// terminal, where Ctrl-C is a key and no signal, so that none is between.
    pub(crate) fn watch(&self) {
        self.watch_for(SignalKind::interrupt());
    }

    fn watch_for(&self, kind: SignalKind) {
        // Without it, the next answer watches for itself.
        let signal = self.runtime.block_on(fresh(kind)).ok();
        *self.interrupt.lock().unwrap_or_else(PoisonError::into_inner) = signal;
    }

    /// What `work` comes to; `None` where Ctrl-C came first.
    pub(crate) fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<Option<T>> {
        if self.ends_by_interrupt {
            return Ok(Some(self.runtime.block_on(work)));
        }
        let watched = self.interrupt.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.runtime.block_on(async {
            let mut interrupt = match watched {
                Some(interrupt) => interrupt,
                None => fresh(SignalKind::interrupt()).await?,
            };
            tokio::select! {
                outcome = work => Ok(Some(outcome)),
                _ = interrupt.recv() => Ok(None),
            }
        })
    }
}

/// Puts what comes out of a request into `answer`. Dropped before its end, it cancels the request.
async fn follow(
    loaded: &Loaded,
    request: Request,
    answer: &mut Answer,
    show: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let mut events = loaded.engine.submit(request)?;
    loop {
        let (text, tokens) = match events.recv().await {
            Some(Event::Text { text, tokens, .. }) => (text, tokens),
            Some(Event::Finished { reason, text, tokens, .. }) => {
                answer.finish_reason = Some(reason);
                (text, tokens)
            }
            Some(Event::PromptLogprobs(_) | Event::PromptProgress { .. } | Event::Embedding(_)) => continue,
            Some(Event::Done(usage)) => {
                answer.usage = Some(usage);
                return Ok(());
            }
            Some(Event::Failed(error)) => return Err(error.into()),
            None => return Err(anyhow!("the engine ended before the answer did")),
        };
        answer.tokens.extend(tokens);
        if !text.is_empty() {
            answer.text.push_str(&text);
            show(&text)?;
        }
    }
}

/// A signal from now on. A Ctrl-C that was typed when the last answer had just ended, before the line editor had the terminal,
/// still waits in the runtime, and would end this answer before it begins.
async fn fresh(kind: SignalKind) -> std::io::Result<Signal> {
    let mut signals = signal(kind)?;
    let _ = tokio::time::timeout(Duration::from_millis(1), signals.recv()).await;
    Ok(signals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_behind_the_watch_ends_the_answer_before_it_begins() {
        let generator = Generator::new().unwrap();
        // Other tests of this process wait for Ctrl-C.
        generator.watch_for(SignalKind::user_defined2());
        let kill_me = format!("kill -USR2 {}", std::process::id());
        assert!(std::process::Command::new("sh").args(["-c", &kill_me]).status().unwrap().success());
        let endless = std::future::pending::<()>();
        assert_eq!(generator.unless_stopped(endless).unwrap(), None);
    }

    // A chat whose messages came through a pipe went on with the next one, and its status was 0.
    #[test]
    fn a_signal_stops_no_answer_where_it_ends_the_program() {
        let generator = Generator::new().unwrap().ended_by_interrupt();
        // As above, and it has a handler.
        generator.watch_for(SignalKind::user_defined2());
        let kill_me = format!("kill -USR2 {}", std::process::id());
        assert!(std::process::Command::new("sh").args(["-c", &kill_me]).status().unwrap().success());
        let slow = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
        };
        assert_eq!(generator.unless_stopped(slow).unwrap(), Some(()));
    }

    #[test]
    fn a_signal_between_two_answers_does_not_end_the_second() {
        // Other tests of this process wait for Ctrl-C.
        let kind = SignalKind::user_defined1();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The first answer takes the signal over from the system.
        runtime.block_on(async { fresh(kind).await.map(drop) }).unwrap();
        let kill_me = format!("kill -USR1 {}", std::process::id());
        let sent = std::process::Command::new("sh").args(["-c", &kill_me]).status().unwrap();
        assert!(sent.success());
        // The handler runs in some thread of this process, which a busy machine lets wait.
        std::thread::sleep(Duration::from_millis(300));
        let next = runtime.block_on(async {
            let mut signals = fresh(kind).await.unwrap();
            tokio::time::timeout(Duration::from_millis(100), signals.recv()).await
        });
        assert!(next.is_err(), "the second answer was interrupted");
    }
}
