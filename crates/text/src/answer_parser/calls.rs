//! The part of an answer that holds calls, from the mark before the first to the mark behind the last.

use std::ops::Range;

use serde_json::{Map, Value};

use super::ToolSyntax;
use super::json_scan::{JsonScan, Scanned, members};
use crate::ToolFormat;

/// Bytes of the longest name of a tool that is read.
const MAX_NAME_BYTES: usize = 200;

/// Bytes of the most blanks between a name and its arguments.
const MAX_BLANKS: usize = 200;

/// Where the parser stands in a region of calls. Places count bytes of the parser's buffer.
#[derive(Debug, Clone)]
pub(super) struct Region {
    /// Up to here the buffer was looked at.
    at: usize,
    /// Behind a call: up to here there are blanks, which are not looked at again.
    blanks_end: usize,
    phase: Phase,
    /// Where the mark ends that began the region; 0 without one, and once a call was told.
    mark_end: usize,
    /// Whether a mark began it.
    has_mark: bool,
    in_array: bool,
}

#[derive(Debug, Clone)]
enum Phase {
    /// A call must come.
    Before,
    /// In the name that stands before the arguments.
    Name { start: usize },
    /// In the object of a call.
    Object { start: usize, scan: JsonScan },
    /// In the arguments of a call whose name is known.
    Arguments { name: String, start: usize, scan: JsonScan },
    /// The same where the call was told already; what lies before `at` is of the arguments. `is_inner`: the object of the call
    /// goes on behind them.
    Streamed { scan: JsonScan, is_inner: bool },
    /// Behind arguments that were told: the bracket of the call's object must come.
    Closing,
    /// Another call may come, or the end.
    After,
}

/// What a region came to. Places count from the buffer's beginning; what lies before `end` is done with.
#[derive(Debug)]
pub(super) enum Found {
    /// More text is needed.
    Nothing,
    /// A call.
    Call { name: String, arguments: Arguments, end: usize },
    /// A call began; its arguments follow `end`.
    Begun { name: String, end: usize },
    /// The buffer up to `end` is of the arguments, which end there if `is_last`.
    Arguments { end: usize, is_last: bool },
    /// The region is over.
    End { end: usize },
    /// No call.
    Malformed,
}

/// The arguments of a call.
#[derive(Debug)]
pub(super) enum Arguments {
    /// As they stand in the buffer.
    At(Range<usize>),
    /// They stood there in another way.
    Are(String),
}

impl Arguments {
    pub(super) fn of(self, buffer: &str) -> String {
        match self {
            Arguments::At(range) => buffer[range].to_owned(),
            Arguments::Are(text) => text,
        }
    }
}

/// What one look came to.
enum Look {
    /// Look on.
    On,
    Found(Found),
}

impl Region {
    /// Begins at byte `at`, behind a mark if `has_mark`.
    pub(super) fn new(at: usize, has_mark: bool) -> Region {
        Region {
            at,
            blanks_end: 0,
            phase: Phase::Before,
            mark_end: if has_mark { at } else { 0 },
            has_mark,
            in_array: false,
        }
    }

    /// How much of the buffer is text if there is no call.
    pub(super) fn mark_end(&self) -> usize {
        self.mark_end
    }

    /// Whether what stands here is a call, though it is not whole: its form is certain behind a mark. Without one, other text may
    /// begin in the same way.
    pub(super) fn is_surely_call(&self, tools: &ToolSyntax) -> bool {
        tools.is_certain && self.has_mark
    }

    /// Looks at what is new in the buffer.
    pub(super) fn advance(&mut self, buffer: &str, tools: &ToolSyntax, is_end: bool) -> Found {
        loop {
            let look = match self.phase {
                Phase::Before => self.before(buffer, tools.format, is_end),
                Phase::Name { start } => self.name(buffer, start, tools),
                Phase::Object { start, .. } => self.object(buffer, start, tools),
                Phase::Arguments { .. } => self.arguments(buffer),
                Phase::Streamed { .. } => self.streamed(buffer, is_end),
                Phase::Closing => self.closing(buffer, is_end),
                Phase::After => self.after(buffer, tools.format, is_end),
            };
            if let Look::Found(found) = look {
                return found;
            }
        }
    }

    /// The next letter that is no blank; `at` is on it.
    fn next_letter(&mut self, buffer: &str) -> Option<char> {
        let rest = &buffer[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        buffer[self.at..].chars().next()
    }

    fn before(&mut self, buffer: &str, format: ToolFormat, is_end: bool) -> Look {
        let is_mistral = matches!(format, ToolFormat::Mistral | ToolFormat::MistralArgs);
        match self.next_letter(buffer) {
            // Behind a call and a separator nothing is missing.
            None if is_end && self.mark_end == 0 => Look::Found(Found::End { end: self.at }),
            None => Look::Found(Found::Nothing),
            Some('{') => {
                self.phase = Phase::Object { start: self.at, scan: JsonScan::default() };
                Look::On
            }
            Some('[') if is_mistral && !self.in_array => {
                self.in_array = true;
                self.at += 1;
                Look::On
            }
            Some(letter) if is_mistral && is_of_name(letter) => {
                self.phase = Phase::Name { start: self.at };
                Look::On
            }
            Some(_) => Look::Found(Found::Malformed),
        }
    }

    fn name(&mut self, buffer: &str, start: usize, tools: &ToolSyntax) -> Look {
        const ARGS: &str = "[ARGS]";
        let rest = &buffer[start..];
        let (head, arguments) = match (rest.find(ARGS), rest.find('{')) {
            (Some(args), brace) if brace.is_none_or(|brace| args < brace) => {
                let behind = start + args + ARGS.len();
                let blanks = buffer[behind..].len() - buffer[behind..].trim_start().len();
                if blanks > MAX_BLANKS {
                    return Look::Found(Found::Malformed);
                }
                match buffer[behind + blanks..].chars().next() {
                    None => return Look::Found(Found::Nothing),
                    Some('{') => (&rest[..args], behind + blanks),
                    Some(_) => return Look::Found(Found::Malformed),
                }
            }
            (_, Some(brace)) => (&rest[..brace], start + brace),
            _ if rest.len() > MAX_NAME_BYTES => return Look::Found(Found::Malformed),
            _ => return Look::Found(Found::Nothing),
        };
        let name = head.split("[CALL_ID]").next().unwrap_or_default().trim();
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_of_name) {
            return Look::Found(Found::Malformed);
        }
        let name = name.to_owned();
        if tools.is_certain {
            return self.begin(name, arguments, false);
        }
        self.at = arguments;
        self.phase = Phase::Arguments { name, start: arguments, scan: JsonScan::default() };
        Look::On
    }

    /// Tells a call before its arguments, which begin at `end`.
    fn begin(&mut self, name: String, end: usize, is_inner: bool) -> Look {
        self.at = 0;
        self.blanks_end = 0;
        self.mark_end = 0;
        self.phase = Phase::Streamed { scan: JsonScan::default(), is_inner };
        Look::Found(Found::Begun { name, end })
    }

    fn object(&mut self, buffer: &str, start: usize, tools: &ToolSyntax) -> Look {
        if tools.is_certain
            && let Some((name, arguments)) = certain_head(&buffer[start..], tools)
        {
            return self.begin(name, start + arguments, true);
        }
        let Phase::Object { scan, .. } = &mut self.phase else { return Look::On };
        match scan_on(buffer, &mut self.at, scan) {
            Scanned::More => Look::Found(Found::Nothing),
            Scanned::Bad => Look::Found(Found::Malformed),
            Scanned::End => match read_call(&buffer[start..self.at], start, tools) {
                Some((name, arguments)) => self.call(name, arguments),
                None => Look::Found(Found::Malformed),
            },
        }
    }

    fn arguments(&mut self, buffer: &str) -> Look {
        let Phase::Arguments { name, start, scan } = &mut self.phase else { return Look::On };
        match scan_on(buffer, &mut self.at, scan) {
            Scanned::More => Look::Found(Found::Nothing),
            Scanned::Bad => Look::Found(Found::Malformed),
            Scanned::End => {
                let range = *start..self.at;
                match serde_json::from_str::<Map<String, Value>>(&buffer[range.clone()]) {
                    Ok(_) => {
                        let name = std::mem::take(name);
                        self.call(name, Arguments::At(range))
                    }
                    Err(_) => Look::Found(Found::Malformed),
                }
            }
        }
    }

    /// Tells a whole call, which ends at `at`.
    fn call(&mut self, name: String, arguments: Arguments) -> Look {
        let end = std::mem::take(&mut self.at);
        self.blanks_end = 0;
        self.mark_end = 0;
        self.phase = Phase::After;
        Look::Found(Found::Call { name, arguments, end })
    }

    fn streamed(&mut self, buffer: &str, is_end: bool) -> Look {
        let Phase::Streamed { scan, is_inner } = &mut self.phase else { return Look::On };
        let scanned = scan_on(buffer, &mut self.at, scan);
        // A character that is not ASCII is never a bracket, so `at` is a border.
        let end = std::mem::take(&mut self.at);
        self.blanks_end = 0;
        match scanned {
            Scanned::End => self.phase = if *is_inner { Phase::Closing } else { Phase::After },
            Scanned::More if end == 0 && is_end => self.phase = Phase::After,
            Scanned::More if end == 0 => return Look::Found(Found::Nothing),
            Scanned::More => {}
            Scanned::Bad => self.phase = Phase::After,
        }
        Look::Found(Found::Arguments { end, is_last: scanned == Scanned::End })
    }

    fn closing(&mut self, buffer: &str, is_end: bool) -> Look {
        match self.next_letter(buffer) {
            None if is_end => Look::Found(Found::End { end: self.at }),
            None => Look::Found(Found::Nothing),
            Some('}') => {
                self.at += 1;
                self.phase = Phase::After;
                Look::On
            }
            Some(_) => {
                self.phase = Phase::After;
                Look::On
            }
        }
    }

    /// Waits for more, which decides whether the blanks from `start` on are text.
    fn wait_at(&mut self, start: usize) -> Look {
        self.at = start;
        Look::Found(Found::Nothing)
    }

    fn after(&mut self, buffer: &str, format: ToolFormat, is_end: bool) -> Look {
        const CLOSE: &str = "</tool_call>";
        let start = self.at;
        let end = |end| Look::Found(Found::End { end });
        self.at = start.max(self.blanks_end);
        let letter = self.next_letter(buffer);
        self.blanks_end = self.at;
        match (letter, format) {
            (None, _) if is_end => end(self.at),
            (None, _) => self.wait_at(start),
            (Some('{'), _) => {
                self.phase = Phase::Before;
                Look::On
            }
            (Some(','), _) | (Some(';'), ToolFormat::Llama3) => {
                self.at += 1;
                self.phase = Phase::Before;
                Look::On
            }
            (Some('<'), ToolFormat::Hermes) => {
                let rest = &buffer[self.at..];
                if rest.starts_with(CLOSE) {
                    end(self.at + CLOSE.len())
                } else if CLOSE.starts_with(rest) {
                    // Cut off in the middle of the mark, the call is still whole.
                    if is_end { end(buffer.len()) } else { self.wait_at(start) }
                } else {
                    end(start)
                }
            }
            (Some(']'), ToolFormat::Mistral | ToolFormat::MistralArgs) if self.in_array => end(self.at + 1),
            _ => end(start),
        }
    }
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "_-.".contains(letter)
}

/// Scans from `at` on; `at` is behind the last byte that was taken.
fn scan_on(buffer: &str, at: &mut usize, scan: &mut JsonScan) -> Scanned {
    for &byte in &buffer.as_bytes()[*at..] {
        match scan.step(byte) {
            Scanned::Bad => return Scanned::Bad,
            scanned => {
                *at += 1;
                if scanned == Scanned::End {
                    return Scanned::End;
                }
            }
        }
    }
    Scanned::More
}

/// The name and the place of the arguments, if the object begins as grammars write it.
fn certain_head(object: &str, tools: &ToolSyntax) -> Option<(String, usize)> {
    let key = tools.format.arguments_key();
    let rest = object.strip_prefix("{\"name\": \"")?;
    let name_len = rest.find('"').filter(|&len| rest[..len].chars().all(is_of_name))?;
    let behind = rest[name_len..].strip_prefix("\", \"")?.strip_prefix(key)?.strip_prefix("\": ")?;
    let name = &rest[..name_len];
    // Text of another form may look alike where calls have no marks.
    let is_call = behind.starts_with('{') && tools.names.iter().any(|known| known == name);
    is_call.then(|| (name.to_owned(), object.len() - behind.len()))
}

/// The call that an object stands for; the object begins at `start`.
fn read_call(object: &str, start: usize, tools: &ToolSyntax) -> Option<(String, Arguments)> {
    let fields: Map<String, Value> = serde_json::from_str(object).ok()?;
    let name = fields.get("name")?.as_str().filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES)?;
    let is_llama = tools.format == ToolFormat::Llama3;
    // Without a mark only the name tells a call from any other JSON.
    if is_llama && !tools.names.iter().any(|known| known == name) {
        return None;
    }
    let key = ["arguments", "parameters"].into_iter().find(|key| fields.contains_key(*key));
    let arguments = match key.map(|key| (key, &fields[key])) {
        None if is_llama => return None,
        None | Some((_, Value::Null)) => Arguments::Are("{}".to_owned()),
        Some((key, Value::Object(_))) => {
            // Of two members of one name the last counts, as for the library.
            let (_, place) = members(object).into_iter().rev().find(|(name, _)| name == key)?;
            Arguments::At(start + place.start..start + place.end)
        }
        // The object as a text, as OpenAI's interface has it.
        Some((_, Value::String(text))) => {
            serde_json::from_str::<Map<String, Value>>(text).ok()?;
            Arguments::Are(text.clone())
        }
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}
