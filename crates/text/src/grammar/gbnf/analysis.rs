//! What grammars' rules begin with, what may come behind them, and which of them are regular.

use std::collections::HashSet;

use super::Expr;
use super::parser::Rule;
use super::sets::ByteSet;

/// What is known of all rules of a grammar.
pub(super) struct Analysis {
    /// Rules that reach themselves, or a rule that does.
    recursive: Vec<bool>,
    /// What a rule begins with, and whether it may be empty.
    first: Vec<(ByteSet, bool)>,
    /// What may come behind a rule.
    follow: Vec<ByteSet>,
}

impl Analysis {
    pub(super) fn new(rules: &[Rule]) -> Analysis {
        let mut analysis = Analysis {
            recursive: recursive(rules),
            first: vec![(ByteSet::EMPTY, false); rules.len()],
            follow: vec![ByteSet::EMPTY; rules.len()],
        };
        loop {
            let first: Vec<_> = rules.iter().map(|rule| analysis.first(&rule.body)).collect();
            if first == analysis.first {
                break;
            }
            analysis.first = first;
        }
        loop {
            let mut follow = analysis.follow.clone();
            for (rule, behind) in rules.iter().zip(&analysis.follow) {
                analysis.note_follow(&rule.body, *behind, &mut follow);
            }
            if follow == analysis.follow {
                return analysis;
            }
            analysis.follow = follow;
        }
    }

    /// What may come behind a rule.
    pub(super) fn follow(&self, rule: usize) -> ByteSet {
        self.follow[rule]
    }

    /// Whether it refers to no rule that reaches itself.
    pub(super) fn is_regular(&self, expr: &Expr) -> bool {
        references(expr).into_iter().all(|rule| !self.recursive[rule])
    }

    /// What the expression begins with, and whether it may be empty, as far as the rules are known.
    pub(super) fn first(&self, expr: &Expr) -> (ByteSet, bool) {
        match expr {
            Expr::Literal(text) => (text.bytes().take(1).fold(ByteSet::EMPTY, ByteSet::with), text.is_empty()),
            Expr::Class { ranges, negated } => (ByteSet::of_class(ranges, *negated), false),
            Expr::Rule(index) => self.first[*index],
            Expr::Sequence(parts) => {
                let mut first = ByteSet::EMPTY;
                for part in parts {
                    let (of_part, may_be_empty) = self.first(part);
                    first = first.union(of_part);
                    if !may_be_empty {
                        return (first, false);
                    }
                }
                (first, true)
            }
            Expr::Choice(options) => options
                .iter()
                .map(|option| self.first(option))
                .fold((ByteSet::EMPTY, false), |(first, may_be_empty), (of_option, option_may)| {
                    (first.union(of_option), may_be_empty || option_may)
                }),
            Expr::Repeat(inner, min, _) => {
                let (first, may_be_empty) = self.first(inner);
                (first, may_be_empty || *min == 0)
            }
        }
    }

    /// What may come before `parts` end, where `follow` comes behind them.
    pub(super) fn behind(&self, parts: &[Expr], follow: ByteSet) -> ByteSet {
        let mut behind = ByteSet::EMPTY;
        for part in parts {
            let (first, may_be_empty) = self.first(part);
            behind = behind.union(first);
            if !may_be_empty {
                return behind;
            }
        }
        behind.union(follow)
    }

    /// Adds what may come behind each rule in `expr`, where `behind` may come behind it all.
    fn note_follow(&self, expr: &Expr, behind: ByteSet, follow: &mut [ByteSet]) {
        match expr {
            Expr::Literal(_) | Expr::Class { .. } => {}
            Expr::Rule(index) => follow[*index] = follow[*index].union(behind),
            Expr::Sequence(parts) => {
                for (at, part) in parts.iter().enumerate() {
                    self.note_follow(part, self.behind(&parts[at + 1..], behind), follow);
                }
            }
            Expr::Choice(options) => options.iter().for_each(|option| self.note_follow(option, behind, follow)),
            Expr::Repeat(inner, ..) => self.note_follow(inner, behind.union(self.first(inner).0), follow),
        }
    }
}

/// The rules that an expression refers to directly.
fn references(expr: &Expr) -> Vec<usize> {
    match expr {
        Expr::Literal(_) | Expr::Class { .. } => Vec::new(),
        Expr::Rule(index) => vec![*index],
        Expr::Sequence(parts) | Expr::Choice(parts) => parts.iter().flat_map(references).collect(),
        Expr::Repeat(inner, ..) => references(inner),
    }
}

/// The rules that reach a rule which reaches itself: all but those that remain without references when rules without
/// references are taken away again and again.
fn recursive(rules: &[Rule]) -> Vec<bool> {
    let mut waits_for: Vec<HashSet<usize>> =
        rules.iter().map(|rule| references(&rule.body).into_iter().collect()).collect();
    let mut used_by: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    for (rule, references) in waits_for.iter().enumerate() {
        references.iter().for_each(|&reference| used_by[reference].push(rule));
    }
    let mut settled: Vec<usize> = (0..rules.len()).filter(|&rule| waits_for[rule].is_empty()).collect();
    let mut recursive = vec![true; rules.len()];
    while let Some(rule) = settled.pop() {
        recursive[rule] = false;
        for &user in &used_by[rule] {
            if waits_for[user].remove(&rule) && waits_for[user].is_empty() {
                settled.push(user);
            }
        }
    }
    recursive
}
