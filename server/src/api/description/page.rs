//! The description as one HTML page: the endpoints by group, then the schemas that they refer to. It has no scripts and loads
//! nothing.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

/// Stands in the page where each answer has a word of its own, which its content security policy names.
pub(super) const NONCE: &str = "@nonce@";

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
    code{font:0.9em ui-monospace,monospace}h2{margin-top:3rem;border-bottom:1px solid #ccc}h3{margin-top:2rem}\
    table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-top:1px solid #eee}\
    .method{display:inline-block;min-width:3.5rem;color:#555}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}a{color:#8bf}td,th{border-color:#333}.method{color:#aaa}}";

/// Writes the page.
pub(super) fn write(document: &Value) -> String {
    let info = &document["info"];
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Taper's API</title><meta name=\"viewport\" \
         content=\"width=device-width\"><style nonce=\"{NONCE}\">{STYLE}</style></head><body>\n<h1>Taper's API</h1>\n<p>Version {}. {}</p>\n\
         <p>The same for programs: <a href=\"/openapi.json\">/openapi.json</a>.</p>\n",
        text(&info["version"]),
        text(&info["description"])
    );
    for (tag, operations) in groups(document) {
        push(&mut page, format_args!("<h2>{}</h2>\n", escape(tag)));
        for (method, path, operation) in operations {
            write_operation(&mut page, method, path, operation);
        }
    }
    page.push_str("<h2>schemas</h2>\n");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        let name = escape(name);
        push(&mut page, format_args!("<h3 id=\"{name}\"><code>{name}</code></h3>\n"));
        write_schema(&mut page, schema);
    }
    page.push_str("</body></html>\n");
    page
}

/// Method, path and what is told of it, by tag.
fn groups(document: &Value) -> BTreeMap<&str, Vec<(&str, &str, &Value)>> {
    let mut groups: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let tag = operation["tags"][0].as_str().unwrap_or_default();
            groups.entry(tag).or_default().push((method.as_str(), path.as_str(), operation));
        }
    }
    groups
}

fn write_operation(page: &mut String, method: &str, path: &str, operation: &Value) {
    let (method, path) = (method.to_uppercase(), escape(path));
    push(page, format_args!("<h3><code><span class=\"method\">{method}</span> {path}</code></h3>\n"));
    push(page, format_args!("<p>{}.</p>\n", text(&operation["summary"])));
    let parameters: Vec<&Value> = operation["parameters"].as_array().into_iter().flatten().collect();
    if !parameters.is_empty() {
        page.push_str("<table>");
        for parameter in parameters {
            let name = format!("{} ({})", text(&parameter["name"]), text(&parameter["in"]));
            write_row(page, &name, &parameter["schema"]);
        }
        page.push_str("</table>\n");
    }
    for (_, media) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
        push(page, format_args!("<p>Takes {}.</p>\n", kind(&media["schema"])));
        write_fields(page, &media["schema"]);
    }
    for (name, media) in operation["responses"]["200"]["content"].as_object().into_iter().flatten() {
        push(page, format_args!("<p>Answers <code>{}</code>: {}.</p>\n", escape(name), kind(&media["schema"])));
        write_fields(page, &media["schema"]);
    }
}

fn write_schema(page: &mut String, schema: &Value) {
    if schema["properties"].is_object() {
        write_fields(page, schema);
    } else {
        push(page, format_args!("<p>{}. {}</p>\n", kind(schema), text(&schema["description"])));
    }
}

/// A table of the fields of an object.
fn write_fields(page: &mut String, schema: &Value) {
    let Some(fields) = schema["properties"].as_object() else { return };
    page.push_str("<table>");
    for (name, field) in fields {
        write_row(page, &escape(name), field);
    }
    page.push_str("</table>\n");
}

fn write_row(page: &mut String, name: &str, schema: &Value) {
    let (kind, about) = (kind(schema), text(&schema["description"]));
    push(page, format_args!("<tr><td><code>{name}</code></td><td>{kind}</td><td>{about}</td></tr>\n"));
}

/// What a schema allows, in a few words.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = escape(reference.trim_start_matches("#/components/schemas/").split('/').next().unwrap_or_default());
        return format!("<a href=\"#{name}\">{name}</a>");
    }
    let each = |schemas: &Vec<Value>, word: &str| schemas.iter().map(kind).collect::<Vec<_>>().join(word);
    if let Some(schemas) = schema["anyOf"].as_array() {
        return each(schemas, " or ");
    }
    if let Some(value) = schema.get("const") {
        return format!("<code>{}</code>", escape(&value.to_string()));
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> =
            values.iter().map(|value| format!("<code>{}</code>", escape(&value.to_string()))).collect();
        return values.join(" or ");
    }
    if let Some(schema) = schema.get("contentSchema") {
        return format!("JSON of {}", kind(schema));
    }
    let bounds = match (schema.get("minimum"), schema.get("maximum")) {
        (Some(least), Some(most)) => format!(" {least} to {most}"),
        (Some(least), None) => format!(" from {least}"),
        _ => String::new(),
    };
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("array of {}", kind(&schema["items"])),
        Value::String(name) if name == "object" && schema["properties"].is_object() => {
            let names: Vec<String> =
                schema["properties"].as_object().into_iter().flatten().map(|(name, _)| escape(name)).collect();
            format!("object of <code>{}</code>", names.join("</code>, <code>"))
        }
        Value::String(name) => format!("{}{bounds}", escape(name)),
        Value::Array(names) => names.iter().map(text).collect::<Vec<_>>().join(" or "),
        _ => "anything".to_owned(),
    }
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or_default())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Writing to a string cannot fail.
fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
}
