//! Objects of JSON that are text from the beginning. As a tree of values a large one takes up to twenty times the memory, and one
//! for each token of a stream is made only to be written and thrown away.

use std::fmt::Write;

use serde_json::Value;

/// An object that more fields can be added to. It has one already.
#[derive(Debug, Clone)]
pub(crate) struct OpenObject {
    /// Without the last brace.
    text: String,
}

impl OpenObject {
    /// Begins with these fields, of which there is one at least.
    pub(crate) fn of(fields: &Value) -> OpenObject {
        let mut text = fields.to_string();
        debug_assert!(text.starts_with("{\""), "an object with a field: {text}");
        text.pop();
        OpenObject { text }
    }

    /// Adds a field. The name is written as it is.
    pub(crate) fn add(&mut self, name: &str, value: &Value) {
        self.name(name);
        self.write(value);
    }

    /// Adds a field that is an array, of which one element exists at a time.
    pub(crate) fn add_array(&mut self, name: &str, elements: impl IntoIterator<Item = Value>) {
        self.name(name);
        self.text.push('[');
        for (place, element) in elements.into_iter().enumerate() {
            if place > 0 {
                self.text.push(',');
            }
            self.write(&element);
        }
        self.text.push(']');
    }

    /// Adds the fields of another object.
    pub(crate) fn add_all(&mut self, fields: &Value) {
        for (name, value) in fields.as_object().into_iter().flatten() {
            self.add(name, value);
        }
    }

    /// The whole object.
    pub(crate) fn close(mut self) -> String {
        self.text.push('}');
        self.text
    }

    fn name(&mut self, name: &str) {
        self.text.push_str(",\"");
        self.text.push_str(name);
        self.text.push_str("\":");
    }

    fn write(&mut self, value: &Value) {
        write!(self.text, "{value}").expect("a string takes what is written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_those_that_were_added_in_their_order() {
        let mut object = OpenObject::of(&json!({ "id": "a\"b" }));
        object.add("usage", &Value::Null);
        object.add_array("choices", [json!({ "text": "\n" }), json!(2)]);
        object.add_array("none", []);
        object.add_all(&json!({ "x": 1, "y": [true] }));
        object.add_all(&json!({}));
        let text = object.close();
        assert_eq!(text, r#"{"id":"a\"b","usage":null,"choices":[{"text":"\n"},2],"none":[],"x":1,"y":[true]}"#);
        assert!(serde_json::from_str::<Value>(&text).is_ok());
    }
}
