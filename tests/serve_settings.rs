//! Settings of the real binary: flags, variables and a file, what is printed of them, and the files of deploy/ that use them.

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;

use serde_json::Value;
use server::Server;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use taper_testkit::gguf;
use taper_testkit::tiny::TinyModel;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("there is room")
}

fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("there is room");
    path
}

fn tiny(folder: &TempDir) -> PathBuf {
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, TinyModel::default().to_gguf()).expect("there is room");
    path
}

/// `taper serve` with these words, and no settings of whoever runs the tests.
fn serve(words: &str) -> Command {
    let mut taper = Command::new(env!("CARGO_BIN_EXE_taper"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TAPER_")) {
        taper.env_remove(name);
    }
    taper.arg("serve").args(words.split_whitespace());
    taper
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_flag_overrides_a_variable_that_the_file_and_that_the_default() {
    let folder = folder();
    let file = write(&folder, "taper.toml", "max-batch = 1\nmax-queued = 2\nport = 3\nhost = 'localhost'\n");
    let mut taper = serve("--print-config --port 4");
    taper
        .env("TAPER_CONFIG", &file)
        .env("TAPER_MAX_QUEUED", "5")
        .env("TAPER_PORT", "6")
        .env("TAPER_API_KEY", "sesame,barley");
    let text = stdout(&taper.output().expect("taper starts"));
    let file = file.display();
    for line in [
        "port = 4  # flag".to_owned(),
        "max-queued = 5  # env TAPER_MAX_QUEUED".to_owned(),
        format!("max-batch = 1  # file {file}"),
        format!("host = \"localhost\"  # file {file}"),
        "max-headers = 100  # default".to_owned(),
        "# api-key = [\"***\", \"***\"]  # env TAPER_API_KEY".to_owned(),
    ] {
        assert!(text.lines().any(|own| own == line), "{line} in:\n{text}");
    }
    assert!(!text.contains("sesame"), "{text}");
    text.parse::<toml::Table>().expect("it is TOML");
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_the_key() {
    let folder = folder();
    for (text, parts) in [("prot = 1", ["\"prot\"", "\"port\""]), ("port = true", ["port", "a number"])] {
        let file = write(&folder, "taper.toml", text);
        let output = serve("--config").arg(&file).output().expect("taper starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("taper.toml") && parts.iter().all(|part| said.contains(part)), "{said}");
    }
    let output = serve("--config /no/such/file.toml").output().expect("taper starts");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/file.toml"));
}

#[test]
fn the_variables_of_the_container_leave_room_for_a_socket() {
    let mut taper = serve("--print-config --unix-socket s");
    taper.env("TAPER_HOST", "0.0.0.0").env("TAPER_PORT", "8080").env("TAPER_CACHE_DIR_SIZE", "1GiB");
    let text = stdout(&taper.output().expect("taper starts"));
    assert!(text.lines().any(|line| line == "unix-socket = \"s\"  # flag"), "{text}");
    let output = serve("--print-config --unix-socket s --port 80").output().expect("taper starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("--port"), "{said}");
}

#[test]
fn sampling_defaults_are_settings_before_they_are_the_files() {
    let folder = folder();
    let path = folder.path().join("tiny.gguf");
    let suggested = [("temp", 0.25), ("top_k", 20.0), ("min_p", 0.5), ("mirostat", 2.0)];
    let file = suggested.iter().fold(TinyModel::default().builder(), |file, (name, value)| {
        file.set(&format!("general.sampling.{name}"), gguf::Value::F32(*value))
    });
    std::fs::write(&path, file.build()).expect("there is room");
    let settings = write(&folder, "taper.toml", "top_k = 7\nmax-tokens = 3\nfrequency-penalty = 1\n");
    let flags = ["--config", settings.to_str().expect("it is UTF-8"), "--frequency-penalty", "-0.5"];
    let server = Server::start(&path, &flags);
    let lines = server.log_until("is ready");
    for expected in [
        "sampling defaults of tiny: temperature 0.25 (model), top_k 7 (setting), min_p 0.5 (model), frequency_penalty -0.5 \
         (setting), max_tokens 3 (setting); for the rest each protocol's own",
        "what the file of tiny suggests for sampling and is not followed: mirostat (there is no such parameter here)",
    ] {
        assert_eq!(lines.iter().filter(|line| *line == expected).count(), 1, "{expected} in {lines:#?}");
    }
    let (_, info) = server.get("/server_info");
    assert_eq!(info["sampling_defaults"]["temperature"], serde_json::json!({ "value": 0.25, "from": "model" }));
    assert_eq!(info["sampling_defaults"]["top_k"], serde_json::json!({ "value": 7, "from": "setting" }));
    assert_eq!((&info["options"]["top_k"], &info["options"]["temperature"]), (&Value::from(7), &Value::Null));
    let body = serde_json::json!({ "prompt": "Once", "ignore_eos": true });
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &Value::from(3)), "{answer}");
    let (_, answer) = server.post("/completion", &body);
    let told = &answer["generation_settings"];
    assert_eq!((&told["temperature"], &told["top_k"]), (&Value::from(0.25), &Value::from(7)), "{told}");
    let output = serve("--temperature 3").output().expect("taper starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--temperature") && said.contains("between 0 and 2"), "{said}");
}

#[test]
fn a_variable_that_is_almost_a_settings_is_named() {
    let mut taper = serve("--tls-cert a.pem");
    let output = taper.env("TAPER_PROT", "80").output().expect("taper starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("TAPER_PROT; the nearest is TAPER_PORT"), "{said}");
}

#[test]
#[cfg(not(feature = "otlp"))]
fn a_program_without_traces_says_how_to_build_one_with_them() {
    for mut taper in [serve("--otlp-endpoint http://localhost:4318"), serve("")] {
        let output = taper.env("TAPER_OTLP_ENDPOINT", "http://localhost:4318").output().expect("taper starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--otlp-endpoint") && said.contains("cargo build --release --features otlp"), "{said}");
    }
}

#[test]
fn keys_stand_neither_in_the_help_nor_in_the_log() {
    let folder = folder();
    let help = stdout(&serve("--help").env("TAPER_API_KEY", "sesame").output().expect("taper starts"));
    assert!(help.contains("TAPER_API_KEY") && !help.contains("sesame"));

    let keys = write(&folder, "keys", "# of the team\nbarley\n");
    let arguments =
        ["--api-key", "sesame", "--api-key-file", keys.to_str().unwrap(), "--log-level", "debug", "--ctx", "64"];
    let mut server = Server::start(&tiny(&folder), &arguments);
    let answer = |key: &str| {
        let request = ureq::get(format!("{}/v1/models", server.url)).config().http_status_as_error(false).build();
        let response = request.header("authorization", format!("Bearer {key}")).call().expect("the server answers");
        response.status().as_u16()
    };
    assert_eq!(["sesame", "barley", "wheat", "rye"].map(answer), [200, 200, 401, 401]);
    std::fs::write(&keys, "wheat\n").unwrap();
    server.signal("HUP");
    let mut log = server.log_until("the API keys were read again");
    assert_eq!(["sesame", "barley", "wheat", "rye"].map(answer), [200, 401, 200, 401]);
    std::fs::write(&keys, "two words\n").unwrap();
    server.signal("HUP");
    log.extend(server.log_until("the API keys stay as they were"));
    let kept = log.last().expect("it is there");
    assert!(kept.contains("line 1 of") && !kept.contains("two words"), "{kept}");
    assert_eq!(["sesame", "wheat"].map(answer), [200, 200]);
    server.signal("TERM");
    assert!(server.wait(std::time::Duration::from_secs(30)).success());
    log.extend(server.log.iter());
    for key in ["sesame", "barley", "wheat"] {
        assert!(!log.iter().any(|line| line.contains(key)), "{log:#?}");
    }
}

#[test]
fn a_certificate_that_cannot_be_used_ends_the_start_and_is_named() {
    let folder = folder();
    let cert = write(&folder, "server.crt", "no certificate");
    let mut taper = serve("--port 0 --tls-key /no/such.key --tls-cert");
    let output = taper.arg(&cert).arg("--model").arg(tiny(&folder)).output().expect("taper starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("server.crt") && said.contains("no certificate in PEM"), "{said}");
}

#[test]
fn every_flag_of_the_unit_and_setting_of_its_file_exists() {
    let unit = std::fs::read_to_string(root().join("deploy/taper.service")).expect("it is there");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
    let words: Vec<&str> = start.split_whitespace().skip(1).collect();
    assert_eq!(words[0], "serve");
    let sample = root().join("deploy/taper.toml");
    let words: Vec<&str> =
        words[1..].iter().map(|&word| if word.ends_with(".toml") { sample.to_str().unwrap() } else { word }).collect();
    assert!(words.contains(&sample.to_str().unwrap()), "the unit uses the file");
    let text = stdout(&serve("--print-config").args(&words).output().expect("taper starts"));
    let set: toml::Table = text.parse().expect("it is TOML");
    assert_eq!(set["drain-delay"].as_integer(), Some(5));

    // What the sample shows as comments works as well.
    let folder = folder();
    let shown = std::fs::read_to_string(&sample).unwrap().replace("\n# ", "\n");
    let lines: Vec<&str> = shown.lines().filter(|line| line.contains(" = ")).collect();
    let file = write(&folder, "shown.toml", &lines.join("\n"));
    let text = stdout(&serve("--print-config --config").arg(&file).output().expect("taper starts"));
    assert!(text.contains("rate-limit = \"600/min\"") && text.contains("tls-key = "), "{text}");
}

#[test]
fn every_variable_of_the_container_exists() {
    let container = std::fs::read_to_string(root().join("deploy/Containerfile")).expect("it is there");
    let help = stdout(&serve("--help").output().expect("taper starts"));
    let named =
        container.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("TAPER_"));
    // Those of the build and of the model hub are no flags.
    let named: BTreeSet<&str> =
        named.filter(|name| !["TAPER_", "TAPER_CUDA_ARCHS", "TAPER_CACHE"].contains(name)).collect();
    assert!(named.len() >= 5, "{named:?}");
    for name in named {
        assert!(help.contains(&format!("[env: {name}")), "{name}");
    }
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let text = std::fs::read_to_string(root().join("deploy/grafana.json")).expect("it is there");
    let dashboard: Value = serde_json::from_str(&text).expect("it is JSON");
    let variables = dashboard["templating"]["list"].as_array().expect("it has variables");
    assert!(variables.iter().any(|variable| variable["type"] == "datasource"));
    let targets =
        dashboard["panels"].as_array().expect("it has panels").iter().filter_map(|panel| panel["targets"].as_array());
    let expressions: Vec<&str> = targets.flatten().map(|target| target["expr"].as_str().expect("a query")).collect();
    assert!(expressions.len() > 20);

    let folder = folder();
    let server = Server::start(&tiny(&folder), &["--ctx", "64"]);
    let metrics = server.get_text("/metrics");
    let exposed: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for expression in expressions {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && !"_:".contains(c));
        for word in words.filter(|word| word.contains(':')) {
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word);
            assert!(exposed.contains(family), "{word} of {expression}");
        }
    }
}
