//! What is asked: words without a meaning, as many as make so many tokens, or the prompts of a file.

use super::{Endpoint, Length};
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::{Map, Value};

/// Common English words: a token each, with the blank before it, in every large vocabulary.
const WORDS: &str = "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which \
                     one you were her all she there would their we him been has when who will more no if out so said what up its \
                     about into than them can only other new some could time these two may then do first any my now such like our \
                     over man me even most made after also did many before must through back years where much your way well down \
                     should because each just those people how too little state good very make world still own see men work long \
                     get here between both life being under never day same another know while last might us great old year off \
                     come since against go came right used take three";

/// Where prompts come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Random words.
    Words {
        /// Tokens of a prompt.
        length: Length,
        /// Tokens before them that all prompts begin with.
        shared_prefix: u32,
    },
    /// A file, from its first prompt to its last and again.
    File(File),
}

/// Prompts of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct File(Vec<Map<String, Value>>);

/// A file that has no prompts.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FileError {
    /// There is nothing in it.
    #[error("there is no prompt in it: expected one on each line, as text or as {{\"prompt\": \"...\"}}")]
    Empty,
    /// A line is not one.
    #[error("line {line}: {reason}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

impl File {
    /// A prompt on each line that is not blank. Where the first begins with `{`, all are JSON objects with `prompt` or the endpoint's own
    /// name of it, `messages` or `input`; their other fields go into the request, before those that all requests have.
    ///
    /// # Errors
    /// At the first line that is none.
    pub fn parse(text: &str, endpoint: Endpoint) -> Result<File, FileError> {
        let lines = || text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let is_json = lines().next().ok_or(FileError::Empty)?.1.trim_start().starts_with('{');
        let prompt = |(index, line): (usize, &str)| {
            let parsed = if is_json { object(line, endpoint) } else { Ok(endpoint.prompt(line)) };
            parsed.map_err(|reason| FileError::Line { line: index + 1, reason })
        };
        lines().map(prompt).collect::<Result<_, _>>().map(File)
    }

    /// Prompts in it.
    #[allow(clippy::len_without_is_empty, reason = "one without prompts is none")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The prompt of a request.
    pub(super) fn prompt(&self, index: u64) -> Map<String, Value> {
        self.0[(index % self.0.len() as u64) as usize].clone()
    }
}

/// What a prompt is called at one endpoint or another.
const NAMES: [&str; 3] = ["prompt", "messages", "input"];

/// Whether a prompt of this name has its type.
fn check(name: &str, prompt: &Value) -> Result<(), String> {
    match name {
        "messages" if !prompt.is_array() => Err("`messages` is no array".to_owned()),
        "prompt" | "input" if !(prompt.is_string() || prompt.is_array()) => {
            Err(format!("`{name}` is neither a text nor an array of texts or tokens"))
        }
        _ => Ok(()),
    }
}

fn object(line: &str, endpoint: Endpoint) -> Result<Map<String, Value>, String> {
    let mut object: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| format!("it is no JSON object: {error}"))?;
    let own = endpoint.field();
    let there: Vec<&str> = NAMES.into_iter().filter(|name| object.contains_key(*name)).collect();
    match there[..] {
        [] => {
            let other = if own == "prompt" { "messages" } else { own };
            return Err(format!("it has no `prompt` and no `{other}`"));
        }
        [one, other, ..] => return Err(format!("it has `{one}` and `{other}`")),
        [name] if name == own => check(own, &object[own])?,
        ["prompt"] => {
            let prompt = object.remove("prompt").unwrap_or_default();
            if own == "input" {
                check("prompt", &prompt)?;
                object.insert(own.to_owned(), prompt);
            } else {
                let text = prompt.as_str().ok_or("`prompt` is no text, and conversations take no tokens")?;
                object.extend(endpoint.prompt(text));
            }
        }
        ["messages"] => return Err("`messages` are for --endpoint chat and messages".to_owned()),
        _ => return Err("`input` is for --endpoint responses and embeddings".to_owned()),
    }
    if object.contains_key("stream") {
        return Err("`stream` is the benchmark's to say".to_owned());
    }
    Ok(object)
}

/// So many words, of which none is likely to begin two prompts alike.
pub(super) fn words(number: usize, rng: &mut Xoshiro256PlusPlus) -> String {
    let words: Vec<&str> = WORDS.split(' ').collect();
    let drawn: Vec<&str> = (0..number).map(|_| words[rng.random_range(0..words.len())]).collect();
    drawn.join(" ")
}

/// Every word once, to see how many tokens they are.
pub(super) fn sample(number: usize) -> (String, usize) {
    let words: Vec<&str> = WORDS.split(' ').take(number).collect();
    (words.join(" "), words.len())
}

/// How many tokens words are to a server: so many each, and so many for whatever stands around them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fit {
    pub(super) per_word: f64,
    pub(super) beside: f64,
}

impl Fit {
    /// A word is a token.
    pub(super) const WORD: Fit = Fit { per_word: 1.0, beside: 0.0 };

    /// The line through two prompts, (words, tokens) each.
    pub(super) fn through(few: (usize, u64), many: (usize, u64)) -> Option<Fit> {
        let per_word = (many.1 as f64 - few.1 as f64) / (many.0 as f64 - few.0 as f64);
        // A count that does not grow with the text is none.
        (per_word > 0.1).then_some(Fit { per_word, beside: few.1 as f64 - per_word * few.0 as f64 })
    }

    /// Words that make a whole prompt of so many tokens, at least one.
    pub(super) fn words_of_prompt(self, tokens: u32) -> usize {
        self.words(f64::from(tokens) - self.beside)
    }

    /// Words that make so many tokens within one.
    pub(super) fn words(self, tokens: f64) -> usize {
        (tokens / self.per_word).round().max(1.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use serde_json::json;

    #[test]
    fn words_are_as_many_as_were_asked_for() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let (one, two) = (words(40, &mut rng), words(40, &mut rng));
        assert_eq!((one.split(' ').count(), two.split(' ').count()), (40, 40));
        assert_ne!(one, two);
        let (all, number) = sample(usize::MAX);
        assert!(number > 140 && all.split(' ').all(|word| !word.is_empty()), "{all:?}");
    }

    #[test]
    fn a_line_through_two_counts_gives_the_words_of_a_prompt() {
        let fit = Fit::through((10, 30), (150, 310)).unwrap();
        assert_eq!(fit, Fit { per_word: 2.0, beside: 10.0 });
        assert_eq!((fit.words_of_prompt(110), fit.words_of_prompt(5), fit.words(100.0)), (50, 1, 50));
        assert_eq!(Fit::WORD.words_of_prompt(128), 128);
        assert_eq!(Fit::through((10, 0), (150, 0)), None, "a server that counts nothing");
    }

    #[test]
    fn a_file_has_texts_or_objects() {
        let texts = File::parse("one\n\n two\n", Endpoint::Chat).unwrap();
        assert_eq!(texts.len(), 2);
        assert_eq!(texts.prompt(3)["messages"][0]["content"], " two", "again from the beginning");
        let lines = "{\"prompt\": [1, 2], \"max_tokens\": 5}\n{\"prompt\": \"x\"}";
        let objects = File::parse(lines, Endpoint::Completions).unwrap();
        assert_eq!(Value::Object(objects.prompt(0)), json!({ "prompt": [1, 2], "max_tokens": 5 }));
        let chat = "{\"messages\": [], \"top_k\": 1}\n{\"prompt\": \"x\", \"max_tokens\": 2}";
        let chat = File::parse(chat, Endpoint::Chat).unwrap();
        let message = json!([{ "role": "user", "content": "x" }]);
        assert_eq!(Value::Object(chat.prompt(1)), json!({ "max_tokens": 2, "messages": message }));
        let inputs = "{\"input\": [1, 2], \"dimensions\": 5}\n{\"prompt\": \"x\"}";
        let inputs = File::parse(inputs, Endpoint::Embeddings).unwrap();
        assert_eq!(Value::Object(inputs.prompt(0)), json!({ "input": [1, 2], "dimensions": 5 }));
        assert_eq!(Value::Object(inputs.prompt(1)), json!({ "input": "x" }));
    }

    #[test]
    fn a_line_that_is_no_prompt_is_named() {
        let refused = |text: &str, endpoint| File::parse(text, endpoint).unwrap_err().to_string();
        assert!(refused(" \n\n", Endpoint::Chat).contains("no prompt"));
        for (line, endpoint, words) in [
            ("nonsense", Endpoint::Chat, "no JSON object"),
            ("{}", Endpoint::Chat, "no `prompt` and no `messages`"),
            ("{}", Endpoint::Responses, "no `prompt` and no `input`"),
            ("{\"input\": \"x\"}", Endpoint::Chat, "--endpoint responses and embeddings"),
            ("{\"input\": 5}", Endpoint::Embeddings, "neither a text nor an array"),
            ("{\"messages\": []}", Endpoint::Responses, "--endpoint chat and messages"),
            ("{\"prompt\": \"x\", \"messages\": []}", Endpoint::Chat, "and `messages`"),
            ("{\"messages\": []}", Endpoint::Completions, "--endpoint chat"),
            ("{\"messages\": 5}", Endpoint::Chat, "no array"),
            ("{\"prompt\": [1]}", Endpoint::Chat, "no tokens"),
            ("{\"prompt\": 5}", Endpoint::Completions, "neither a text"),
            ("{\"prompt\": \"x\", \"stream\": false}", Endpoint::Chat, "`stream`"),
        ] {
            let text = format!("{{\"prompt\": \"x\"}}\n\n{line}");
            let refused = refused(&text, endpoint);
            assert!(refused.contains("line 3") && refused.contains(words), "{refused}");
        }
    }
}
