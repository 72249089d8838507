//! JSON text as Python's `json.dumps` writes it, because chat templates were written, and models trained, with it.
//!
//! It differs from the usual compact form: `", "` and `": "` between items, floats as Python shows them, and nothing
//! escaped for HTML.

use serde_json::Value;

/// The keyword arguments of `json.dumps` that templates use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Style {
    pub(crate) indent: Option<usize>,
    pub(crate) ensure_ascii: bool,
    pub(crate) sort_keys: bool,
    /// Between items, and between a key and its value.
    pub(crate) separators: Option<(String, String)>,
}

/// The text of `value`.
pub(crate) fn dumps(value: &Value, style: &Style) -> String {
    let (item, key) = match &style.separators {
        Some((item, key)) => (item.as_str(), key.as_str()),
        // Python leaves out the blank at the end of a line.
        None if style.indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut writer = Writer { style, item, key, text: String::new() };
    writer.value(value, 0);
    writer.text
}

struct Writer<'a> {
    style: &'a Style,
    item: &'a str,
    key: &'a str,
    text: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            Value::Null => self.text.push_str("null"),
            Value::Bool(flag) => self.text.push_str(if *flag { "true" } else { "false" }),
            Value::Number(number) if number.is_f64() => {
                self.text.push_str(&float(number.as_f64().unwrap_or(f64::NAN)));
            }
            Value::Number(number) => self.text.push_str(&number.to_string()),
            Value::String(text) => self.string(text),
            Value::Array(items) => self.block(('[', ']'), items.len(), depth, |writer, index| {
                writer.value(&items[index], depth + 1);
            }),
            Value::Object(object) => {
                let mut entries: Vec<(&String, &Value)> = object.iter().collect();
                if self.style.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.block(('{', '}'), entries.len(), depth, |writer, index| {
                    let (key, value) = entries[index];
                    writer.string(key);
                    writer.text.push_str(writer.key);
                    writer.value(value, depth + 1);
                });
            }
        }
    }

    fn block(&mut self, brackets: (char, char), len: usize, depth: usize, write: impl Fn(&mut Self, usize)) {
        self.text.push(brackets.0);
        for index in 0..len {
            if index > 0 {
                self.text.push_str(self.item);
            }
            self.new_line(depth + 1);
            write(self, index);
        }
        if len > 0 {
            self.new_line(depth);
        }
        self.text.push(brackets.1);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                _ if letter < ' ' || (self.style.ensure_ascii && !letter.is_ascii()) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        self.text.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.text.push(letter),
            }
        }
        self.text.push('"');
    }
}

/// The shortest digits that give the number back; an exponent, of at least two digits, outside 1e-4..1e16.
fn float(number: f64) -> String {
    let magnitude = number.abs();
    if number == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    match text.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?))) {
        Some((digits, exponent)) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Expected texts are what Python 3.11's json.dumps gives.
    fn check(value: &Value, style: &Style, expected: &str) {
        assert_eq!(dumps(value, style), expected);
    }

    #[test]
    fn items_are_spaced_and_nothing_is_escaped_for_html() {
        let value = json!({"b": "<é'&>", "a": [1, 2.0, null, true], "c": {}, "d": []});
        check(&value, &Style::default(), r#"{"b": "<é'&>", "a": [1, 2.0, null, true], "c": {}, "d": []}"#);
    }

    #[test]
    fn an_indent_puts_each_item_on_its_line() {
        let style = Style { indent: Some(2), ..Style::default() };
        check(
            &json!({"a": [1, {"x": 2}], "b": []}),
            &style,
            "{\n  \"a\": [\n    1,\n    {\n      \"x\": 2\n    }\n  ],\n  \"b\": []\n}",
        );
    }

    #[test]
    fn control_characters_and_on_request_all_of_unicode_are_escaped() {
        check(
            &json!("a\"\\\n\t\u{8}\u{c}\u{1}\u{7f}é🦀"),
            &Style::default(),
            "\"a\\\"\\\\\\n\\t\\b\\f\\u0001\u{7f}é🦀\"",
        );
        let style = Style { ensure_ascii: true, ..Style::default() };
        check(&json!("é🦀"), &style, r#""\u00e9\ud83e\udd80""#);
    }

    #[test]
    fn keys_can_be_sorted_and_separators_given() {
        let style = Style { sort_keys: true, separators: Some((",".into(), ":".into())), ..Style::default() };
        check(&json!({"b": 1, "a": [2, 3]}), &style, r#"{"a":[2,3],"b":1}"#);
    }

    #[test]
    fn floats_are_written_as_python_shows_them() {
        for (number, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.2345e20, "1.2345e+20"),
            (-2.5e100, "-2.5e+100"),
        ] {
            assert_eq!(float(number), expected);
        }
    }
}
