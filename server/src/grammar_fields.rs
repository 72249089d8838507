//! The fields that ask for an answer of a certain form, under the names of OpenAI (`response_format`), vLLM
//! (`structured_outputs`, `guided_*`), SGLang (`regex`, `ebnf`), llama.cpp (`grammar`, `json_schema`), TGI (`value` of
//! `response_format`) and mistral.rs (`grammar` of a `type`).
//!
//! One request, one form: two of them are refused rather than one of them ignored.

use serde_json::Value;
use taper_text::GrammarSpec;

use crate::errors::ApiError;
use crate::fields::{Fields, show};

/// The form that answers must have.
#[derive(Debug, Clone)]
pub(crate) struct Form {
    /// The field that asks for it.
    pub(crate) field: &'static str,
    pub(crate) spec: GrammarSpec,
    /// What it was put together from, if it was: an error is of the first part that fails by itself.
    pub(crate) parts: Vec<FormPart>,
}

/// A part of a form, and the field that it came in.
#[derive(Debug, Clone)]
pub(crate) struct FormPart {
    pub(crate) field: String,
    pub(crate) spec: GrammarSpec,
}

/// Takes all such fields; `None` if no form is asked for.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let mut asked = Asked(None);
    asked.add("response_format", response_format(fields)?)?;
    if let Some(mut nested) = fields.object("structured_outputs")? {
        structured_outputs(&mut nested, &mut asked)?;
    }
    asked.add("guided_json", schema(fields, "guided_json")?)?;
    asked.add("guided_regex", text(fields, "guided_regex")?.map(GrammarSpec::Regex))?;
    asked.add("guided_choice", choice(fields, "guided_choice")?)?;
    asked.add("guided_grammar", text(fields, "guided_grammar")?.map(GrammarSpec::grammar))?;
    asked.add("regex", text(fields, "regex")?.map(GrammarSpec::Regex))?;
    asked.add("ebnf", text(fields, "ebnf")?.map(GrammarSpec::grammar))?;
    asked.add("grammar", grammar(fields)?)?;
    asked.add("json_schema", schema(fields, "json_schema")?)?;
    // Which library makes the masks changes nothing in the answer.
    fields.take("guided_decoding_backend");
    refuse_whitespace(fields, "guided_whitespace_pattern")?;
    Ok(asked.0)
}

/// The form asked for so far.
struct Asked(Option<Form>);

impl Asked {
    fn add(&mut self, field: &'static str, spec: Option<GrammarSpec>) -> Result<(), ApiError> {
        let Some(spec) = spec else { return Ok(()) };
        if let Some(Form { field: first, .. }) = &self.0 {
            let message = format!("{first} and {field} both ask for a form of the answer; give one of them");
            return Err(ApiError::invalid(field, message));
        }
        self.0 = Some(Form { field, spec, parts: Vec::new() });
        Ok(())
    }
}

/// OpenAI's field. The schema is followed whether or not `strict` is set: there is no weaker way here.
fn response_format(fields: &mut Fields) -> Result<Option<GrammarSpec>, ApiError> {
    const KINDS: &str = "text, json_object, json_schema or regex";
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind = format.string("type")?;
    match kind.as_deref() {
        Some("text") => Ok(None),
        // llama.cpp takes a schema here too.
        Some("json_object" | "json") => match schema(&mut format, "schema")? {
            Some(spec) => Ok(Some(spec)),
            None => Ok(Some(schema(&mut format, "value")?.unwrap_or(GrammarSpec::JsonObject))),
        },
        Some("json_schema") => {
            let spec = match (format.object("json_schema")?, format.has("value")) {
                (Some(nested), _) => named_schema(nested)?,
                (None, true) => schema_or_named(&mut format, "value")?,
                (None, false) => schema(&mut format, "schema")?,
            };
            let name = "response_format.json_schema.schema";
            let missing = || ApiError::missing(name, format!("{name} must be given where the type is json_schema"));
            spec.map(Some).ok_or_else(missing)
        }
        Some("regex") => needed(text(&mut format, "value")?.map(GrammarSpec::Regex), &format),
        Some(kind @ "structural_tag") => {
            let message = format!("response_format.type must be {KINDS}; {kind} is not supported by this server");
            Err(ApiError::unsupported("response_format.type", message))
        }
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), |kind| show(&Value::from(kind)));
            let message = format!("response_format.type must be {KINDS}, got {got}");
            Err(ApiError::invalid("response_format.type", message))
        }
    }
}

/// A schema beside its name, as OpenAI has it.
fn named_schema(mut nested: Fields) -> Result<Option<GrammarSpec>, ApiError> {
    nested.boolean("strict")?;
    schema(&mut nested, "schema")
}

/// A schema, or one beside its name: an object with a `schema` that is none of JSON Schema's words.
fn schema_or_named(fields: &mut Fields, field: &str) -> Result<Option<GrammarSpec>, ApiError> {
    let is_named = fields.is_object_with(field, "schema");
    if !is_named {
        return schema(fields, field);
    }
    fields.object(field)?.map_or(Ok(None), named_schema)
}

/// `grammar`: a text as llama.cpp has it, or an object of a type and a value, as mistral.rs has it and TGI.
fn grammar(fields: &mut Fields) -> Result<Option<GrammarSpec>, ApiError> {
    const FIELD: &str = "grammar";
    if !fields.is_object(FIELD) {
        return Ok(text(fields, FIELD)?.map(GrammarSpec::grammar));
    }
    let Some(mut nested) = fields.object(FIELD)? else { return Ok(None) };
    let kind = nested.string("type")?;
    let spec = match kind.as_deref() {
        Some("regex") => text(&mut nested, "value")?.map(GrammarSpec::Regex),
        Some("json_schema" | "json" | "json_object") => schema_or_named(&mut nested, "value")?,
        Some("lark") => text(&mut nested, "value")?.map(GrammarSpec::Lark),
        Some("llguidance") => llguidance(&mut nested)?,
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), |kind| show(&Value::from(kind)));
            let message = format!("grammar.type must be regex, json_schema, lark or llguidance, got {got}");
            return Err(ApiError::invalid("grammar.type", message));
        }
    };
    needed(spec, &nested)
}

/// llguidance's own form: a list of grammars that refer to each other, of which there may be one here.
fn llguidance(nested: &mut Fields) -> Result<Option<GrammarSpec>, ApiError> {
    let Some(mut value) = nested.object("value")? else { return Ok(None) };
    let name = value.name_of("grammars");
    let items = value.array("grammars")?.unwrap_or_default();
    let num = items.len();
    let mut items = items.into_iter();
    let (Some(item), None) = (items.next(), items.next()) else {
        let message = format!("{name} must be an array of one grammar on this server, got {num}");
        return Err(ApiError::unsupported(name, message));
    };
    if let Some(most) = value.take("max_tokens") {
        let name = value.name_of("max_tokens");
        let message = format!("{name} is not supported by this server; give max_tokens (got {})", show(&most));
        return Err(ApiError::unsupported(name, message));
    }
    let mut item = Fields::nested(&format!("{name}[0]"), item)?;
    let lark = text(&mut item, "lark_grammar")?.map(GrammarSpec::Lark);
    let schema = schema(&mut item, "json_schema")?;
    match (lark, schema) {
        (Some(_), Some(_)) | (None, None) => {
            let name = format!("{name}[0]");
            let message = format!("{name} must have either lark_grammar or json_schema");
            Err(ApiError::invalid(name, message))
        }
        (lark, schema) => Ok(lark.or(schema)),
    }
}

/// A form that must be there, in the field `value` of an object.
fn needed(spec: Option<GrammarSpec>, object: &Fields) -> Result<Option<GrammarSpec>, ApiError> {
    let name = object.name_of("value");
    spec.map(Some).ok_or_else(|| ApiError::missing(&name, format!("{name} is missing; it is the form itself")))
}

/// vLLM's field of fields.
fn structured_outputs(nested: &mut Fields, asked: &mut Asked) -> Result<(), ApiError> {
    asked.add("structured_outputs.json", schema(nested, "json")?)?;
    asked.add("structured_outputs.regex", text(nested, "regex")?.map(GrammarSpec::Regex))?;
    asked.add("structured_outputs.choice", choice(nested, "choice")?)?;
    asked.add("structured_outputs.grammar", text(nested, "grammar")?.map(GrammarSpec::grammar))?;
    let json_object = nested.boolean("json_object")?.unwrap_or(false);
    asked.add("structured_outputs.json_object", json_object.then_some(GrammarSpec::JsonObject))?;
    refuse_whitespace(nested, "whitespace_pattern")?;
    if let Some(tag) = nested.take("structural_tag") {
        let name = "structured_outputs.structural_tag";
        let message = format!("{name} is not supported by this server; leave it out (got {})", show(&tag));
        return Err(ApiError::unsupported(name, message));
    }
    Ok(())
}

/// A schema, as an object or as its text.
pub(crate) fn schema(fields: &mut Fields, field: &str) -> Result<Option<GrammarSpec>, ApiError> {
    let invalid = |fields: &Fields, problem: String| {
        let name = fields.name_of(field);
        Err(ApiError::invalid(name.clone(), format!("{name} must be a JSON schema, {problem}")))
    };
    match fields.take(field) {
        None => Ok(None),
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Some(GrammarSpec::JsonSchema(schema))),
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Some(GrammarSpec::JsonSchema(schema))),
            Ok(other) => invalid(fields, format!("and its text is {}", show(&other))),
            Err(error) => invalid(fields, format!("and its text is not JSON: {error}")),
        },
        Some(other) => invalid(fields, format!("got {}", show(&other))),
    }
}

/// A string; an empty one asks for nothing.
fn text(fields: &mut Fields, field: &str) -> Result<Option<String>, ApiError> {
    Ok(fields.string(field)?.filter(|text| !text.is_empty()))
}

/// An array of strings; an empty one asks for nothing.
fn choice(fields: &mut Fields, field: &str) -> Result<Option<GrammarSpec>, ApiError> {
    let Some(items) = fields.array(field)?.filter(|items| !items.is_empty()) else { return Ok(None) };
    let name = fields.name_of(field);
    let string = |item: Value| match item {
        Value::String(text) if !text.is_empty() => Ok(text),
        other => Err(ApiError::invalid(
            name.clone(),
            format!("{name} must be an array of strings that are not empty, and has {}", show(&other)),
        )),
    };
    Ok(Some(GrammarSpec::Choice(items.into_iter().map(string).collect::<Result<_, _>>()?)))
}

/// JSON is written on one line here; another pattern would be a promise that is not kept.
fn refuse_whitespace(fields: &mut Fields, field: &str) -> Result<(), ApiError> {
    let Some(pattern) = text(fields, field)? else { return Ok(()) };
    let name = fields.name_of(field);
    let message = format!("{name} is not supported by this server; leave it out (got {})", show(&Value::from(pattern)));
    Err(ApiError::unsupported(name, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Option<GrammarSpec>, ApiError> {
        let Value::Object(object) = body else { panic!("tests give objects") };
        let mut fields = Fields::new(object);
        let form = take(&mut fields)?;
        assert!(fields.into_rest().is_empty(), "every field was taken");
        Ok(form.map(|form| form.spec))
    }

    fn check(body: Value, expected: &GrammarSpec) {
        let shown = body.to_string();
        assert_eq!(read(body).unwrap().as_ref(), Some(expected), "{shown}");
    }

    fn check_refused(body: Value, param: &str, parts: &[&str]) {
        let shown = body.to_string();
        let error = read(body).expect_err("should be refused");
        assert_eq!(error.status(), 400);
        assert_eq!(error.to_json()["error"]["param"], param, "{shown}");
        for part in parts {
            assert!(error.message().contains(part), "no {part:?} in {}", error.message());
        }
    }

    #[test]
    fn openais_formats_are_read() {
        let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
        let expected = GrammarSpec::JsonSchema(schema.clone());
        assert_eq!(read(json!({"response_format": {"type": "text"}})).unwrap(), None);
        check(json!({"response_format": {"type": "json_object"}}), &GrammarSpec::JsonObject);
        for strict in [json!(true), json!(false), Value::Null] {
            let format = json!({"name": "n", "description": "d", "strict": strict, "schema": schema});
            check(json!({"response_format": {"type": "json_schema", "json_schema": format}}), &expected);
        }
        check(json!({"response_format": {"type": "json_object", "schema": schema}}), &expected);
        check(json!({"response_format": {"type": "json_schema", "schema": schema}}), &expected);
    }

    #[test]
    fn vllms_fields_are_read() {
        let schema = json!({"type": "integer"});
        let json_schema = GrammarSpec::JsonSchema(schema.clone());
        let regex = GrammarSpec::Regex("a+".to_owned());
        let choice = GrammarSpec::Choice(vec!["yes".to_owned(), "no".to_owned()]);
        let lark = GrammarSpec::Lark("start: \"a\"".to_owned());
        for prefix in ["guided_", ""] {
            let body = |name: &str, value: Value| match prefix {
                "" => json!({"structured_outputs": {name: value}}),
                _ => json!({format!("{prefix}{name}"): value, "guided_decoding_backend": "outlines"}),
            };
            check(body("json", schema.clone()), &json_schema);
            check(body("json", json!(schema.to_string())), &json_schema);
            check(body("regex", json!("a+")), &regex);
            check(body("choice", json!(["yes", "no"])), &choice);
            check(body("grammar", json!("start: \"a\"")), &lark);
        }
        check(json!({"structured_outputs": {"json_object": true}}), &GrammarSpec::JsonObject);
    }

    #[test]
    fn llama_cpps_and_sglangs_fields_are_read() {
        let gbnf = GrammarSpec::Gbnf("root ::= \"a\"".to_owned());
        check(json!({"grammar": "root ::= \"a\""}), &gbnf);
        check(json!({"ebnf": "root ::= \"a\""}), &gbnf);
        check(json!({"regex": "a|b"}), &GrammarSpec::Regex("a|b".to_owned()));
        check(json!({"json_schema": {}}), &GrammarSpec::JsonSchema(json!({})));
    }

    #[test]
    fn forms_of_a_type_and_a_value_are_read() {
        let schema = json!({"type": "integer"});
        let json_schema = GrammarSpec::JsonSchema(schema.clone());
        let regex = GrammarSpec::Regex("a+".to_owned());
        let lark = GrammarSpec::Lark("start: \"a\"".to_owned());
        let both = |kind: &str, value: &Value, expected: &GrammarSpec| {
            check(json!({"grammar": {"type": kind, "value": value}}), expected);
            check(json!({"response_format": {"type": kind, "value": value}}), expected);
        };
        both("regex", &json!("a+"), &regex);
        for kind in ["json_schema", "json"] {
            both(kind, &schema, &json_schema);
            both(kind, &json!(schema.to_string()), &json_schema);
        }
        both("json_schema", &json!({"name": "n", "schema": schema}), &json_schema);
        check(json!({"grammar": {"type": "lark", "value": "start: \"a\""}}), &lark);
        let of_one = |one: Value| json!({"grammar": {"type": "llguidance", "value": {"grammars": [one]}}});
        check(of_one(json!({"lark_grammar": "start: \"a\""})), &lark);
        check(of_one(json!({"json_schema": schema})), &json_schema);
    }

    #[test]
    fn forms_of_a_type_and_a_value_that_are_none_are_refused_by_their_place() {
        let grammar = |kind: &str, value: Value| json!({"grammar": {"type": kind, "value": value}});
        check_refused(grammar("xml", json!("a")), "grammar.type", &["xml", "llguidance"]);
        check_refused(grammar("regex", json!(5)), "grammar.value", &["a string"]);
        check_refused(grammar("regex", json!(null)), "grammar.value", &["missing"]);
        check_refused(grammar("json_schema", json!(5)), "grammar.value", &["5"]);
        check_refused(json!({"response_format": {"type": "regex"}}), "response_format.value", &["missing"]);
        check_refused(
            json!({"response_format": {"type": "structural_tag"}}),
            "response_format.type",
            &["not supported"],
        );
        let several = json!({"grammars": [{"lark_grammar": "a"}, {"lark_grammar": "b"}]});
        check_refused(grammar("llguidance", several), "grammar.value.grammars", &["one grammar", "got 2"]);
        let limited = json!({"grammars": [{"lark_grammar": "a"}], "max_tokens": 5});
        check_refused(grammar("llguidance", limited), "grammar.value.max_tokens", &["not supported"]);
        let neither = json!({"grammars": [{}]});
        check_refused(grammar("llguidance", neither), "grammar.value.grammars[0]", &["lark_grammar"]);
        check_refused(
            json!({"grammar": {"type": "regex", "value": "a"}, "regex": "b"}),
            "grammar",
            &["regex and grammar"],
        );
    }

    #[test]
    fn nothing_and_empty_values_ask_for_nothing() {
        let body = json!({
            "response_format": null, "structured_outputs": {}, "guided_json": null, "guided_regex": "",
            "guided_choice": [], "guided_grammar": null, "grammar": "", "json_schema": null, "regex": "", "ebnf": "",
        });
        assert_eq!(read(body).unwrap(), None);
        assert_eq!(read(json!({"structured_outputs": {"json_object": false, "json": null}})).unwrap(), None);
    }

    #[test]
    fn two_forms_in_one_request_are_refused_and_both_are_named() {
        let json_object = json!({"type": "json_object"});
        check_refused(
            json!({"response_format": json_object, "grammar": "g"}),
            "grammar",
            &["response_format", "grammar"],
        );
        check_refused(
            json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}),
            "structured_outputs.choice",
            &["structured_outputs.regex"],
        );
        check_refused(json!({"guided_json": {}, "json_schema": {}}), "json_schema", &["guided_json"]);
    }

    #[test]
    fn values_that_are_no_form_are_refused_by_name() {
        check_refused(json!({"response_format": "json"}), "response_format", &["an object"]);
        check_refused(json!({"response_format": {"type": "xml"}}), "response_format.type", &["xml", "json_object"]);
        check_refused(json!({"response_format": {}}), "response_format.type", &["nothing"]);
        let missing = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}});
        check_refused(missing, "response_format.json_schema.schema", &["must be given"]);
        check_refused(json!({"guided_json": "{"}), "guided_json", &["not JSON"]);
        check_refused(json!({"guided_json": 5}), "guided_json", &["5"]);
        check_refused(json!({"guided_choice": ["a", 1]}), "guided_choice", &["has 1"]);
        check_refused(json!({"structured_outputs": {"regex": 1}}), "structured_outputs.regex", &["a string"]);
        check_refused(json!({"guided_whitespace_pattern": " *"}), "guided_whitespace_pattern", &["not supported"]);
        let tag = json!({"structured_outputs": {"structural_tag": {}}});
        check_refused(tag, "structured_outputs.structural_tag", &["not supported"]);
    }
}
