//! The web page: that its files are served as they are, that they need nothing from elsewhere, and that nothing in them is what
//! the policy forbids.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::*;
use taper_engine::EngineConfig;
use taper_server::limits::{MAX_STOP_BYTES, MAX_STOPS};
use taper_server::{ApiKeys, ServerConfig, ServerState};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("web")
}

/// The files of the page by their paths in its folder. Which version of what they are stands beside them, for us alone.
fn sources() -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder()).unwrap().to_str().unwrap().to_owned();
                found.push((name, fs::read(path).unwrap()));
            }
        }
    }
    found.retain(|(name, _)| name != "vendored.toml");
    found.sort();
    found
}

/// Our own sources as text.
fn own_sources() -> Vec<(String, String)> {
    let own = sources().into_iter().filter(|(name, _)| !name.starts_with("vendor/"));
    own.map(|(name, bytes)| (name, String::from_utf8(bytes).unwrap())).collect()
}

fn address(name: &str) -> String {
    if name == "index.html" { "/".to_owned() } else { format!("/web/{name}") }
}

async fn get_if_none_match(state: &ServerState, path: &str, tag: &str) -> Answer {
    send(state, Request::get(path).header("if-none-match", tag).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn every_file_is_served_as_it_is_with_its_type_and_the_policy() {
    // Without a model, too: the page says what the server is waiting for.
    let state = ServerState::new();
    for (name, bytes) in sources() {
        let answer = get(&state, &address(&name)).await;
        assert_eq!(answer.status, 200, "{name}: is it in the table of src/web.rs?");
        assert_eq!(answer.body.as_bytes(), bytes, "{name}");
        let kind = match name.rsplit('.').next().unwrap() {
            "html" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "js" | "mjs" => "text/javascript; charset=utf-8",
            "svg" => "image/svg+xml",
            _ if name.ends_with("LICENSE") => "text/plain; charset=utf-8",
            other => panic!("{name}: what is .{other}?"),
        };
        let expected = [
            ("content-type", kind),
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-cache"),
        ];
        for (header, value) in expected {
            assert_eq!(answer.headers[header], value, "{name}: {header}");
        }
    }
}

#[tokio::test]
async fn what_a_browser_has_already_is_not_sent_again() {
    let state = ServerState::new();
    let mut tags = BTreeSet::new();
    for (name, _) in sources() {
        let path = address(&name);
        let tag = get(&state, &path).await.headers["etag"].to_str().unwrap().to_owned();
        let again = get_if_none_match(&state, &path, &format!("\"x\", W/{tag}")).await;
        assert_eq!((again.status.as_u16(), again.body.as_str()), (304, ""), "{name}");
        assert_eq!(again.headers["etag"], tag);
        assert_eq!(again.headers["cache-control"], "no-cache");
        assert_eq!(get_if_none_match(&state, &path, "\"x\"").await.status, 200);
        assert!(tags.insert(tag), "{name} has the tag of another file");
    }
}

#[tokio::test]
async fn other_methods_and_paths_are_what_they_are_elsewhere() {
    let state = state();
    let ask = |method: Method, path: &str| Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let head = send(&state, ask(Method::HEAD, "/")).await;
    assert_eq!((head.status.as_u16(), head.body.as_str()), (200, ""));
    let posted = send(&state, ask(Method::POST, "/")).await;
    assert_eq!((posted.status.as_u16(), posted.error()["code"].as_str()), (405, Some("method_not_allowed")));
    for path in ["/web", "/web/", "/web/none.css", "/web/../Cargo.toml", "/web/vendored.toml", "/web/index.html"] {
        let answer = send(&state, ask(Method::GET, path)).await;
        assert_eq!((answer.status.as_u16(), answer.error()["code"].as_str()), (404, Some("unknown_url")), "{path}");
    }
}

#[tokio::test]
async fn without_a_key_the_page_has_its_files_and_nothing_else_below_its_folder() {
    let api_keys = ApiKeys::new(&["sesame".to_owned()], None).unwrap();
    let config = ServerConfig { api_keys, ..ServerConfig::default() };
    let (state, _) = state_with_config(replying(REPLY), EngineConfig::default(), config);
    for (name, _) in sources() {
        assert_eq!(get(&state, &address(&name)).await.status, 200, "{name}");
    }
    for path in
        ["/web", "/web/", "/web/none.css", "/web/../v1/models", "/web/app.mjs/", "//web/app.mjs", "/web//app.mjs"]
    {
        assert_eq!(get(&state, path).await.status, 401, "{path}");
    }
}

/// The values of an attribute in a piece of HTML.
fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!(" {name}=\"");
    html.split(&begin).skip(1).map(|rest| rest.split_once('"').unwrap().0).collect()
}

#[test]
fn everything_the_page_refers_to_is_there() {
    let names: BTreeSet<String> = sources().into_iter().map(|(name, _)| name).collect();
    let html = fs::read_to_string(folder().join("index.html")).unwrap();
    let mut referred = BTreeSet::new();
    for reference in [attributes(&html, "src"), attributes(&html, "href")].concat() {
        if let Some(id) = reference.strip_prefix('#') {
            assert!(html.contains(&format!("id=\"{id}\"")), "{reference}");
            continue;
        }
        let name = reference.strip_prefix("web/").unwrap_or_else(|| panic!("{reference} is not below web/"));
        assert!(names.contains(name), "{reference}");
        referred.insert(name.to_owned());
    }
    for (module, text) in own_sources().iter().filter(|(name, _)| name.ends_with(".mjs")) {
        for line in text.lines().filter(|line| line.starts_with("import ")) {
            let path = line.trim_end_matches("\";").rsplit('"').next().unwrap();
            let name = path.strip_prefix("./").unwrap_or_else(|| panic!("{module} imports {path}"));
            assert!(names.contains(name), "{module} imports {path}");
            referred.insert(name.to_owned());
        }
    }
    let unused: Vec<_> = names.difference(&referred).filter(|name| *name != "index.html").collect();
    assert!(unused.is_empty(), "nothing refers to {unused:?}");
}

#[test]
fn every_id_that_a_script_asks_for_is_in_the_page() {
    let html = fs::read_to_string(folder().join("index.html")).unwrap();
    let ids = attributes(&html, "id");
    assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len(), "an id is there twice");
    for (module, text) in own_sources() {
        for asked in text.split("byId(\"").skip(1) {
            let id = asked.split_once('"').unwrap().0;
            assert!(ids.contains(&id), "{module} asks for {id}");
        }
    }
}

#[test]
fn there_is_no_script_style_or_handler_that_the_policy_would_forbid() {
    let html = fs::read_to_string(folder().join("index.html")).unwrap();
    for tag in html.split('<').skip(1) {
        let (tag, content) = tag.split_once('>').unwrap();
        assert!(!tag.starts_with("style"), "<{tag}>");
        assert!(
            !tag.starts_with("script") || (tag.contains(" src=\"") && content.trim().is_empty()),
            "<{tag}>{content}"
        );
        for attribute in tag.split_whitespace().skip(1) {
            assert!(!attribute.starts_with("style=") && !attribute.starts_with("on"), "<{tag}>");
        }
    }
    for (name, text) in own_sources() {
        for elsewhere in ["https://", "http://", "//cdn"] {
            let namespaces = text.matches("http://www.w3.org/").count();
            let found = text.matches(elsewhere).count() - if elsewhere == "http://" { namespaces } else { 0 };
            assert_eq!(found, 0, "{name} names {elsewhere}");
        }
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "setAttribute(\"style\"",
        ] {
            assert!(!text.contains(forbidden), "{name} has {forbidden}");
        }
    }
}

#[test]
fn what_is_others_is_theirs_to_the_byte() {
    let list: toml::Table = fs::read_to_string(folder().join("vendored.toml")).unwrap().parse().unwrap();
    let text = |table: &toml::Value, key: &str| table[key].as_str().unwrap_or_else(|| panic!("{key}")).to_owned();
    let mut listed = BTreeSet::new();
    for package in list["package"].as_array().unwrap() {
        let (name, version) = (text(package, "name"), text(package, "version"));
        assert!(text(package, "source").ends_with(&format!("/{name}-{version}.tgz")));
        assert_eq!(text(package, "sha256").len(), 64);
        let files = package["file"].as_array().unwrap();
        assert!(files.iter().any(|file| text(file, "path") == format!("{name}/LICENSE")), "{name} has no licence");
        for file in files {
            let path = text(file, "path");
            let bytes = fs::read(folder().join("vendor").join(&path)).unwrap();
            let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(sum, text(file, "sha256"), "{path}");
            listed.insert(format!("vendor/{path}"));
        }
    }
    let there = sources().into_iter().map(|(name, _)| name).filter(|name| name.starts_with("vendor/"));
    assert_eq!(listed, there.collect::<BTreeSet<_>>());
}

/// The page says what is wrong with a parameter before it is sent; this is where the two would come apart.
#[tokio::test]
async fn the_bounds_of_parameters_in_the_page_are_the_servers() {
    let source = fs::read_to_string(folder().join("parameters.mjs")).unwrap();
    let state = state();
    let mut num_checked = 0;
    for row in source.lines().filter_map(|line| line.trim().strip_prefix("{ name: \"")) {
        let name = row.split_once('"').unwrap().0;
        if row.contains("switch: {") {
            for value in [true, false] {
                let answer = chat(&state, fields("chat_template_kwargs", fields(name, json!(value)))).await;
                assert!(answer.status.is_success(), "{name} {value}: {}", answer.body);
            }
            continue;
        }
        // What is no number is checked below.
        if row.contains("kind: ") {
            continue;
        }
        let bound = |key: &str| {
            let text = row.split_once(&format!("{key}: ")).unwrap().1.split(',').next().unwrap();
            text.replace("MOST", "9007199254740991").parse::<f64>().unwrap()
        };
        let (least, most) = (bound("least"), bound("most"));
        let step = if row.contains("isInteger: true") { 1.0 } else { 0.001 };
        let as_json = |number: f64| if step == 1.0 { json!(number as i64) } else { json!(number) };
        for (value, is_good) in [(least, true), (most, true), (least - step, false), (most + step, false)] {
            // What the server takes beyond a script's largest integer is not the page's to send.
            if value.abs() > 9_007_199_254_740_991.0 || (name == "seed" && !is_good) || (most > 1e15 && value > most) {
                continue;
            }
            let answer = chat(&state, fields(name, as_json(value))).await;
            assert_eq!(answer.status.is_success(), is_good, "{name} {value}: {}", answer.body);
            num_checked += 1;
        }
    }
    assert!(num_checked >= 30, "{num_checked}");
}

#[tokio::test]
async fn the_page_sends_stop_texts_and_schemas_that_the_server_takes() {
    let source = fs::read_to_string(folder().join("parameters.mjs")).unwrap();
    for (name, number) in [("MOST_STOPS", MAX_STOPS), ("MOST_STOP_BYTES", MAX_STOP_BYTES)] {
        assert!(source.contains(&format!("const {name} = {number};")), "{name} is {number}");
    }
    let state = state();
    let stops = vec!["x".repeat(MAX_STOP_BYTES); MAX_STOPS];
    let form = json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": { "type": "object" } } });
    for fields in [json!({ "stop": stops }), json!({ "response_format": form })] {
        let answer = chat(&state, fields).await;
        assert!(!answer.status.is_client_error(), "{}", answer.body);
    }
}

fn fields(name: &str, value: Value) -> Value {
    let mut fields = json!({});
    fields[name] = value;
    fields
}
