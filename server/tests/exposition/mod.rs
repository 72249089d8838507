//! A strict reader of Prometheus' text format, version 0.0.4. Stricter than the format where ours has no reason to be lax:
//! every family has its help and type, in this order, and its samples directly after them.

use std::collections::{BTreeMap, BTreeSet};

/// One line with a value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// A metric with all its samples.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) samples: Vec<Sample>,
}

/// The families by name; anything that is not as it should be is a failed assertion.
pub(crate) fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line has no end");
    let mut families = BTreeMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = header(line, "# HELP ");
        assert!(is_name(name, true) && !help.is_empty(), "{line}");
        let (typed, kind) = header(lines.next().expect("a type after the help"), "# TYPE ");
        assert_eq!(typed, name, "help and type are of one family");
        let mut samples = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            samples.push(sample(line));
        }
        let family = Family { kind: kind.to_owned(), samples };
        check(name, &family);
        assert!(families.insert(name.to_owned(), family).is_none(), "{name} is there twice");
    }
    families
}

fn header<'a>(line: &'a str, begin: &str) -> (&'a str, &'a str) {
    let rest = line.strip_prefix(begin).unwrap_or_else(|| panic!("{begin:?} should begin {line:?}"));
    rest.split_once(' ').unwrap_or_else(|| panic!("a name and more: {line:?}"))
}

fn is_name(name: &str, may_have_colon: bool) -> bool {
    let is_letter = |char: char| char.is_ascii_alphabetic() || char == '_' || (may_have_colon && char == ':');
    name.starts_with(is_letter) && name.chars().all(|char| is_letter(char) || char.is_ascii_digit())
}

fn sample(line: &str) -> Sample {
    let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("labels: {line:?}"));
    let (labels, rest) = labels(rest);
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("a blank before the value: {line:?}"));
    let value = value.parse().unwrap_or_else(|_| panic!("a number and no time stamp: {line:?}"));
    Sample { name: name.to_owned(), labels, value }
}

/// Reads `name="value",...}` and returns what follows.
fn labels(mut rest: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    loop {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("a label: {rest:?}"));
        assert!(is_name(name, false), "{name:?} is no name of a label");
        let (value, after) = quoted(after);
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} is there twice");
        match after.split_at(1) {
            (",", after) => rest = after,
            ("}", after) => return (labels, after),
            _ => panic!("a comma or the end of the labels: {after:?}"),
        }
    }
}

/// Reads to the closing quote and returns what follows it.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((place, char)) = chars.next() {
        match char {
            '"' => return (value, &text[place + 1..]),
            '\\' => value.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, char @ ('\\' | '"'))) => char,
                other => panic!("{other:?} is not escaped: {text:?}"),
            }),
            char => value.push(char),
        }
    }
    panic!("no closing quote: {text:?}")
}

fn check(name: &str, family: &Family) {
    let Family { kind, samples } = family;
    assert!(!samples.is_empty(), "{name} has no sample");
    let mut seen = BTreeSet::new();
    for sample in samples {
        assert!(seen.insert((&sample.name, &sample.labels)), "{sample:?} is there twice");
        assert!(sample.value >= 0.0, "{sample:?}: nothing here is negative or NaN");
    }
    match kind.as_str() {
        "histogram" => {
            let series = |sample: &Sample| {
                let mut labels = sample.labels.clone();
                labels.remove("le");
                labels
            };
            for one in samples.iter().map(series).collect::<BTreeSet<_>>() {
                let of_one = samples.iter().filter(|sample| series(sample) == one);
                check_histogram(name, &of_one.cloned().collect::<Vec<_>>());
            }
        }
        "counter" | "gauge" => {
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
            assert!(samples.iter().all(|sample| sample.name == name), "{samples:?}");
        }
        kind => panic!("{name} is a {kind}"),
    }
}

/// Of one set of labels. The bounds rise to infinity, the counts with them, to the count of all.
fn check_histogram(name: &str, samples: &[Sample]) {
    let named = |suffix: &'static str| samples.iter().filter(move |sample| sample.name == format!("{name}{suffix}"));
    let one = |suffix| match &named(suffix).collect::<Vec<_>>()[..] {
        [sample] => sample.value,
        samples => panic!("one {suffix} of {name}, not {samples:?}"),
    };
    let bound = |sample: &Sample| sample.labels["le"].parse::<f64>().expect("a bound is a number");
    let buckets: Vec<(f64, f64)> = named("_bucket").map(|sample| (bound(sample), sample.value)).collect();
    assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name}: {buckets:?}");
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, one("_count"))), "{name}");
    assert_eq!(buckets.len() + 2, samples.len(), "{name} has samples besides sum, count and buckets");
    assert!(one("_count") > 0.0 || one("_sum") == 0.0, "{name} has a sum of nothing");
}
