//! Where a JSON array or object ends, byte by byte, and where the values of an object stand.

use std::ops::Range;

/// What a byte did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scanned {
    /// The value goes on.
    More,
    /// The value ends with it.
    End,
    /// No JSON has this byte here.
    Bad,
}

/// A place in a JSON array or object, as far as its end asks.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl JsonScan {
    /// Takes the next byte; the first is the opening bracket.
    pub(super) fn step(&mut self, byte: u8) -> Scanned {
        if self.in_string {
            match byte {
                0..0x20 => return Scanned::Bad,
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return Scanned::More;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b' ' | b'\n' | b'\r' | b'\t' | b':' | b',' | b'+' | b'-' | b'.' => {}
            _ if byte.is_ascii_alphanumeric() => {}
            _ => return Scanned::Bad,
        }
        if self.depth == 0 { Scanned::End } else { Scanned::More }
    }
}

/// The members of a valid JSON object: their names, and where their values stand in it.
pub(super) fn members(object: &str) -> Vec<(String, Range<usize>)> {
    let bytes = object.as_bytes();
    let mut members = Vec::new();
    // Behind the opening bracket.
    let mut at = object.find('{').map_or(object.len(), |start| start + 1);
    while let Some(key) = object.get(at..).and_then(|rest| rest.find('"')) {
        let key_start = at + key;
        let key_end = value_end(bytes, key_start);
        let Some(colon) = object[key_end..].find(':') else { break };
        let value_start = key_end + colon + 1;
        let value_start = value_start + (object[value_start..].len() - object[value_start..].trim_start().len());
        at = value_end(bytes, value_start);
        if let Ok(name) = serde_json::from_str(&object[key_start..key_end]) {
            members.push((name, value_start..at));
        }
    }
    members
}

/// Where the value ends that begins at `start`.
fn value_end(bytes: &[u8], start: usize) -> usize {
    let end_of = |is_end: &mut dyn FnMut(u8) -> bool| {
        bytes[start..].iter().position(|&byte| is_end(byte)).map_or(bytes.len(), |at| start + at)
    };
    match bytes.get(start) {
        Some(b'{' | b'[') => {
            let mut scan = JsonScan::default();
            (end_of(&mut |byte| scan.step(byte) == Scanned::End) + 1).min(bytes.len())
        }
        Some(b'"') => {
            let (mut num_quotes, mut escaped) = (0, false);
            let mut is_end = |byte| {
                let is_quote = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                num_quotes += usize::from(is_quote);
                num_quotes == 2
            };
            (end_of(&mut is_end) + 1).min(bytes.len())
        }
        _ => end_of(&mut |byte| b",}] \n\r\t".contains(&byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_end(text: &str, expected: Scanned, at: usize) {
        let mut scan = JsonScan::default();
        let found = text.bytes().map(|byte| scan.step(byte)).position(|scanned| scanned != Scanned::More);
        assert_eq!(found, Some(at), "{text}");
        let mut scan = JsonScan::default();
        assert_eq!(text.bytes().take(at + 1).map(|byte| scan.step(byte)).last(), Some(expected), "{text}");
    }

    #[test]
    fn the_end_is_where_the_outer_bracket_closes() {
        check_end("{}x", Scanned::End, 1);
        check_end("{\"a\": [1, {\"b\": \"}\\\"]\"}]} ", Scanned::End, 24);
        check_end("{\"a\": <", Scanned::Bad, 6);
        check_end("{\"a\n", Scanned::Bad, 3);
    }

    #[test]
    fn members_are_as_they_were_written() {
        let object = r#" {"a" : {"x": "},"} ,"b\n":"q\"", "c": 1.50e1, "d":[], "e": null}"#;
        let found = members(object);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(name, value)| (name.as_str(), &object[value.clone()])).collect();
        let expected = [("a", r#"{"x": "},"}"#), ("b\n", r#""q\"""#), ("c", "1.50e1"), ("d", "[]"), ("e", "null")];
        assert_eq!(found, expected);
        assert!(members("{}").is_empty());
    }
}
