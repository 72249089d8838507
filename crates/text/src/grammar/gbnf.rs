//! llama.cpp's grammars (GBNF) written as Lark.
//!
//! GBNF parses characters; the library below has a lexer, which takes the longest match. So a stretch of a rule becomes one
//! lexeme only where the longest match is the only one: where it is regular (it refers to no rule that refers to itself), and
//! no character that may follow it could also continue it. Everything else stays a rule, down to single characters. What is
//! accepted is therefore always in the grammar; where one alternative begins as a lexeme of another goes on, the longer is
//! taken, which may leave out texts that llama.cpp's parser, going both ways at once, would allow.
//!
//! Tokens (`<[151]>`, `<|im_end|>`) are refused: grammars are about text.

mod analysis;
mod parser;
mod sets;

use std::collections::HashMap;
use std::fmt::Write;

use super::{GrammarError, limits};
use analysis::Analysis;
use parser::Rule;
use sets::{ByteSet, Lexeme};

pub(super) const KIND: &str = "GBNF grammar";

/// Characters of a lexeme: references are written out, and doubling rules would grow without end.
const MAX_LEXEME_CHARS: usize = 1 << 16;
/// A stretch that cannot be one lexeme is tried again without its last parts, so many times.
const MAX_SHORTER: usize = 3;

/// What a rule is made of.
#[derive(Debug, Clone, PartialEq)]
enum Expr {
    /// These characters; may be none.
    Literal(String),
    /// One character of these ranges, or of all others. There is a range, or it is negated.
    Class { ranges: Vec<(char, char)>, negated: bool },
    /// What a rule matches, by index.
    Rule(usize),
    /// One after the other.
    Sequence(Vec<Expr>),
    /// One of them.
    Choice(Vec<Expr>),
    /// At least and at most so many times.
    Repeat(Box<Expr>, u32, Option<u32>),
}

/// The grammar in Lark.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parser::parse(text)?;
    let root = rules.iter().position(|rule| rule.name == "root");
    let root = root.ok_or_else(|| GrammarError::invalid(KIND, "it has no rule \"root\""))?;
    Writer::new(&rules).write(root)
}

struct Writer<'g> {
    rules: &'g [Rule],
    analysis: Analysis,
    /// Known lexemes by their expression.
    lexemes: HashMap<String, Lexeme>,
    /// Rules that are written or still to be.
    wanted: Vec<usize>,
}

impl<'g> Writer<'g> {
    fn new(rules: &'g [Rule]) -> Writer<'g> {
        Writer { rules, analysis: Analysis::new(rules), lexemes: HashMap::new(), wanted: Vec::new() }
    }

    fn write(mut self, root: usize) -> Result<String, GrammarError> {
        let body = self.part(&Expr::Rule(root), ByteSet::EMPTY)?;
        let mut text = format!("start: {body}\n");
        let mut done = 0;
        while let Some(&index) = self.wanted.get(done) {
            done += 1;
            let body = self.part(&self.rules[index].body, self.analysis.follow(index))?;
            writeln!(text, "{}: {body}", self.name(index)).expect("a string takes everything");
            limits::check_size(KIND, text.len())?;
        }
        Ok(text)
    }

    /// A name that Lark takes for a rule's.
    fn name(&self, index: usize) -> String {
        let safe = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        format!("g{index}_{}", self.rules[index].name.chars().map(safe).collect::<String>())
    }

    /// An expression as Lark has it, where `follow` may come behind it.
    fn part(&mut self, expr: &Expr, follow: ByteSet) -> Result<String, GrammarError> {
        if let Some(lexeme) = self.lexeme(std::slice::from_ref(expr), follow)? {
            return Ok(lexeme);
        }
        match expr {
            // Nothing continues what has one length, also where its automaton is too long to look at.
            Expr::Literal(_) | Expr::Class { .. } => {
                let mut expression = String::new();
                self.expression(expr, &mut expression)?;
                Ok(format!("/{expression}/"))
            }
            Expr::Rule(index) => {
                if !self.wanted.contains(index) {
                    self.wanted.push(*index);
                }
                Ok(self.name(*index))
            }
            Expr::Sequence(parts) => self.sequence(parts, follow),
            Expr::Choice(options) => {
                let options = options.iter().map(|option| self.part(option, follow)).collect::<Result<Vec<_>, _>>()?;
                Ok(format!("({})", options.join(" | ")))
            }
            Expr::Repeat(inner, min, max) => {
                let inner = self.part(inner, follow.union(self.analysis.first(inner).0))?;
                Ok(match (min, max) {
                    (0, None) => format!("({inner})*"),
                    (1, None) => format!("({inner})+"),
                    (0, Some(1)) => format!("({inner})?"),
                    (min, None) => format!("({inner}){{{min},}}"),
                    (min, Some(max)) => format!("({inner}){{{min},{max}}}"),
                })
            }
        }
    }

    /// Parts one after the other, as few lexemes as there can be.
    fn sequence(&mut self, parts: &[Expr], follow: ByteSet) -> Result<String, GrammarError> {
        let mut written = Vec::new();
        let mut at = 0;
        while at < parts.len() {
            let num_regular = parts[at..].iter().take_while(|part| self.analysis.is_regular(part)).count();
            let mut end = at + num_regular;
            let shortest = (at + 1).max(end.saturating_sub(MAX_SHORTER));
            let mut lexeme = None;
            while lexeme.is_none() && end > shortest {
                lexeme = self.lexeme(&parts[at..end], self.analysis.behind(&parts[end..], follow))?;
                end -= usize::from(lexeme.is_none());
            }
            match lexeme {
                Some(lexeme) => {
                    written.push(lexeme);
                    at = end;
                }
                None => {
                    written.push(self.part(&parts[at], self.analysis.behind(&parts[at + 1..], follow))?);
                    at += 1;
                }
            }
        }
        Ok(if written.is_empty() { "\"\"".to_owned() } else { written.join(" ") })
    }

    /// The parts as one lexeme, if the longest match of it is the only one.
    fn lexeme(&mut self, parts: &[Expr], follow: ByteSet) -> Result<Option<String>, GrammarError> {
        if !parts.iter().all(|part| self.analysis.is_regular(part)) {
            return Ok(None);
        }
        let mut expression = String::new();
        for part in parts {
            self.expression(part, &mut expression)?;
        }
        if expression.is_empty() {
            return Ok(Some("\"\"".to_owned()));
        }
        if !self.lexemes.contains_key(&expression) {
            let lexeme = Lexeme::new(&expression)?;
            self.lexemes.insert(expression.clone(), lexeme);
        }
        let lexeme = &self.lexemes[&expression];
        if lexeme.continued_by.meets(follow) {
            return Ok(None);
        }
        Ok(Some(if lexeme.may_be_empty { format!("(/{expression}/)?") } else { format!("/{expression}/") }))
    }

    /// A regular expression, references written out.
    fn expression(&self, expr: &Expr, out: &mut String) -> Result<(), GrammarError> {
        if out.len() > MAX_LEXEME_CHARS {
            return Err(GrammarError::invalid(
                KIND,
                format!("a part of it grows beyond {MAX_LEXEME_CHARS} characters"),
            ));
        }
        match expr {
            Expr::Literal(text) => text.chars().for_each(|letter| push_character(letter, out)),
            Expr::Class { ranges, negated } => {
                if ranges.is_empty() {
                    out.push_str("(?s:.)");
                    return Ok(());
                }
                out.push_str(if *negated { "[^" } else { "[" });
                for (low, high) in ranges {
                    push_character(*low, out);
                    if low != high {
                        out.push('-');
                        push_character(*high, out);
                    }
                }
                out.push(']');
            }
            Expr::Rule(index) => self.expression(&self.rules[*index].body, out)?,
            Expr::Sequence(parts) => {
                for part in parts {
                    self.expression(part, out)?;
                }
            }
            Expr::Choice(options) => {
                for (at, option) in options.iter().enumerate() {
                    out.push_str(if at == 0 { "(?:" } else { "|" });
                    self.expression(option, out)?;
                }
                out.push(')');
            }
            Expr::Repeat(inner, min, max) => {
                out.push_str("(?:");
                self.expression(inner, out)?;
                let max = max.map(|max| max.to_string()).unwrap_or_default();
                write!(out, "){{{min},{max}}}").expect("a string takes everything");
            }
        }
        Ok(())
    }
}

/// A character as a regular expression has it, inside a class or out.
fn push_character(letter: char, out: &mut String) {
    if letter.is_ascii_alphanumeric() {
        out.push(letter);
    } else {
        write!(out, "\\x{{{:X}}}", u32::from(letter)).expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests;
