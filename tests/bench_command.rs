//! `taper bench` and `taper doctor` through the real binary: what stands in the rows, where they go, and how they refuse.
//! No figure of speed is judged here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::process::{Output, Stdio};
use taper_testkit::tiny::TinyModel;
use tempfile::TempDir;

fn taper(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = support::taper();
    for (name, _) in std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        ["TAPER_", "HF_", "XDG_", "OLLAMA_"].iter().any(|prefix| name.starts_with(prefix))
    }) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(folder.path()).env("HOME", folder.path()).stdin(Stdio::null()).output().unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::str::from_utf8(&output.stdout).unwrap()
}

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every row has every name, and figures that are figures.
fn check(row: &Value) {
    let names: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).filter(|name| *name != "void").collect();
    let expected = "bench case params median p10 p90 unit bytes gbps share commit machine isa threads";
    assert_eq!(names, expected.split(' ').collect::<Vec<_>>(), "{row}");
    let figure = |name: &str| row[name].as_f64().unwrap();
    assert!(figure("median") > 0.0 && figure("p10") <= figure("median") && figure("median") <= figure("p90"), "{row}");
    assert!(row["params"].is_object() && row["threads"].as_u64() >= Some(1), "{row}");
    assert!(!row["commit"].as_str().unwrap().is_empty() && !row["machine"].as_str().unwrap().is_empty(), "{row}");
}

#[test]
fn bandwidth_has_a_row_per_number_of_threads_and_streams() {
    let arguments = ["bench", "bandwidth", "--json", "--threads", "2", "--bandwidth-mib", "8", "--repeat", "2"];
    let output = taper(&folder(), &arguments);
    let rows = rows(stdout(&output));
    rows.iter().for_each(check);
    let grid: Vec<(u64, u64)> =
        rows.iter().map(|row| (row["threads"].as_u64().unwrap(), row["params"]["streams"].as_u64().unwrap())).collect();
    assert_eq!(grid, [(1, 1), (1, 4), (1, 8), (1, 16), (2, 1), (2, 4), (2, 8), (2, 16)]);
    assert!(rows.iter().all(|row| row["unit"] == "GB/s" && row["median"] == row["gbps"]));
    assert_eq!(rows[4..].iter().filter(|row| row["share"] == 1.0).count(), 1, "the best of two threads is the ceiling");
    assert!(!output.stderr.is_empty(), "progress is told");
}

const TINY_GEMM: [&str; 14] = [
    "bench",
    "gemm",
    "--threads",
    "2",
    "--type",
    "q4_0,bf16,q6_k",
    "--shape",
    "64x96,32x256",
    "--rows",
    "1,4",
    "--ring-mib",
    "1",
    "--time-ms",
    "0",
];

#[test]
fn gemm_has_a_row_per_cell_between_two_of_the_bandwidth() {
    let output = taper(&folder(), &[&TINY_GEMM[..], &["--bandwidth-mib", "4", "--json"]].concat());
    let rows = rows(stdout(&output));
    rows.iter().for_each(check);
    let cases: Vec<&str> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert!(cases[0].starts_with("before: best, ") && cases[cases.len() - 1].starts_with("after: best, "), "{cases:?}");
    let expected = [
        "Q4_0 64x96 M=1",
        "Q4_0 64x96 M=4",
        "BF16 64x96 M=1",
        "BF16 64x96 M=4",
        "Q4_0 32x256 M=1",
        "Q4_0 32x256 M=4",
        "BF16 32x256 M=1",
        "BF16 32x256 M=4",
        "Q6_K 32x256 M=1",
        "Q6_K 32x256 M=4",
    ];
    assert_eq!(cases.len(), expected.len() + 2);
    assert!(expected.iter().all(|case| cases.contains(case)), "{cases:?}");
    let row = rows.iter().find(|row| row["case"] == "Q4_0 64x96 M=4").unwrap();
    assert_eq!(row["bytes"].as_f64(), Some(64.0 * 3.0 * 18.0), "the bytes of a file");
    let (rate, gbps) = (row["median"].as_f64().unwrap(), row["gbps"].as_f64().unwrap());
    assert!((rate / gbps / (2.0 * 4.0 * 64.0 * 96.0 / (64.0 * 54.0)) - 1.0).abs() < 1e-9, "{row}");
    let ceiling = rows.iter().filter(|row| row["bench"] == "bandwidth").map(|row| row["gbps"].as_f64().unwrap());
    assert!((row["share"].as_f64().unwrap() - gbps / ceiling.fold(0.0, f64::max)).abs() < 1e-9, "{row}");
}

#[test]
fn rows_and_report_go_to_files_and_the_table_to_stdout() {
    let folder = folder();
    let to_files = ["--bandwidth-mib", "0", "--json", "rows.json", "--report", "report.html"];
    let output = taper(&folder, &[&TINY_GEMM[..], &to_files].concat());
    let table = stdout(&output);
    assert!(table.contains("CASE") && table.contains("GFLOP/s") && table.contains("Q4_0 64x96 M=1"), "{table}");
    let rows = rows(&std::fs::read_to_string(folder.path().join("rows.json")).unwrap());
    assert_eq!(rows.len(), 10);
    assert!(rows.iter().all(|row| row["share"].is_null()), "nothing to take a share of");
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg").count() == 4, "two plots a shape");
    assert!(page.contains("taper bench gemm --threads 2") && !page.contains("http"), "{page}");
}

const TINY_ATTENTION: [&str; 16] = [
    "bench",
    "attention",
    "--threads",
    "2",
    "--heads",
    "4/2x32",
    "--keys",
    "64,320",
    "--batch",
    "1,2",
    "--ring-mib",
    "1",
    "--repeat",
    "2",
    "--time-ms",
    "0",
];

#[test]
fn attention_has_a_row_per_arm_with_its_speed_over_candle() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let driver = folder.path().join("driver");
    // Stands in for candle's tensors: an hour a call, whatever is asked.
    let script = "#!/bin/sh\n[ \"$1 $2 $3\" = 'attention 2 1048576' ] || exit 1\nwhile read -r name; do \
                  echo \"{\\\"case\\\": \\\"$name\\\", \\\"median\\\": 3600, \\\"working_bytes\\\": 4096, \\\"kv\\\": \\\"F32\\\"}\"; done\n";
    std::fs::write(&driver, script).unwrap();
    std::fs::set_permissions(&driver, std::fs::Permissions::from_mode(0o755)).unwrap();
    let files = ["--bandwidth-mib", "0", "--json", "rows.json", "--report", "report.html"];
    let candle = ["--candle-driver", "./driver", "--candle-keys", "64"];
    let output = taper(&folder, &[&TINY_ATTENTION[..], &files, &candle].concat());
    let table = stdout(&output);
    for part in
        ["OF READS", "X CANDLE", "RECOMPUTED", "WORKS IN", "4 KiB", "4/2x32 b1: running maxima cost", "% at 320"]
    {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    let rows = rows(&std::fs::read_to_string(folder.path().join("rows.json")).unwrap());
    rows.iter().for_each(check);
    let cases: Vec<&str> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(cases.len(), 2 * (6 + 5), "candle at 64 keys only: {cases:?}");
    assert_eq!(cases[..2], ["4/2x32 b1@64 online", "4/2x32 b1@64 calibrated"]);
    assert_eq!(cases[4..7], ["4/2x32 b1@64 candle", "4/2x32 b1@64 reads", "4/2x32 b1@320 online"]);
    assert!(rows.iter().all(|row| row["unit"] == "us" && row["params"]["of_reads"].as_f64() > Some(0.0)));
    let (online, candle) = (&rows[0], &rows[4]);
    assert_eq!((candle["median"].as_f64(), &candle["params"]["kv"]), (Some(3.6e9), &"F32".into()));
    assert_eq!(candle["bytes"].as_f64(), online["bytes"].as_f64().map(|bytes| 2.0 * bytes), "float32 is twice as long");
    assert!(online["params"]["over_candle"].as_f64() > Some(1000.0) && candle["params"]["over_candle"] == 1.0);
    assert_eq!((&rows[2]["params"]["recomputed_rows"], rows[6]["params"].get("over_candle")), (&0.into(), None));
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("4/2x32 b2, keys and values read") && page.contains("running maxima cost"), "{page}");
}

#[test]
fn attention_without_candle_says_so_and_takes_pieces_of_prompts() {
    let more = ["--rows", "8", "--kv", "q8_0", "--bandwidth-mib", "4", "--json"];
    let output = taper(&folder(), &[&TINY_ATTENTION[..], &more].concat());
    let rows = rows(stdout(&output));
    rows.iter().for_each(check);
    assert!(String::from_utf8_lossy(&output.stderr).contains("candle is left out"));
    let attention: Vec<&Value> = rows.iter().filter(|row| row["bench"] == "attention").collect();
    assert_eq!((attention.len(), &attention[0]["params"]["kv"]), (20, &"Q8_0".into()));
    assert!(attention.iter().all(|row| row["share"].is_number() && row["params"]["rows"] == 8));
    let output = taper(&folder(), &["bench", "attention", "--heads", "8/3x64"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("32/8x64"));
}

#[test]
fn softmax_has_a_row_per_scheme_and_says_where_online_crosses_three_passes() {
    let folder = folder();
    let arguments = ["bench", "softmax", "--threads", "2", "--powers", "7,10", "--ring-mib", "1", "--repeat", "1"];
    let files = ["--time-ms", "0", "--bandwidth-mib", "4", "--json", "rows.json", "--report", "report.html"];
    let output = taper(&folder, &[&arguments[..], &files].concat());
    let table = stdout(&output);
    for part in ["X THREE-PASS", "OVER BOUNDED", "1 thread cached: online ", "2 threads memory: running maxima cost"] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    let rows = rows(&std::fs::read_to_string(folder.path().join("rows.json")).unwrap());
    rows.iter().for_each(check);
    let softmax: Vec<&Value> = rows.iter().filter(|row| row["bench"] == "softmax").collect();
    assert_eq!(softmax.len(), 2 * 2 * 2 * 8, "threads, places, lengths, schemes");
    assert_eq!(softmax[1]["case"], "1 thread cached, 128 online");
    assert_eq!((softmax[0]["threads"].as_u64(), softmax[63]["threads"].as_u64()), (Some(1), Some(2)));
    assert!(softmax.iter().all(|row| row["gbps"].is_number() == (row["params"]["place"] == "memory")));
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("Speed of online, x three-pass") && page.matches("<svg").count() == 6, "{page}");
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_measured() {
    for flag in ["--json", "--report"] {
        let output = taper(&folder(), &["bench", "bandwidth", flag, "missing/file"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains("cannot write missing/file"), "{stderr}");
        assert!(!stderr.contains("GB/s"), "{stderr}");
    }
}

#[test]
fn a_model_is_measured_against_naive_attention_at_a_depth_of_random_keys() {
    let folder = folder();
    std::fs::write(folder.path().join("tiny.gguf"), TinyModel { context: 256, ..TinyModel::default() }.to_gguf())
        .unwrap();
    let model = |more: &[&str]| {
        let arguments =
            ["bench", "model", "--model", "tiny.gguf", "--threads", "1", "--repeat", "1", "--bandwidth-mib", "0"];
        taper(&folder, &[&arguments[..], more].concat())
    };
    let output = model(&["--case", "tg2@70", "--fill", "random", "--against", "naive-attention", "--json"]);
    let rows = rows(stdout(&output));
    rows.iter().for_each(check);
    let cases: Vec<&str> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["tg2@70", "tg2@70, naive-attention", "tg2@70 against naive-attention"]);
    assert_eq!((&rows[0]["params"]["keys"], &rows[2]["unit"]), (&"random".into(), &"x".into()));
    let ratio = rows[0]["median"].as_f64().unwrap() / rows[1]["median"].as_f64().unwrap();
    assert!((rows[2]["median"].as_f64().unwrap() - ratio).abs() < 1e-9);

    let refused = |arguments: &[&str]| {
        let output = model(arguments);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["--case", "tg2@300"]).contains("made for 256"));
    let missing = refused(&["--case", "tg2", "--against", "candle", "--candle-driver", "missing"]);
    assert!(missing.contains("cannot start missing"), "{missing}");
}

#[test]
fn candle_answers_in_turns_and_a_case_it_cannot_do_is_left_to_us() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    std::fs::write(folder.path().join("tiny.gguf"), TinyModel::default().to_gguf()).unwrap();
    let driver = folder.path().join("driver");
    // Stands in for candle's network: says what it is asked, with a speed of its own.
    let script = "#!/bin/sh\nwhile read -r name; do echo \"{\\\"case\\\": \\\"$name\\\", \\\"median\\\": 4}\"; done\n";
    std::fs::write(&driver, script).unwrap();
    std::fs::set_permissions(&driver, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = taper(
        &folder,
        &[
            "bench",
            "model",
            "--model",
            "tiny.gguf",
            "--threads",
            "1",
            "--repeat",
            "2",
            "--bandwidth-mib",
            "0",
            "--json",
            "--case",
            "tg2@9",
            "--case",
            "b2",
            "--against",
            "candle",
            "--candle-driver",
            "./driver",
        ],
    );
    let rows = rows(stdout(&output));
    rows.iter().for_each(check);
    let cases: Vec<&str> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["tg2@9", "tg2@9, candle", "tg2@9 against candle", "b2"]);
    assert_eq!((rows[1]["median"].as_f64(), &rows[1]["params"]["network"]), (Some(4.0), &"candle".into()));
    let ours: Vec<f64> = serde_json::from_value(rows[0]["params"]["samples"].clone()).unwrap();
    let ratios: Vec<f64> = serde_json::from_value(rows[2]["params"]["samples"].clone()).unwrap();
    assert_eq!((ours.len(), ratios.len()), (2, 2));
    assert!(ours.iter().zip(&ratios).all(|(sample, ratio)| (sample / ratio - 4.0).abs() < 1e-9), "{ours:?} {ratios:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no batches"));
}

#[test]
fn a_chat_has_a_row_per_turn_with_the_tokens_that_each_way_computes() {
    let folder = folder();
    std::fs::write(folder.path().join("tiny.gguf"), TinyModel::default().to_gguf()).unwrap();
    let chat = |more: &[&str]| {
        let arguments = ["bench", "chat", "--model", "tiny.gguf", "--threads", "1", "--bandwidth-mib", "0"];
        taper(&folder, &[&arguments[..], more].concat())
    };
    let lengths = ["--turns", "2", "--question", "20", "--answer", "60", "--repeat", "2", "--json", "rows.json"];
    let output = chat(&lengths);
    let table = stdout(&output);
    for part in ["COMPUTED", "X TWO PATHS", "two paths, prompts mixed: 120 prompt tokens computed in all turns"] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    let rows = rows(&std::fs::read_to_string(folder.path().join("rows.json")).unwrap());
    rows.iter().for_each(check);
    let cases: Vec<&str> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    let arms = ["one path, full", "one path, mixed", "two paths, prompts mixed"];
    assert_eq!(cases, [1, 2].map(|turn| arms.map(|arm| format!("turn {turn}, {arm}"))).concat());
    let computed: Vec<u64> = rows.iter().map(|row| row["params"]["computed"].as_u64().unwrap()).collect();
    assert_eq!(computed, [20, 20, 20, 36, 36, 100]);
    let refused = chat(&["--turns", "9"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("made for 256"));
}

#[test]
fn doctor_says_what_the_machine_has_and_where_things_are() {
    let folder = folder();
    let output = taper(&folder, &["doctor", "--bandwidth-mib", "4", "--threads", "2", "--json"]);
    let found = &rows(stdout(&output))[0];
    assert_eq!(found["threads"].as_u64(), Some(2));
    let by_default = &found["default_threads"];
    let performance_cores = by_default["performance_cores"].as_array().unwrap().len() as u64;
    assert!((1..=performance_cores).contains(&by_default["threads"].as_u64().unwrap()), "{found}");
    assert!(by_default["why"].as_str().unwrap().contains("processors"), "{found}");
    assert!(found["read_bandwidth"].as_f64() > Some(0.0), "{found}");
    assert!(found["isas_available"].as_array().unwrap().contains(&found["isa"]), "{found}");
    assert!(found["operations"].as_array().unwrap().iter().all(|row| row["kernel"].is_string()), "{found}");
    let home = folder.path().to_str().unwrap();
    assert!(found["paths"]["taper_cache"].as_str().unwrap().starts_with(home), "{found}");
    assert!(["none", "permitted", "refused"].contains(&found["amx"].as_str().unwrap()), "{found}");
    assert!(found["system"]["huge_pages"].is_object() && found["system"]["container"].is_object(), "{found}");
    assert_eq!(found["tuning"]["measured"], 0, "{found}");
    let advice = found["advice"].as_array().unwrap();
    assert!(advice.iter().any(|line| line["then"].as_str().unwrap().contains("taper tune")), "{found}");

    let output = taper(&folder, &["doctor", "--bandwidth-mib", "0", "--isa", "portable"]);
    let text = stdout(&output);
    for part in [
        "processor",
        "memory",
        "not measured",
        "portable",
        "int15x32",
        "CUDA kernels",
        "none; `taper pull`",
        "limits",
        "choice of kernels",
        "what could be better:",
        "run `taper tune --isa portable`",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn what_tune_measured_is_kept_explained_and_forgotten() {
    let folder = folder();
    let tune = |arguments: &[&str]| taper(&folder, &[&["tune", "--threads", "1"], arguments].concat());
    let refused = tune(&["--explain"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("taper tune"));
    let shapes = ["--shape", "Q4_0 64x96", "--shape", "bf16 32x10"];
    let with_shapes = |more: &[&str]| tune(&[&shapes[..], more].concat());
    let measured = with_shapes(&["--repeat", "1"]);
    let text = stdout(&measured);
    assert!(
        text.starts_with("2 shapes") && text.contains("int15x32-bf16x32: ") && text.contains("int8-15x32"),
        "{text}"
    );
    for class in ["full", "mixed"] {
        let explained = tune(&["--explain", "--activations", class]);
        let text = stdout(&explained);
        let (rows, price) = text.split_once("choices: ").unwrap();
        assert_eq!(rows.matches("Q4_0 64x96").count(), 19, "one class at a time: {text}");
        assert!(rows.contains("BF16 32x10") && rows.contains("256") && rows.contains("any class, us"), "{text}");
        assert!(price.contains("summed over 19 cells") && price.contains("no block has outliers"), "{text}");
    }

    let output = with_shapes(&["--check", "--rows", "1,9", "--repeat", "2", "--json", "rows.json"]);
    let text = stdout(&output);
    for part in ["CHOSEN", "X ORACLE", "Q4_0 64x96: ", "all 4 cells: ", "1.05 of the oracle", "the worst cell is"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let rows = rows(&std::fs::read_to_string(folder.path().join("rows.json")).unwrap());
    rows.iter().for_each(check);
    let cases: Vec<&str> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["BF16 32x10 M=1", "BF16 32x10 M=9", "Q4_0 64x96 M=1", "Q4_0 64x96 M=9", "all cells"]);
    for row in &rows[..4] {
        let over = row["median"].as_f64().unwrap() / row["params"]["oracle_us"].as_f64().unwrap();
        assert!(over >= 1.0 && (row["params"]["over_oracle"].as_f64().unwrap() / over - 1.0).abs() < 1e-9, "{row}");
    }
    assert_eq!(rows[4]["params"]["repeats"].as_array().unwrap().len(), 2);

    let explained = tune(&["--explain", "--shape", "BF16 32x10"]);
    assert!(stdout(&explained).contains("BF16 32x10") && !stdout(&explained).contains("Q4_0 64x96"));
    assert!(!tune(&["--explain", "--shape", "Q4_0 32x32"]).status.success());

    assert!(!tune(&["--reset", "--model", "abacus"]).status.success());
    let reset = tune(&["--reset"]);
    let told = String::from_utf8_lossy(&reset.stderr);
    assert!(reset.status.success() && told.contains("any more for 1 thread of this processor with "), "{told}");
    assert!(!tune(&["--explain"]).status.success() && !tune(&["--check"]).status.success());
}

#[test]
#[cfg(unix)]
fn tune_tells_before_it_measures_that_it_cannot_write() {
    let folder = folder();
    std::fs::write(folder.path().join("cache"), "a file where a folder should be").unwrap();
    let mut command = support::taper();
    command.args(["tune", "--shape", "Q4_0 64x96", "--repeat", "1"]).env("TAPER_CACHE", folder.path().join("cache"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("cannot write") && !told.contains("rows"), "{told}");
}

#[test]
#[cfg(target_os = "linux")]
fn rows_are_printed_when_they_cannot_be_written() {
    let arguments = [&TINY_GEMM[..], &["--json", "/dev/full"]].concat();
    let output = taper(&folder(), &arguments);
    let (printed, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && told.contains("cannot write /dev/full"), "{told}");
    assert!(printed.contains("Q4_0 64x96 M=1") && printed.contains("commit "), "{printed}");
}

#[test]
fn a_tune_file_of_an_older_format_is_told_and_replaced() {
    let folder = folder();
    let tune = |arguments: &[&str]| taper(&folder, &[&["tune", "--threads", "1"], arguments].concat());
    let measure = || tune(&["--shape", "Q4_0 16x32", "--repeat", "1"]);
    let _ = stdout(&measure());
    let explained = tune(&["--explain"]);
    let told = String::from_utf8_lossy(&explained.stderr).into_owned();
    let path = told.lines().find_map(|line| line.strip_prefix("from ")).unwrap();
    std::fs::write(path, "{\"version\": 1, \"numerics_class\": \"float32\", \"cells\": []}").unwrap();
    let refused = tune(&["--explain"]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("format 1") && told.contains("run `taper tune"), "{told}");
    assert!(stdout(&measure()).starts_with("1 shape;"));
    assert!(tune(&["--explain"]).status.success());
}

#[test]
fn a_shape_that_is_none_is_refused_with_an_example() {
    for shape in ["Q4_0", "Q4_0 64x33", "Q9 64x64"] {
        let output = taper(&folder(), &["tune", "--shape", shape]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("Q4_0 2048x8192"), "{error}");
    }
}

#[test]
fn selftest_checks_every_kernel_and_names_them_when_asked() {
    let output = taper(&folder(), &["selftest", "--threads", "2"]);
    assert!(stdout(&output).lines().all(|line| line.ends_with("checks, all passed")), "{}", stdout(&output));
    let output = taper(&folder(), &["selftest", "--isa", "portable", "--all"]);
    let text = stdout(&output);
    for part in ["linear Q4_1, 1 rows", "linear Q6_K, 50 rows", "attention bounded, F16 keys", "silu_mul"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}
