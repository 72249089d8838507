//! GBNF's text to rules.
//!
//! `name ::= expression`, where an expression has `"literals"`, `[classes]`, `.`, names, `( )`, `|` and the repetitions
//! `* + ? {m} {m,} {m,n}`; `#` begins a comment. A rule ends where the next begins, so line breaks mean nothing.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

use super::{Expr, KIND};
use crate::grammar::GrammarError;

/// Rules of one grammar, and the most that a part may be repeated (both far above what llama.cpp's own grammars use).
const MAX_RULES: usize = 4096;
const MAX_REPEAT: u32 = 2000;

/// A rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) body: Expr,
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Name(String),
    Define,
    Bar,
    Open,
    Close,
    Repeat(u32, Option<u32>),
    Literal(String),
    Class { ranges: Vec<(char, char)>, negated: bool },
}

/// Rules in the order of their definitions; references are indexes into them.
pub(super) fn parse(text: &str) -> Result<Vec<Rule>, GrammarError> {
    let tokens = tokenize(text)?;
    let mut ids: HashMap<&str, usize> = HashMap::new();
    let mut starts = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        if let [(line, Token::Name(name)), (_, Token::Define)] = pair {
            if ids.insert(name, starts.len()).is_some() {
                return Err(wrong(*line, &format!("rule {name:?} is defined twice")));
            }
            starts.push((at, name));
        }
    }
    if starts.first().is_none_or(|&(at, _)| at != 0) {
        return Err(wrong(1, "a grammar begins with a rule: name ::= ..."));
    }
    if starts.len() > MAX_RULES {
        return Err(wrong(1, &format!("it has {} rules; at most {MAX_RULES} are taken", starts.len())));
    }
    let ends = starts.iter().skip(1).map(|&(at, _)| at).chain([tokens.len()]);
    let rule = |(&(at, name), end): (&(usize, &String), usize)| {
        let mut parser = Parser { tokens: &tokens[at + 2..end], ids: &ids, last_line: tokens[at].0 };
        let body = parser.choice()?;
        match parser.tokens.first() {
            None => Ok(Rule { name: name.clone(), body }),
            Some((line, token)) => Err(wrong(*line, &format!("{token:?} is out of place"))),
        }
    };
    starts.iter().zip(ends).map(rule).collect()
}

fn wrong(line: usize, problem: &str) -> GrammarError {
    GrammarError::invalid(KIND, format!("line {line}: {problem}"))
}

/// Reads one rule's tokens.
struct Parser<'t> {
    tokens: &'t [(usize, Token)],
    ids: &'t HashMap<&'t str, usize>,
    last_line: usize,
}

impl Parser<'_> {
    fn choice(&mut self) -> Result<Expr, GrammarError> {
        let mut options = vec![self.sequence()?];
        while self.take(&Token::Bar) {
            options.push(self.sequence()?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Expr::Choice(options) })
    }

    fn sequence(&mut self) -> Result<Expr, GrammarError> {
        let mut parts = Vec::new();
        while let Some((line, token)) = self.tokens.first() {
            self.last_line = *line;
            let part = match token {
                Token::Bar | Token::Close => break,
                Token::Literal(text) => Expr::Literal(text.clone()),
                Token::Class { ranges, negated } => Expr::Class { ranges: ranges.clone(), negated: *negated },
                Token::Name(name) => match self.ids.get(name.as_str()) {
                    Some(&id) => Expr::Rule(id),
                    None => return Err(wrong(*line, &format!("rule {name:?} is not defined"))),
                },
                Token::Open => {
                    self.tokens = &self.tokens[1..];
                    let inner = self.choice()?;
                    if self.tokens.first().map(|(_, token)| token) != Some(&Token::Close) {
                        return Err(wrong(*line, "a parenthesis is not closed"));
                    }
                    inner
                }
                Token::Repeat(min, max) => {
                    let inner = parts.pop().ok_or_else(|| wrong(*line, "there is nothing to repeat"))?;
                    Expr::Repeat(Box::new(inner), *min, *max)
                }
                Token::Define => return Err(wrong(*line, "::= is out of place")),
            };
            self.tokens = &self.tokens[1..];
            parts.push(part);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expr::Sequence(parts) })
    }

    fn take(&mut self, token: &Token) -> bool {
        let is_next = self.tokens.first().is_some_and(|(_, next)| next == token);
        self.tokens = &self.tokens[usize::from(is_next)..];
        is_next
    }
}

/// Tokens with their lines.
fn tokenize(text: &str) -> Result<Vec<(usize, Token)>, GrammarError> {
    let mut tokens = Vec::new();
    for (line, source) in (1..).zip(text.lines()) {
        let mut letters = source.chars().peekable();
        while let Some(&letter) = letters.peek() {
            if letter == '#' {
                break;
            }
            if letter.is_whitespace() {
                letters.next();
                continue;
            }
            tokens.push((line, token(&mut letters).map_err(|problem| wrong(line, &problem))?));
        }
    }
    Ok(tokens)
}

fn token(letters: &mut Peekable<Chars<'_>>) -> Result<Token, String> {
    let is_name = |letter: &char| letter.is_ascii_alphanumeric() || "-_".contains(*letter);
    if letters.peek().is_some_and(is_name) {
        let name = std::iter::from_fn(|| letters.next_if(is_name)).collect();
        return Ok(Token::Name(name));
    }
    let letter = letters.next().expect("the caller saw one");
    Ok(match letter {
        '|' => Token::Bar,
        '(' => Token::Open,
        ')' => Token::Close,
        '*' => Token::Repeat(0, None),
        '+' => Token::Repeat(1, None),
        '?' => Token::Repeat(0, Some(1)),
        '.' => Token::Class { ranges: Vec::new(), negated: true },
        '{' => repeat(letters)?,
        '"' => literal(letters)?,
        '[' => class(letters)?,
        ':' if letters.next() == Some(':') && letters.next() == Some('=') => Token::Define,
        '<' | '!' => return Err("tokens (<...>) are not allowed, only text".to_owned()),
        other => return Err(format!("{other:?} is out of place")),
    })
}

fn repeat(letters: &mut Peekable<Chars<'_>>) -> Result<Token, String> {
    let inside: String = letters.by_ref().take_while(|&letter| letter != '}').collect();
    let number = |text: &str| text.trim().parse().ok().filter(|&number| number <= MAX_REPEAT);
    let bounds = match inside.split_once(',') {
        None => number(&inside).map(|times| (times, Some(times))),
        Some((min, max)) if max.trim().is_empty() => number(min).map(|min| (min, None)),
        Some((min, max)) => number(min).zip(number(max)).map(|(min, max)| (min, Some(max))),
    };
    match bounds {
        Some((min, max)) if max.is_none_or(|max| min <= max) => Ok(Token::Repeat(min, max)),
        _ => Err(format!("{{{inside}}} is no repetition: {{m}}, {{m,}} or {{m,n}} with numbers up to {MAX_REPEAT}")),
    }
}

fn literal(letters: &mut Peekable<Chars<'_>>) -> Result<Token, String> {
    let mut text = String::new();
    loop {
        match letters.next() {
            Some('"') => return Ok(Token::Literal(text)),
            Some(letter) => text.push(character(letter, letters)?),
            None => return Err("a string is not closed on its line".to_owned()),
        }
    }
}

fn class(letters: &mut Peekable<Chars<'_>>) -> Result<Token, String> {
    let negated = letters.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    loop {
        let low = match letters.next() {
            Some(']') if ranges.is_empty() => return Err("a character class is empty".to_owned()),
            Some(']') => return Ok(Token::Class { ranges, negated }),
            Some(letter) => character(letter, letters)?,
            None => return Err("a character class is not closed on its line".to_owned()),
        };
        let mut ahead = letters.clone();
        let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|letter| letter != ']');
        let high = match is_range.then(|| letters.nth(1)).flatten() {
            Some(letter) => character(letter, letters)?,
            None => low,
        };
        if low > high {
            return Err(format!("{low:?}-{high:?} is no range"));
        }
        ranges.push((low, high));
    }
}

/// A character that may be an escape, of which `first` was read.
fn character(first: char, letters: &mut Peekable<Chars<'_>>) -> Result<char, String> {
    if first != '\\' {
        return Ok(first);
    }
    let escape = letters.next();
    let num_digits = match escape {
        Some('n') => return Ok('\n'),
        Some('r') => return Ok('\r'),
        Some('t') => return Ok('\t'),
        Some(letter @ ('\\' | '"' | '[' | ']')) => return Ok(letter),
        Some('x') => 2,
        Some('u') => 4,
        Some('U') => 8,
        other => return Err(format!("\\{} is no escape", other.map(String::from).unwrap_or_default())),
    };
    let digits: String = letters.take(num_digits).collect();
    let code = u32::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == num_digits);
    code.and_then(char::from_u32).ok_or_else(|| format!("{digits:?} is not the code of a character"))
}
