//! `taper pull` and `taper list` as a user runs them, against a hub on this machine. The library's own tests have the rest
//! of the protocol.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../crates/hub/tests/mock/mod.rs"]
mod mock;
mod support;

use mock::{Behaviour, MockHub, content};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LEN: usize = 3_000_000;

fn one_file(bytes: &[u8]) -> Behaviour {
    Behaviour { files: [("o/r/main/m.gguf".to_string(), bytes.to_vec())].into(), ..Behaviour::default() }
}

/// Points a command at the mock and at caches in `folder`, and at nothing else.
fn at<'a>(command: &'a mut Command, folder: &Path, mock: &MockHub) -> &'a mut Command {
    for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "OLLAMA_MODELS", "TAPER_MODEL"] {
        command.env_remove(name);
    }
    command.env("HOME", folder).env("TAPER_CACHE", folder.join("taper")).env("HF_HOME", folder.join("hf"));
    command.env("HF_ENDPOINT", mock.url())
}

fn pull(folder: &Path, mock: &MockHub, name: &str) -> Output {
    at(support::taper().args(["pull", name]), folder, mock).output().unwrap()
}

/// The path that a successful pull printed: the only line of its stdout.
fn pulled(output: &Output) -> PathBuf {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = std::str::from_utf8(&output.stdout).unwrap();
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    PathBuf::from(stdout.trim_end())
}

/// What a failed pull said; nothing of it is on stdout.
fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!stderr.contains("panicked") && !stderr.contains("RUST_BACKTRACE"), "{stderr}");
    stderr
}

#[test]
fn pull_prints_the_path_and_list_shows_it() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 1));
    let mock = MockHub::start(one_file(&bytes));
    let path = pulled(&pull(dir.path(), &mock, "hf:o/r"));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);

    let list = at(support::taper().args(["list", "--json"]), dir.path(), &mock).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list[0]["name"], "hf:o/r/m.gguf");
    assert_eq!(list[0]["bytes"], LEN);
    assert_eq!(list[0]["path"], path.to_str().unwrap());
}

#[test]
fn a_cut_pull_fails_and_the_next_one_goes_on_from_there() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 2));
    let broken = Behaviour { cuts: vec![1_500_000], then_status: Some(503), ..one_file(&bytes) };
    let mock = MockHub::start(broken);
    assert!(complaint(&pull(dir.path(), &mock, "hf:o/r/m.gguf")).contains("503"));
    mock.change(|behaviour| behaviour.then_status = None);
    let path = pulled(&pull(dir.path(), &mock, "hf:o/r/m.gguf"));
    assert_eq!(std::fs::read(path).unwrap(), bytes);
    assert_eq!(mock.transfers().last().unwrap(), "bytes=1500000-");
}

#[test]
fn two_processes_pulling_at_once_make_one_transfer() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 3));
    let mock = MockHub::start(Behaviour { delay_ms: 500, ..one_file(&bytes) });
    std::thread::scope(|scope| {
        for puller in [0, 1].map(|_| scope.spawn(|| pull(dir.path(), &mock, "hf:o/r/m.gguf"))) {
            assert_eq!(std::fs::read(pulled(&puller.join().unwrap())).unwrap(), bytes);
        }
    });
    assert_eq!(mock.transfers(), ["bytes=0-"]);
}

#[test]
fn a_disk_without_room_is_named_with_the_way_out() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 4));
    let mock = MockHub::start(one_file(&bytes));
    std::fs::create_dir(dir.path().join("hf")).unwrap();
    let taper = env!("CARGO_BIN_EXE_taper");
    // A file system of a megabyte, seen by this one process; where that is not allowed, a limit on the size of files.
    let script = "mount -t tmpfs -o size=1m none \"$HF_HOME\" && exec \"$0\" pull hf:o/r/m.gguf";
    let mut full = Command::new("unshare");
    full.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, taper]);
    let mut output = at(&mut full, dir.path(), &mock).output();
    let mounted = |output: &std::io::Result<Output>| {
        output.as_ref().is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("taper: "))
    };
    if !mounted(&output) {
        let mut limited = Command::new("sh");
        limited.args(["-c", "trap '' XFSZ; ulimit -f 1000; exec \"$0\" pull hf:o/r/m.gguf", taper]);
        output = at(&mut limited, dir.path(), &mock).output();
    }
    let complaint = complaint(&output.unwrap());
    assert!(complaint.contains("no space left for the 3000000 bytes of hf:o/r/m.gguf"), "{complaint}");
    assert!(complaint.contains("HF_HUB_CACHE"), "{complaint}");

    // With room again, it is simply pulled.
    assert_eq!(std::fs::read(pulled(&pull(dir.path(), &mock, "hf:o/r/m.gguf"))).unwrap(), bytes);
}

#[test]
fn every_refusal_has_its_own_words() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 5));
    let mock = MockHub::start(Behaviour { token: Some("secret".into()), ..one_file(&bytes) });
    let with = |name: &str, value: &str| {
        let mut command = support::taper();
        complaint(&at(command.args(["pull", "hf:o/r/m.gguf"]), dir.path(), &mock).env(name, value).output().unwrap())
    };
    let refused = complaint(&pull(dir.path(), &mock, "hf:o/r/m.gguf"));
    assert!(refused.contains("HTTP 401") && refused.contains("set HF_TOKEN"), "{refused}");
    let refused = with("HF_TOKEN", "tell-nobody");
    assert!(refused.contains("HTTP 403") && !refused.contains("tell-nobody"), "{refused}");
    let offline = with("HF_HUB_OFFLINE", "1");
    assert!(offline.contains("HF_HUB_OFFLINE"), "{offline}");
    let unknown = complaint(&pull(dir.path(), &mock, "smollm2:135b"));
    assert!(unknown.contains("did you mean smollm2:135m"), "{unknown}");
    let missing = complaint(&pull(dir.path(), &mock, "./no-such.gguf"));
    assert!(missing.contains("there is no file or folder ./no-such.gguf"), "{missing}");

    mock.change(|behaviour| (behaviour.token, behaviour.corrupt) = (None, true));
    let damaged = complaint(&pull(dir.path(), &mock, "hf:o/r/m.gguf"));
    assert!(damaged.contains("SHA-256"), "{damaged}");
}
