//! The softmax of the served model, through the real binary: `taper calibrate`, the file that it leaves, `--softmax`, and the
//! count of recomputed rows in `/metrics`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;
mod support;

use serde_json::{Value, json};
use server::Server;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;
use taper_testkit::tiny::TinyModel;
use tempfile::TempDir;

const CHAT: &str = "/v1/chat/completions";

/// A folder with a model and a text.
struct Folder {
    folder: TempDir,
    model: PathBuf,
}

impl Folder {
    fn new(model: &TinyModel) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, model.to_gguf()).unwrap();
        let words = ["rain ", "falls on ", "the plain, ", "and it rains again; "];
        let text: String = (0..80).map(|i| words[(i * i + i / 3) % 4]).collect();
        fs::write(folder.path().join("text.txt"), text).unwrap();
        Folder { folder, model: path }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn serve(&self, arguments: &[&str]) -> Server {
        Server::start_in(&self.cache(), &self.model, arguments)
    }

    fn taper(&self, command: &str, arguments: &[&str]) -> Output {
        let mut taper = support::taper();
        taper.arg(command).arg("--model").arg(&self.model).args(arguments);
        taper.current_dir(self.folder.path()).env("TAPER_CACHE", self.cache());
        taper.stdin(std::process::Stdio::null()).output().unwrap()
    }

    fn calibrate(&self) -> (Value, PathBuf) {
        let output = self.taper("calibrate", &["--text", "text.txt", "--ctx", "128"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("predicted"), "{}", text(&output.stdout));
        let files: Vec<_> =
            fs::read_dir(self.cache().join("calibration")).unwrap().map(|f| f.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("one file, not {files:?}") };
        (serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap(), file.clone())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Scores of the first layer pass +-150, those of the others do not.
fn hot() -> TinyModel {
    TinyModel { layers: 3, qk_gain: &[6.0], ..TinyModel::default() }
}

fn answer(server: &Server) -> String {
    let messages = json!([{"role": "user", "content": "Name three colours of the rain."}]);
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 32});
    let (status, answer) = server.post(CHAT, &body);
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_string()
}

fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.get_text("/metrics");
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{metrics}"));
    let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    value as u64
}

const RECOMPUTED: &str = "taper:softmax_recomputed_rows_total{engine=\"0\",model_name=\"model\"}";

/// What the log says about the softmax.
fn said(server: &Server) -> String {
    let mut said = String::new();
    while !said.contains("softmax: ") {
        let line = server.log.recv_timeout(Duration::from_secs(60)).expect("the log says which softmax runs");
        if line.contains("softmax") || line.contains("calibration") {
            said += &line;
        }
    }
    said
}

#[test]
fn a_model_of_hot_scores_answers_as_the_reference_does_and_its_recomputed_rows_are_counted() {
    let folder = Folder::new(&hot());
    let bounded = folder.serve(&[]);
    assert!(said(&bounded).contains("softmax: bounded (no calibration of this model)"));
    assert_eq!(metric(&bounded, RECOMPUTED), 0);
    let expected = answer(&folder.serve(&["--backend", "reference"]));
    assert!(!expected.is_empty());
    assert_eq!(answer(&bounded), expected);
    assert!(metric(&bounded, RECOMPUTED) > 0);
    assert_eq!(metric(&bounded, "vllm:num_requests_running"), 0);
    assert_eq!(metric(&bounded, "vllm:num_requests_waiting"), 0);

    let (file, _) = folder.calibrate();
    let excluded: Vec<_> = file["layers"].as_array().unwrap().iter().map(|layer| layer["excluded"].clone()).collect();
    assert_eq!(excluded, [true, false, false]);
    let calibrated = folder.serve(&[]);
    let said = said(&calibrated);
    assert!(said.contains("softmax: calibrated") && said.contains("1 of 3 layers online"), "{said}");
    assert_eq!(answer(&calibrated), expected);
}

#[test]
fn answers_do_not_depend_on_the_softmax() {
    let folder = Folder::new(&TinyModel::default());
    let run = |softmax| {
        let arguments = ["--softmax", softmax, "--raw", "-p", "rain falls on", "-n", "40", "--temperature", "0"];
        folder.taper("run", &arguments)
    };
    let refused = run("calibrated");
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("taper calibrate"),
        "{}",
        text(&refused.stderr)
    );
    folder.calibrate();
    let answer = |softmax| {
        let output = run(softmax);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let online = answer("online");
    assert!(!online.is_empty());
    for softmax in ["auto", "online-threshold", "bounded", "calibrated", "calibrated-two-sided"] {
        assert_eq!(answer(softmax), online, "{softmax}");
    }
}

#[test]
fn a_calibration_that_cannot_be_used_is_a_warning_and_the_server_serves() {
    let folder = Folder::new(&TinyModel::default());
    let (_, path) = folder.calibrate();
    let expected = answer(&folder.serve(&["--softmax", "online"]));
    let foreign = Folder::new(&TinyModel { layers: 3, ..TinyModel::default() });
    let (_, foreign) = foreign.calibrate();
    let check = |content: &[u8], words: &str| {
        fs::write(&path, content).unwrap();
        let server = folder.serve(&[]);
        let said = said(&server);
        assert!(said.contains("WARN") && said.contains(words) && said.contains("softmax: bounded"), "{said}");
        assert_eq!(answer(&server), expected);
    };
    check(b"{\"version\": 1, \"model\"", "is not what `taper calibrate` writes");
    check(b"\xff\xfe", "cannot read");
    check(&fs::read(&foreign).unwrap(), "another model");
    for softmax in ["calibrated", "calibrated-two-sided"] {
        let refused = folder.taper("run", &["--softmax", softmax, "--raw", "-p", "rain", "-n", "1"]);
        let said = text(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains("another model") && said.contains("taper calibrate --model"),
            "{said}"
        );
    }
}

#[test]
fn rows_of_a_benchmark_and_of_perplexity_count_recomputed_rows() {
    let folder = Folder::new(&hot());
    let bench = ["model", "--case", "tg2@100", "--repeat", "1", "--bandwidth-mib", "0", "--json"];
    let mut taper = support::taper();
    taper.arg("bench").args(bench).arg("--model").arg(&folder.model).env("TAPER_CACHE", folder.cache());
    let output = taper.stdin(std::process::Stdio::null()).output().unwrap();
    let row: Value = serde_json::from_str(text(&output.stdout).lines().next().unwrap()).unwrap();
    assert_eq!(row["params"]["softmax"], "bounded");
    assert!(row["params"]["recomputed_rows"].as_u64().unwrap() > 0, "{row}");

    let output = folder.taper("perplexity", &["text.txt", "--ctx", "128", "--json"]);
    let scored: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert!(scored["recomputed_rows"][0].as_u64().unwrap() > 0, "{scored}");
    assert!(scored["attended_rows"][0].as_u64() > scored["recomputed_rows"][0].as_u64(), "{scored}");
}
