//! `taper chat`: a conversation in the terminal, or one message per line where stdin is not one.
//!
//! A [`Conversation`] is what was said, a [`Talker`] whoever answers, here or on a server; `commands` has a row per command, and
//! the answer goes through an [`AnswerWriter`] on its way to the terminal.

mod commands;
mod conversation;
mod editor;
mod files;
mod input;
mod listed;
mod local;
mod read_files;
mod remote;
mod roots;
mod talker;
mod unix;

use crate::answer::{AnswerWriter, Said};
use crate::args::ChatArgs;
use crate::color;
use crate::generate::Generator;
use crate::markdown::Shown;
use crate::output;
use crate::parameters::Parameters;
use anyhow::{Context, Result, bail};
use conversation::Conversation;
use editor::{LineEditor, Typed};
use files::KnownFiles;
use input::{Assembly, Input};
use local::Local;
use read_files::ReadFiles;
use remote::{Remote, Server, is_on_this_machine};
use std::io::{BufRead, IsTerminal};
use std::sync::Arc;
use talker::{End, Talker, Totals};

pub(crate) use remote::base_of;
pub(crate) use roots::system_certificates;

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let parameters = args.answer.parameters();
    parameters.sampling()?;
    let is_typed = std::io::stdin().is_terminal();
    let generator = Generator::new()?;
    let generator = Arc::new(if is_typed { generator } else { generator.ended_by_interrupt() });
    let talker: Box<dyn Talker> = match &args.remote.url {
        Some(url) => {
            let server = Server::new(url, api_key(args.remote.api_key.as_deref(), url))?;
            Box::new(Remote::connect(server, args.remote.model_name.clone(), Arc::clone(&generator))?)
        }
        None => Box::new(Local::load(&args.answer, Arc::clone(&generator))?),
    };
    let mut chat = Chat {
        talker,
        parameters,
        conversation: Conversation::new(args.answer.system.clone()),
        totals: Totals::default(),
        turns: Turns::default(),
        known_files: KnownFiles::default(),
        read_files: ReadFiles::default(),
        shown: color::of_stdout(args.color),
        is_dimmed: color::on_stderr(args.color),
    };
    if is_typed { interactive(&mut chat, args, generator) } else { piped(&mut chat) }
}

/// `--api-key` first, then the first key of TAPER_API_KEY, then the name that other clients use. TAPER_API_KEY lists the keys of
/// `taper serve`, so it is for a server on this machine only.
pub(crate) fn api_key(named: Option<&str>, url: &str) -> Option<String> {
    let var = |name: &str| std::env::var(name).ok().filter(|key| !key.is_empty());
    let ours = || {
        let keys = var("TAPER_API_KEY").filter(|_| is_on_this_machine(url))?;
        keys.split(',').map(str::trim).find(|key| !key.is_empty()).map(str::to_owned)
    };
    let key = named.map(str::to_owned).or_else(ours).or_else(|| var("OPENAI_API_KEY"));
    key.filter(|key| !key.is_empty())
}

/// Whether the chat goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Leave,
}

/// Messages that were to be answered, `/regen` among them.
#[derive(Debug, Default, Clone, Copy)]
struct Turns {
    asked: usize,
    answered: usize,
}

struct Chat {
    talker: Box<dyn Talker>,
    parameters: Parameters,
    conversation: Conversation,
    totals: Totals,
    turns: Turns,
    known_files: KnownFiles,
    /// For the next message.
    read_files: ReadFiles,
    /// How answers are.
    shown: Shown,
    /// Whether what is said beside them steps back.
    is_dimmed: bool,
}

impl Chat {
    /// Acts on a message or a command. One that cannot be done is told, and the chat goes on.
    fn act(&mut self, text: &str) -> Result<Next> {
        let done = match input::parse(text) {
            Input::Nothing => Ok(Next::GoOn),
            Input::Message(text) => self.say(text).map(|()| Next::GoOn),
            Input::Command(row, argument) => commands::run(self, row, argument),
            Input::Unknown(word, near) => {
                let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
                self.note(&format!("{word} is not a command; /help shows them{near}"));
                Ok(Next::GoOn)
            }
        };
        match done {
            Err(error) if !output::is_broken_pipe(&error) => {
                self.note(&format!("{error:#}"));
                Ok(Next::GoOn)
            }
            done => done,
        }
    }

    /// Tells something that is no answer.
    fn note(&self, text: &str) {
        output::status(&color::dimmed(&format!("[{}]", output::spelled_out(text)), self.is_dimmed));
    }

    /// Answers a message, with the files that were read for it. One that cannot be answered is taken back, and the files wait for
    /// the next.
    fn say(&mut self, text: &str) -> Result<()> {
        let mut conversation = self.conversation.clone();
        conversation.say(&self.read_files.behind(text));
        let answered = self.turns.answered;
        self.answer(conversation)?;
        if self.turns.answered > answered {
            self.read_files.clear();
        }
        Ok(())
    }

    /// Answers the last message anew. The old answer stays until there is another.
    fn answer_anew(&mut self) -> Result<()> {
        match self.conversation.unanswered() {
            Some(conversation) => self.answer(conversation),
            None => bail!("nothing was said yet that could be answered anew"),
        }
    }

    /// Goes on with the last answer.
    fn go_on(&mut self) -> Result<()> {
        match self.conversation.last_answer() {
            Some(_) => self.answer(self.conversation.clone()),
            None => bail!("there is no answer to go on with"),
        }
    }

    /// Answers a conversation, or goes on with the answer that it ends with; it then is the one that goes on.
    fn answer(&mut self, mut conversation: Conversation) -> Result<()> {
        self.turns.asked += 1;
        let begun = conversation.last_answer().map(str::to_owned);
        let mut writer = match &begun {
            Some(text) => AnswerWriter::behind(self.shown, self.is_dimmed, text),
            None => AnswerWriter::new(self.shown, self.is_dimmed),
        };
        let mut show = |said: Said<'_>| writer.show(said);
        let reply = self.talker.answer(&conversation.prompt(), &self.parameters, &mut show);
        let rest = writer.finish();
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) if output::is_broken_pipe(&error) => return Err(error),
            Err(error) => {
                if writer.is_begun() {
                    output::print(&(rest + "\n"))?;
                }
                bail!("{error:#}; the conversation is as it was, /clear begins anew");
            }
        };
        output::print(&(rest + "\n"))?;
        self.totals.add(&reply.cost);
        // Cut before a word of it was said: only thoughts, or nothing.
        if reply.end != End::Complete && reply.text.is_empty() {
            self.note(&format!("{}; the conversation is as it was", reply.summary()));
            return Ok(());
        }
        self.note(&reply.summary());
        // What was said before Ctrl-C was said.
        match begun {
            Some(_) => conversation.go_on(&reply.text),
            None => conversation.answer(reply.text),
        }
        self.conversation = conversation;
        self.turns.answered += 1;
        Ok(())
    }
}

fn interactive(chat: &mut Chat, args: &ChatArgs, generator: Arc<Generator>) -> Result<()> {
    output::status(&output::spelled_out(&format!("{} ({})", chat.talker.model(), chat.talker.place())));
    output::status("/help shows the commands, Ctrl-C stops an answer, Ctrl-D leaves");
    let mut editor = LineEditor::new(args.history.clone().or_else(editor::default_history), generator)?;
    let mut lines = Assembly::default();
    loop {
        match editor.read(lines.is_begun())? {
            Typed::Line(line) => {
                let Some(text) = lines.push(&line) else { continue };
                editor.remember(&text)?;
                if chat.act(&text)? == Next::Leave {
                    return Ok(());
                }
            }
            Typed::End if !lines.is_begun() => return Ok(()),
            // At the prompt there is no answer to stop; the line is given up, as in a shell, and with it those that it goes on with.
            Typed::GivenUp | Typed::End => {
                let given_up = if lines.take().is_empty() { "" } else { "what was typed is given up; " };
                chat.note(&format!("{given_up}/exit or Ctrl-D leaves"));
            }
        }
    }
}

/// # Errors
/// Also where something was said and nothing answered: whoever looks at the status alone must not take that for a conversation.
fn piped(chat: &mut Chat) -> Result<()> {
    say_lines(chat)?;
    match chat.turns {
        Turns { asked: 1.., answered: 0 } => bail!("no message was answered"),
        _ => Ok(()),
    }
}

/// Says what stdin has, a message per line.
fn say_lines(chat: &mut Chat) -> Result<()> {
    let mut assembly = Assembly::default();
    for line in std::io::stdin().lock().lines() {
        let Some(text) = assembly.push(&line.context("cannot read messages from stdin")?) else { continue };
        if chat.act(&text)? == Next::Leave {
            return Ok(());
        }
    }
    // A block that nobody ended is a message all the same.
    chat.act(&assembly.take())?;
    let unsaid = chat.read_files.names().join(", ");
    if !unsaid.is_empty() {
        chat.note(&format!("no message came after /read, so {unsaid} was not said"));
    }
    Ok(())
}
