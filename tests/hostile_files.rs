//! Five hundred damaged and lying model files through the real program: it must run the model or say in one line what is
//! wrong, soon, and never crash or take memory that the file does not justify.
//!
//! Memory is bounded by the kernel and not by watching: the program runs under `ulimit -v` of the file's length plus
//! 512 MiB, which counts every mapping, touched or not. An allocation beyond it aborts, and an abort fails the test.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and reports on stderr")]

mod support;

use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taper_testkit::hostile::{HostileFile, hostile_file};
use taper_testkit::tiny::TinyModel;

const NUM_FILES: u64 = 500;
const NUM_WORKERS: usize = 2;
const TIME_LIMIT: Duration = Duration::from_secs(10);
const MEMORY_OVER_FILE: u64 = 512 << 20;

/// How a run ended.
struct Outcome {
    status: ExitStatus,
    stdout: String,
    stderr: String,
    elapsed: Duration,
}

/// Runs `taper` with `arguments` on the file, under the limits; `None` when it had to be killed for its time.
fn run(folder: &Path, file: &HostileFile, arguments: &[&str]) -> Option<Outcome> {
    let model = folder.join("model.gguf");
    std::fs::write(&model, &file.bytes).unwrap();
    // Files and not pipes: whatever is written, nobody waits for a reader.
    let (stdout, stderr) = (folder.join("stdout"), folder.join("stderr"));
    let kilobytes = (file.bytes.len() as u64 + MEMORY_OVER_FILE) / 1024;
    let begun = Instant::now();
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -v \"$0\" && exec \"$@\"", &kilobytes.to_string(), env!("CARGO_BIN_EXE_taper")])
        .args(arguments)
        .arg("--model")
        .arg(&model)
        .args(["--threads", "1", "--ctx", "64"])
        .stdin(Stdio::null())
        .stdout(File::create(&stdout).unwrap())
        .stderr(File::create(&stderr).unwrap())
        // Each further arena of the allocator would reserve 64 MiB of addresses.
        .env("MALLOC_ARENA_MAX", "1")
        .spawn()
        .unwrap();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > TIME_LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let elapsed = begun.elapsed();
    let read = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    Some(Outcome { status, stdout: read(&stdout), stderr: read(&stderr), elapsed })
}

/// What is wrong with a run, if anything.
fn verdict(outcome: Option<&Outcome>, model: &Path) -> Result<(), String> {
    let Some(Outcome { status, stdout, stderr, .. }) = outcome else {
        return Err(format!("still running after {TIME_LIMIT:?}"));
    };
    let said = || stderr.chars().take(2000).collect::<String>();
    if stderr.contains("panicked") {
        return Err(format!("a panic: {}", said()));
    }
    if stderr.chars().any(|c| c.is_control() && c != '\n') {
        return Err(format!("control characters from the file reach the terminal: {:?}", said()));
    }
    match status.code() {
        Some(0) => {
            let json: Result<serde_json::Value, _> = serde_json::from_str(stdout);
            let tokens = json.ok().and_then(|json| json["tokens"].as_array().map(Vec::len));
            tokens.map(|_| ()).ok_or_else(|| format!("a success without an answer: {stdout:?}"))
        }
        Some(1) => {
            let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("taper: ")).collect();
            let [error] = errors[..] else { return Err(format!("not one line of error: {}", said())) };
            if !stderr.ends_with(&format!("{error}\n")) || !stdout.is_empty() {
                return Err(format!("something besides the error: {stdout:?} {}", said()));
            }
            // The file's name alone is no cause.
            let cause = error.replace("taper: ", "").replace(model.to_str().unwrap(), "").replace("cannot load", "");
            let words = cause.split_whitespace().count();
            if words < 3 || error.len() > 1500 {
                return Err(format!("an error that does not say what is wrong: {error}"));
            }
            Ok(())
        }
        _ => Err(format!("{status}: {}", said())),
    }
}

/// Runs the files of all seeds, several at once; the stories of those that failed.
fn failures(seeds: std::ops::Range<u64>, arguments: &[&str]) -> Vec<String> {
    let next = AtomicU64::new(seeds.start);
    let worker = || {
        let folder = tempfile::tempdir().unwrap();
        let (mut failures, mut slowest, mut answered) = (Vec::new(), Duration::ZERO, 0);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return (failures, slowest, answered);
            }
            let file = hostile_file(seed);
            let outcome = run(folder.path(), &file, arguments);
            if let Err(failure) = verdict(outcome.as_ref(), &folder.path().join("model.gguf")) {
                failures.push(format!("{}: {failure}", file.story));
            }
            if let Some(outcome) = outcome {
                slowest = slowest.max(outcome.elapsed);
                answered += u32::from(outcome.status.success());
            }
        }
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..NUM_WORKERS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let slowest = results.iter().map(|(_, slowest, _)| *slowest).max().unwrap();
    let answered: u32 = results.iter().map(|(_, _, answered)| answered).sum();
    eprintln!("{} files: {answered} answered, the slowest took {slowest:?}", seeds.end - seeds.start);
    results.into_iter().flat_map(|(failures, _, _)| failures).collect()
}

#[test]
fn the_limits_leave_a_sound_model_alone() {
    let folder = tempfile::tempdir().unwrap();
    let sound = HostileFile { bytes: TinyModel::default().to_gguf(), story: String::new() };
    let outcome = run(folder.path(), &sound, &["run", "-p", "x", "-n", "2", "--json", "--temperature", "0"]).unwrap();
    assert!(outcome.status.success(), "{}", outcome.stderr);
    verdict(Some(&outcome), folder.path()).unwrap();
}

#[test]
fn five_hundred_hostile_files_run_or_are_refused_in_one_line() {
    let failures = failures(0..NUM_FILES, &["run", "-p", "x", "--raw", "-n", "2", "--json", "--temperature", "0"]);
    assert!(failures.is_empty(), "{} of {NUM_FILES}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn hostile_chat_templates_run_or_are_refused_in_one_line() {
    // Without --raw the template of the file is used as well; every third file lies about its contents.
    let failures = failures(1000..1150, &["run", "-p", "x", "-n", "2", "--json", "--temperature", "0"]);
    assert!(failures.is_empty(), "{} of 150:\n{}", failures.len(), failures.join("\n"));
}
