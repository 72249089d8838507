//! `taper chat` as a person uses it: through a terminal, with Ctrl-C, arrow keys, commands and a history.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rexpect::reader::Options;
use rexpect::session::{PtySession, spawn_with_options};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the chat shows when it waits for a line: it draws the line anew and puts the cursor behind the prompt.
const PROMPT: &str = "\r> \r";
/// The same where a line goes on with the one before.
const MORE: &str = "\r. \r";
/// Up, as a terminal sends it.
const ARROW_UP: &str = "\x1b[A";
const LIMIT: Duration = Duration::from_secs(60);
/// A message that is answered with a few words, and one with a few hundred.
const SHORT: &str = "Say hi.";
const LONG: &str = "Write a long story about a dog.";

/// A chat in a terminal of its own, whose home is `home`.
struct Chat(PtySession);

impl Chat {
    fn start(home: &Path, model: &Path, arguments: &[&str]) -> Chat {
        let mut chat = Chat::start_loading(home, model, arguments);
        chat.expect("Ctrl-D leaves");
        chat.expect(PROMPT);
        chat
    }

    fn start_loading(home: &Path, model: &Path, arguments: &[&str]) -> Chat {
        let mut command = support::taper();
        command.env("VISUAL", "sed -i s/cat/dog/").current_dir(home);
        command.args(["chat", "--temperature", "0", "--model"]).arg(model).args(arguments);
        command.env("TERM", "xterm").env("HOME", home).env("XDG_STATE_HOME", home.join("state"));
        for name in ["TAPER_HISTORY", "TAPER_LOG", "NO_COLOR"] {
            command.env_remove(name);
        }
        let options = Options::new().timeout_ms(Some(LIMIT.as_millis() as u64)).strip_ansi_escape_codes(true);
        Chat(spawn_with_options(command, options).expect("a terminal"))
    }

    /// Waits for a text; what came before it.
    fn expect(&mut self, text: &str) -> String {
        self.0.exp_string(text).unwrap_or_else(|error| panic!("waiting for {text:?}: {error}"))
    }

    fn type_keys(&mut self, keys: &str) {
        self.0.send(keys).unwrap();
        self.0.flush().unwrap();
    }

    /// Types a line and Enter.
    fn enter(&mut self, line: &str) {
        self.type_keys(&format!("{line}\r"));
        self.expect("\r\n");
    }

    /// Types a line; what the chat wrote until it waits for the next.
    fn say(&mut self, line: &str) -> String {
        self.enter(line);
        self.expect(PROMPT)
    }

    /// Says a message; the answer and the number of tokens of its prompt, which is the whole conversation.
    fn ask(&mut self, message: &str) -> (String, usize) {
        let shown = self.say(message);
        let (answer, summary) = shown.rsplit_once("\r\n[").unwrap_or_else(|| panic!("no summary in {shown:?}"));
        assert!(summary.contains(" token"), "{summary}");
        let prompt =
            summary.split("prompt of ").nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        let prompt = prompt.unwrap_or_else(|| panic!("no length of the prompt in {summary:?}"));
        (answer.trim().to_string(), prompt.parse().unwrap())
    }

    /// What has been said, from a file that the chat writes.
    fn saved(&mut self, home: &Path) -> Vec<String> {
        assert!(self.say("/save talk.json").contains("written to talk.json"));
        let file: Value = serde_json::from_str(&std::fs::read_to_string(home.join("talk.json")).unwrap()).unwrap();
        file["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["content"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Waits until this much of an answer has come.
    fn see(&mut self, num_chars: usize) {
        let begun = Instant::now();
        let mut seen = 0;
        while seen < num_chars {
            assert!(begun.elapsed() < LIMIT, "only {seen} characters of an answer");
            match self.0.try_read() {
                Some(_) => seen += 1,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Types a line until one is heard. Each has a name of its own: when the last is heard, none before it is still to come.
    fn type_until_heard(&mut self) {
        let begun = Instant::now();
        for number in 0.. {
            self.type_keys(&format!("/try{number}\r"));
            let (typed, heard) = (Instant::now(), format!("/try{number} is not a command"));
            let mut seen = String::new();
            while typed.elapsed() < Duration::from_secs(5) {
                match self.0.try_read() {
                    Some(c) => seen.push(c),
                    None => std::thread::sleep(Duration::from_millis(2)),
                }
                if seen.ends_with(&heard) {
                    return;
                }
            }
            assert!(begun.elapsed() < LIMIT, "nothing is heard: {seen:?}");
        }
    }

    fn control(&mut self, key: char) {
        self.0.send_control(key).unwrap();
    }

    /// Waits for the end; how it ended, such as `Exited(Pid(7), 0)`.
    fn end(&mut self) -> String {
        self.0.exp_eof().unwrap_or_else(|error| panic!("waiting for the end: {error}"));
        format!("{:?}", self.0.process().wait().unwrap())
    }
}

#[test]
fn a_message_is_answered_and_exit_ends_well() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &["--max-tokens", "40"]);
    let (answer, prompt) = chat.ask(SHORT);
    assert!(!answer.is_empty());
    let (_, longer) = chat.ask("Name a colour.");
    assert!(longer > prompt + 10, "the second prompt holds the first exchange: {prompt}, {longer}");
    assert_eq!(chat.say(""), "", "an empty line is no message");
    chat.enter("/exit");
    assert!(chat.end().ends_with(", 0)"));
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_chat() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &[]);
    let fresh = chat.ask(SHORT);
    for _ in 0..3 {
        // Where the last answer was cut would change this one, and it might be short.
        chat.say("/clear");
        chat.enter(LONG);
        chat.see(40);
        chat.control('c');
        let shown = chat.expect(PROMPT);
        assert!(shown.contains("[stopped after "), "{shown:?}");
    }
    chat.say("/clear");
    // Before the first token, and twice.
    chat.enter(LONG);
    chat.control('c');
    chat.control('c');
    // The second may still stop the answer or already find the prompt, which then comes twice. The line editor forgets what it
    // has read together with a Ctrl-C, so a line may be lost.
    chat.type_until_heard();
    chat.expect(PROMPT);
    // At the prompt it only gives the line up.
    chat.type_keys("never sent");
    chat.control('c');
    chat.expect("leaves]");
    chat.expect(PROMPT);
    chat.say("/clear");
    assert_eq!(chat.ask(SHORT), fresh);
    chat.control('d');
    assert!(chat.end().ends_with(", 0)"));
}

#[test]
fn what_a_stopped_answer_found_in_the_cache_is_told() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &[]);
    // Over one block of the cache; the second prompt begins with it.
    for (least, cached) in [(150, false), (1, true)] {
        chat.enter(LONG);
        chat.see(least);
        chat.control('c');
        let shown = chat.expect(PROMPT);
        assert!(shown.contains("[stopped after "), "{shown:?}");
        assert_eq!(shown.contains(" of it cached"), cached, "{shown:?}");
    }
    chat.control('d');
    chat.end();
}

#[test]
fn arrow_up_recalls_lines_of_this_chat_and_of_earlier_ones() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &[]);
    let first = chat.ask(SHORT);
    chat.say("/help");
    chat.say("/clear");
    chat.type_keys(&ARROW_UP.repeat(3));
    chat.expect(SHORT);
    assert_eq!(chat.ask(""), first, "the recalled line is asked anew");
    chat.control('d');
    chat.end();
    let kept = std::fs::read_to_string(home.path().join("state/taper/chat_history")).unwrap();
    assert!(kept.contains("Say hi.\n/help\n/clear\nSay hi.\n"), "{kept:?}");

    let mut chat = Chat::start(home.path(), &model, &[]);
    chat.type_keys(ARROW_UP);
    chat.expect(SHORT);
    assert_eq!(chat.ask(""), first);
    chat.control('d');
    assert!(chat.end().ends_with(", 0)"));
}

#[test]
fn a_history_that_cannot_be_kept_is_said_once_and_stops_nobody() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    for file in ["/dev/full", "/proc/no/such/place"] {
        let mut chat = Chat::start(home.path(), &model, &["--history", file]);
        assert!(chat.say("/clear").contains("history cannot be kept"), "{file}");
        assert!(!chat.say("/clear").contains("history"), "{file}");
        assert!(!chat.ask(SHORT).0.is_empty());
        chat.control('d');
        assert!(chat.end().ends_with(", 0)"));
    }
}

#[test]
fn commands_show_help_set_the_system_text_and_begin_anew() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &["--max-tokens", "40"]);
    let help = chat.say("/help");
    for command in ["/system", "/clear", "/help", "/exit", "Ctrl-C"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(chat.say("/clera").contains("/clera is not a command; /help"), "a slip is no message");
    assert!(chat.say("/system").contains("no system text"));

    let question = "What is your name?";
    let (plain, _) = chat.ask(question);
    assert!(chat.say("/system You are Bob, a pirate. Your name is Bob.").contains("new conversation"));
    assert!(chat.say("/system").contains("You are Bob, a pirate. Your name is Bob."));
    let (bob, prompt) = chat.ask(question);
    assert_ne!(plain, bob);
    let (_, grown) = chat.ask(question);
    assert!(grown > prompt);
    assert!(chat.say("/clear").contains("new conversation"));
    assert_eq!(chat.ask(question), (bob, prompt), "cleared, with the system text kept");
    chat.enter("/exit");
    assert!(chat.end().ends_with(", 0)"));
}

#[test]
fn a_conversation_that_outgrows_the_context_is_told_and_goes_on() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &["--ctx", "128"]);
    let shown = chat.say(&"word ".repeat(200));
    assert!(shown.contains("128") && shown.contains("/clear begins anew"), "{shown:?}");
    assert!(!chat.ask(SHORT).0.is_empty(), "the long message was taken back");
    chat.control('d');
    assert!(chat.end().ends_with(", 0)"));
}

/// A small answer: what is looked at is the message.
const FEW: [&str; 2] = ["--max-tokens", "3"];

#[test]
fn a_message_may_have_several_lines() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &FEW);
    // A piece is typed when the prompt before it is there.
    let mut said = |pieces: &[&str]| {
        for (index, piece) in pieces.iter().enumerate() {
            if index > 0 {
                chat.expect(MORE);
            }
            chat.type_keys(piece);
        }
        chat.expect("prompt of ");
        chat.expect(PROMPT);
        let messages = chat.saved(home.path());
        chat.say("/clear");
        assert_eq!(messages.len(), 2, "{messages:?}");
        messages[0].clone()
    };
    assert_eq!(said(&["one\\\r", "two\\\r", "three\r"]), "one\ntwo\nthree");
    assert_eq!(said(&["\"\"\"\rone\\\r\rtwo\r\"\"\"\r"]), "one\\\n\ntwo");
    // As terminals send what is pasted, line ends and all.
    assert_eq!(said(&["\x1b[200~one\\\rtwo\r\rthree\r\x1b[201~\r"]), "one\\\ntwo\n\nthree");
    assert_eq!(said(&[" /help me\r"]), "/help me");
    chat.type_keys("one\\\r");
    chat.expect(MORE);
    chat.control('d');
    chat.expect("what was typed is given up");
    chat.expect(PROMPT);
    chat.control('d');
    assert!(chat.end().ends_with(", 0)"));
}

#[test]
fn an_editor_of_the_users_own_changes_the_line() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &FEW);
    chat.type_keys("I like my cat.");
    chat.expect("cat.");
    chat.control('g');
    chat.expect("dog.");
    chat.type_keys(" Truly.\r");
    chat.expect("prompt of ");
    chat.expect(PROMPT);
    assert_eq!(chat.saved(home.path())[0], "I like my dog. Truly.");
    chat.control('d');
    assert!(chat.end().ends_with(", 0)"));
}

#[test]
fn tab_completes_commands_and_parameters() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &FEW);
    chat.type_keys("/sta\t");
    chat.expect("/stats ");
    chat.type_keys("\r");
    chat.expect("no answers yet");
    chat.expect(PROMPT);
    chat.type_keys("/set pres\t");
    chat.expect("presence_penalty ");
    chat.type_keys("1.5\r");
    chat.expect("presence_penalty is 1.5");
    chat.expect(PROMPT);
    std::fs::write(home.path().join("conversation one.json"), "[]").unwrap();
    chat.type_keys("/load conv\t\r");
    chat.expect("0 messages from conversation one.json");
    chat.expect(PROMPT);
    chat.control('d');
    assert!(chat.end().ends_with(", 0)"));
}

#[test]
fn parameters_are_set_shown_and_heeded() {
    let Some(model) = support::model_or_skip() else { return };
    let home = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(home.path(), &model, &FEW);
    assert!(chat.say("/set top_p 7").contains("between 0 and 1, not 7"));
    assert!(chat.say("/set temprature 1").contains("did you mean temperature?"));
    assert!(chat.say("/set max_tokens 2").contains("max_tokens is 2"));
    let (_, prompt) = chat.ask(SHORT);
    let shown = chat.say("/show");
    assert!(shown.contains("max_tokens         2") && shown.contains("2 messages"), "{shown}");
    assert!(chat.say("/stats").contains("1 answer, 2 tokens"));
    assert!(chat.say("/set max_tokens default").contains("max_tokens is default"));
    let (answer, again) = {
        let shown = chat.say("/regen");
        let (answer, summary) = shown.rsplit_once("\r\n[").unwrap();
        let prompt = summary.split("prompt of ").nth(1).unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap();
        (answer.trim().to_owned(), prompt.parse::<usize>().unwrap())
    };
    assert_eq!(again, prompt, "the message is answered anew, not once more");
    assert_eq!(chat.saved(home.path())[1].trim(), answer.replace("\r\n", "\n"));
    chat.control('d');
    assert!(chat.end().ends_with(", 0)"));
}
