//! `--device`, what `taper doctor` says of GPUs, and that the program starts on machines without any of NVIDIA's libraries. Where
//! a driver is needed, a library that plays one is put in its place.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use taper_testkit::fake_cuda::FakeCuda;
use taper_testkit::tiny::{TinyModel, TinyType};
use tempfile::TempDir;

/// Every command that computes, with what it cannot do without.
const COMPUTING: [&str; 14] = [
    "serve",
    "chat",
    "run -p hello",
    "bench bandwidth",
    "bench gemm",
    "bench attention",
    "bench softmax",
    "bench model",
    "bench chat",
    "selftest",
    "tune",
    "tune --explain",
    "calibrate --text missing.txt",
    "perplexity missing.txt",
];

/// A program in a folder of its own.
fn taper(folder: &TempDir, words: &str) -> Command {
    let mut command = support::taper();
    for (name, _) in std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        ["TAPER_", "HF_", "XDG_", "OLLAMA_"].iter().any(|prefix| name.starts_with(prefix))
    }) {
        command.env_remove(name);
    }
    command.args(words.split_whitespace()).current_dir(folder.path()).env("HOME", folder.path()).stdin(Stdio::null());
    command
}

/// The same on a machine that a driver plays.
fn on(driver: &FakeCuda, machine: &str, folder: &TempDir, words: &str) -> Output {
    let mut command = taper(folder, words);
    driver.serve(&mut command, machine);
    command.output().unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// What a command says that refuses its device: nothing on stdout, one message, status 2.
fn refusal(output: &Output) -> String {
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{message}");
    assert!(message.lines().count() == 1 && message.starts_with("taper: --device cuda:"), "{message}");
    assert!(message.contains("--device cpu"), "what else can be done is told: {message}");
    message
}

#[test]
fn without_a_driver_every_command_says_so_before_it_does_anything() {
    let folder = folder();
    let driver = FakeCuda::absent(folder.path());
    let before = std::fs::read_dir(folder.path()).unwrap().count();
    for words in COMPUTING {
        let message = refusal(&on(&driver, "", &folder, &format!("{words} --device cuda")));
        assert!(
            message.contains("libcuda.so.1 could be loaded") && message.contains("driver 580"),
            "{words}: {message}"
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), before, "nothing was fetched or written");
}

#[test]
fn the_variable_asks_like_the_flag_and_the_flag_is_stronger() {
    let folder = folder();
    let driver = FakeCuda::absent(folder.path());
    let asked = |words: &str| {
        let mut command = taper(&folder, words);
        driver.serve(&mut command, "");
        command.env("TAPER_DEVICE", "cuda:1").output().unwrap()
    };
    assert!(refusal(&asked("tune --reset")).contains("--device cuda:1: no NVIDIA driver"));
    assert!(asked("tune --reset --device cpu").status.success());
    assert!(asked("list --aliases").status.success(), "what computes nothing needs no device");
}

#[test]
fn a_gpu_that_could_be_used_is_named_and_not_used() {
    let folder = folder();
    let driver = FakeCuda::new(folder.path());
    let message = refusal(&on(&driver, "two", &folder, "bench chat --device cuda:1"));
    for part in ["GPU 1, NVIDIA H200, compute capability 9.0", "`taper bench chat` compares what processors alone have"]
    {
        assert!(message.contains(part), "{part} in {message}");
    }
    let cases = [
        ("old-driver", "goes up to CUDA 12.9"),
        ("no-device", "finds no GPU"),
        ("old-device", "compute capability 7.5"),
        ("out-of-memory", "is out of memory"),
        ("broken", "error 803"),
    ];
    for (machine, part) in cases {
        let message = refusal(&on(&driver, machine, &folder, "run -p hello --device cuda"));
        assert!(message.contains(part), "{part} in {message}");
    }
    let message = refusal(&on(&driver, "", &folder, "run -p hello --device cuda:1"));
    assert!(message.contains("there is no GPU 1: this machine has 1"), "{message}");
}

/// An image that holds no code, which the library that plays a driver takes.
fn empty_image(folder: &TempDir) -> PathBuf {
    let image = folder.path().join("kernels.fatbin");
    let header =
        [&0xBA55_ED50_u32.to_le_bytes()[..], &1_u16.to_le_bytes(), &16_u16.to_le_bytes(), &0_u64.to_le_bytes()];
    std::fs::write(&image, header.concat()).unwrap();
    image
}

/// The library that plays a driver runs no kernel, so all logits are zeros, and the first token is the likeliest.
#[test]
fn a_model_is_loaded_onto_the_gpu_and_answers_by_it() {
    let folder = folder();
    let driver = FakeCuda::new(folder.path());
    let (image, model) = (empty_image(&folder), folder.path().join("tiny.gguf"));
    std::fs::write(&model, TinyModel::default().to_gguf()).unwrap();
    let run = |machine: &str, words: &str| {
        let mut command = taper(&folder, words);
        driver.serve(&mut command, machine);
        command.env("TAPER_FATBIN", &image).output().unwrap()
    };
    let words = "run -m tiny.gguf -p hello --raw -n 5 --temperature 0 --json --device cuda --threads 2";
    let output = run("", words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("about the processor"), "{said}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["tokens"], serde_json::json!([0, 0, 0, 0, 0]), "{answer}");
    let output = run("other-kernels", words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("from another version of taper"), "{said}");
}

/// The driver that is played says of every two moments that a millisecond and a half lies between them.
#[test]
fn benchmarks_of_a_gpu_have_its_name_and_its_clock() {
    let folder = folder();
    let driver = FakeCuda::new(folder.path());
    let image = empty_image(&folder);
    std::fs::write(folder.path().join("tiny.gguf"), TinyModel::default().to_gguf()).unwrap();
    let rows = |words: &str| -> Vec<Value> {
        let mut command = taper(&folder, &format!("{words} --device cuda --bandwidth-mib 4 --repeat 2 --json"));
        driver.serve(&mut command, "");
        let output = command.env("TAPER_FATBIN", &image).output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        let rows = String::from_utf8(output.stdout).unwrap();
        let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
        assert!(rows.iter().all(|row| row["machine"] == "NVIDIA H200" && row["isa"] == "cuda"), "{words}: {rows:?}");
        rows
    };
    let cases =
        |rows: &[Value]| -> Vec<String> { rows.iter().map(|row| row["case"].as_str().unwrap().to_owned()).collect() };
    let bandwidth = rows("bench bandwidth");
    assert_eq!(cases(&bandwidth), ["read_stream"]);
    let expected = f64::from(4 << 20) / 1.5e-3 / 1e9;
    assert!((bandwidth[0]["median"].as_f64().unwrap() / expected - 1.0).abs() < 1e-6, "{bandwidth:?}");
    fn around(inner: &[&'static str]) -> Vec<&'static str> {
        [&["before: best, read_stream"][..], inner, &["after: best, read_stream"]].concat()
    }
    let gemm = rows("bench gemm --type q8_0,f32 --shape 64x64 --rows 1,9 --ring-mib 0 --time-ms 0");
    assert_eq!(cases(&gemm), around(&["Q8_0 64x64 M=1", "Q8_0 64x64 M=9", "F32 64x64 M=1", "F32 64x64 M=9"]));
    let softmax = rows("bench softmax --powers 10 --ring-mib 0 --time-ms 0");
    assert_eq!(softmax.len(), 2 + 5 + 4, "{softmax:?}");
    let attention =
        rows("bench attention --heads 4/2x64 --keys 128 --kv bf16 --ring-mib 0 --time-ms 0 --candle-keys 128");
    let arms = ["online", "calibrated", "bounded", "online-threshold", "naive", "reads"]
        .map(|arm| format!("4/2x64 b1@128 {arm}"));
    assert_eq!(cases(&attention)[1..7], arms);
    assert!(attention.len() == 8 && attention[1]["params"]["of_reads"].is_f64(), "{attention:?}");
    // The played second-level cache has 50 MiB.
    assert!(attention[1]["params"]["ring_bytes"].as_u64() >= Some(200 << 20), "{attention:?}");
    let model = rows("bench model -m tiny.gguf --case tg2");
    assert_eq!(cases(&model), around(&["tg2"]));
}

/// On the driver that is played every launch takes as long as any other, so the rule stays.
#[test]
fn launches_are_tuned_on_the_gpu_and_kept_for_its_driver() {
    let folder = folder();
    let driver = FakeCuda::new(folder.path());
    let image = empty_image(&folder);
    std::fs::write(folder.path().join("tiny.gguf"), TinyModel::default().to_gguf()).unwrap();
    let run = |words: &str| {
        let mut command = taper(&folder, &format!("{words} --device cuda"));
        driver.serve(&mut command, "");
        let output = command.env("TAPER_FATBIN", &image).output().unwrap();
        let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success(), said.into_owned(), told.into_owned())
    };
    let (done, _, told) = run("tune --explain");
    assert!(!done && told.contains("nothing was measured for GPU 0, NVIDIA H200, with driver"), "{told}");
    let mut command = taper(&folder, "tune --device cuda --repeat 1");
    driver.serve(&mut command, "");
    let shapes = ["--shape", "Q4_0 4096x14336", "--shape", "F32 64x64"];
    let output = command.args(shapes).env("TAPER_FATBIN", &image).output().unwrap();
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1.000 as chosen") && said.contains("cuda-bf16"), "{said}{told}");
    assert!(told.contains("F32 64x64 is left out"), "{told}");
    let path = folder.path().join(".cache/taper/tune/nvidia-h200-cuda.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{told}"));
    let file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&file["machine"], &file["isa"]), (&"NVIDIA H200".into(), &"cuda".into()));
    let (done, said, told) = run("tune --explain");
    assert!(done && said.contains("r8 x4") && said.contains("Q4_0 4096x14336"), "{said}{told}");
    assert!(!run("tune --check").0);
    let answer = "run -m tiny.gguf -p hello --raw -n 2 --temperature 0";
    assert!(!run(answer).2.contains("measure"), "{:?}", run(answer));
    let stale = text.replace(file["driver"].as_str().unwrap(), "570.1, CUDA 12.8");
    std::fs::write(&path, stale).unwrap();
    let (done, _, told) = run(answer);
    assert!(done && told.contains("was measured with driver 570.1") && told.contains("tune --device cuda:0"), "{told}");
    std::fs::write(&path, "{").unwrap();
    let (done, _, told) = run(answer);
    assert!(done && told.contains("measured choices are not used") && told.contains("--reset` removes it"), "{told}");
    assert!(run("tune --reset").0 && !path.exists());
}

#[test]
fn a_device_without_kernels_of_another_order_says_that_nothing_differs() {
    let folder = folder();
    std::fs::write(folder.path().join("tiny.gguf"), TinyModel::default().to_gguf()).unwrap();
    let run = |words: &str, mode: &str| {
        let words = format!("run -m tiny.gguf -p hello --raw -n 4 --temperature 0 --json --threads 1 {words}");
        let output = taper(&folder, &words).env("TAPER_DETERMINISTIC", mode).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (answer["tokens"].clone(), String::from_utf8(output.stderr).unwrap())
    };
    let (tokens, told) = run("", "on");
    assert!(tokens.is_array() && !told.contains("deterministic"), "{told}");
    for (words, mode) in [("", "off"), ("--deterministic off", "on")] {
        let (same, told) = run(words, mode);
        assert!(same == tokens && told.contains("--deterministic off changes nothing here"), "{told}");
    }
    assert!(run("", "perhaps").1.contains("TAPER_DETERMINISTIC") || run("", "perhaps").1.contains("--deterministic"));
}

#[test]
fn the_selftest_opens_the_gpu_and_believes_no_answer_that_is_wrong() {
    let folder = folder();
    let driver = FakeCuda::new(folder.path());
    let image = empty_image(&folder);
    let run = |machine: &str| {
        let mut command = taper(&folder, "selftest --device cuda");
        driver.serve(&mut command, machine);
        command.env("TAPER_FATBIN", &image).output().unwrap()
    };
    let output = run("");
    let (said, table) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("checks failed") && table.contains("GPU 0, NVIDIA H200, cuda-bf16"), "{said}{table}");
    assert!(table.contains("rms_norm"), "{table}");
    let output = run("other-kernels");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("from another version of taper"), "{said}");
}

/// The design: a product with its norm, attention with rotation and store, a product with its addition, gate and up, down.
#[test]
fn a_layer_at_decode_is_five_launches_and_a_step_five_more() {
    let folder = folder();
    for (architecture, weight_type) in [("llama", TinyType::Q4_0), ("qwen2", TinyType::BF16), ("qwen3", TinyType::Q8_0)]
    {
        let tiny = TinyModel { architecture, weight_type, ..TinyModel::default() };
        std::fs::write(folder.path().join("tiny.gguf"), tiny.to_gguf()).unwrap();
        let output = taper(&folder, "bench launches -m tiny.gguf --keys 100 --json").output().unwrap();
        let rows = String::from_utf8(output.stdout).unwrap();
        let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
        let sum = |field: &str| rows.iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("per_layer"), sum("launches")), (5, 5 * tiny.layers as u64 + 5), "{rows:?}");
        let weight_bytes = std::fs::metadata(folder.path().join("tiny.gguf")).unwrap().len();
        assert!(
            sum("bytes") > weight_bytes / 2 && sum("bytes") < 2 * weight_bytes,
            "{rows:?}, a file of {weight_bytes}"
        );
    }
    let output = taper(&folder, "bench launches -m tiny.gguf --keys 1000").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("--keys 1000 is more than the 256 positions"));
    let output = taper(&folder, "bench launches -m tiny.gguf --batch 3").output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("positions that the model was made for"),
        "1024 is the default"
    );
}

/// Of a quantized network the same launches read half as many bytes.
#[test]
fn a_gpu_reads_fp8_where_that_is_asked_for() {
    let folder = folder();
    let tiny = TinyModel { architecture: "qwen3", weight_type: TinyType::BF16, ..TinyModel::default() };
    std::fs::write(folder.path().join("tiny.gguf"), tiny.to_gguf()).unwrap();
    let launches = |words: &str, kernel: &str| {
        let words = format!("bench launches -m tiny.gguf --keys 100 --json {words}");
        let output = taper(&folder, &words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows = String::from_utf8(output.stdout).unwrap();
        let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
        let row = rows.iter().find(|row| row["kernel"] == kernel)?;
        Some((row["launches"].as_u64().unwrap(), row["bytes"].as_u64().unwrap()))
    };
    let (num, bytes) = launches("", "gemm_mma_bf16_r8").unwrap();
    let (of_fp8, bytes_of_fp8) = launches("--quantization fp8", "gemm_mma_f8_r8").unwrap();
    assert_eq!(of_fp8, num);
    assert!(bytes_of_fp8 * 32 > bytes * 17 && bytes_of_fp8 * 10 < bytes * 6, "{bytes_of_fp8} of {bytes}");
    assert_eq!(launches("--quantization fp8", "gemm_mma_bf16_r8"), None);
    assert!(launches("--quantization fp8", "embed_tiles_f8").is_some(), "the table is the head as well");
}

#[test]
fn auto_and_cpu_are_the_processor_whatever_else_there_is() {
    let folder = folder();
    let driver = FakeCuda::new(folder.path());
    for device in ["auto", "cpu"] {
        let words = format!("bench bandwidth --threads 1 --bandwidth-mib 1 --repeat 1 --json --device {device}");
        let output = on(&driver, "", &folder, &words);
        let rows = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && rows.contains(r#""bench":"bandwidth""#), "{rows}");
    }
    let unknown = taper(&folder, "selftest --device gpu").output().unwrap();
    let message = String::from_utf8_lossy(&unknown.stderr);
    assert!(unknown.status.code() == Some(2) && message.contains("cuda:N"), "{message}");
}

#[test]
fn every_command_that_computes_has_the_flag_in_its_help() {
    let folder = folder();
    for words in COMPUTING {
        let command = words.split(" -").next().unwrap().split(" missing").next().unwrap();
        let output = taper(&folder, &format!("{command} --help")).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in
            ["--device <DEVICE>", "TAPER_DEVICE", "auto is the CPU", "`bench chat` compares what processors alone have"]
        {
            assert!(help.contains(part), "{part} in {command}: {help}");
        }
    }
}

#[test]
fn doctor_describes_the_gpus_or_says_why_there_are_none() {
    let folder = folder();
    let driver = FakeCuda::new(folder.path());
    let doctor = |machine: &str, more: &str| {
        let output = on(&driver, machine, &folder, &format!("doctor --bandwidth-mib 0 {more}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let gpu = |machine: &str| serde_json::from_str::<Value>(&doctor(machine, "--json")).unwrap()["gpu"].clone();

    let two = gpu("two");
    assert_eq!((&two["cuda"], &two["problem"]), (&"13.0".into(), &Value::Null));
    let kernels = two["kernels"].as_str().unwrap();
    assert_eq!(two["in_this_build"], !kernels.starts_with("none: "), "{kernels}");
    assert_eq!(two["devices"].as_array().unwrap().len(), 2);
    assert_eq!(two["devices"][1]["name"], "NVIDIA H200");
    assert_eq!(two["devices"][1]["compute_capability"], "9.0");
    assert_eq!(two["devices"][1]["memory_bytes"], 141_u64 << 30);
    let text = doctor("two", "");
    for part in ["GPU 1, NVIDIA H200", "132 multiprocessors", "141.00 GiB", "L2 50.00 MiB", "CUDA kernels"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }

    let old = gpu("old-driver");
    assert!(old["problem"].as_str().unwrap().contains("CUDA 12.9") && old["devices"] == serde_json::json!([]), "{old}");
    assert!(doctor("old-driver", "").contains("CUDA 12.9"));
    let said = on(&driver, "", &folder, "doctor --kernels");
    let said = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said.lines().next(), Some(kernels), "the report of the build, which begins with the line of the table");
    let full = gpu("out-of-memory");
    assert!(full["devices"][0]["problem"].as_str().unwrap().contains("out of memory"), "{full}");
}

/// Nothing of CUDA is linked: the program needs the C library and the compiler's run time.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn the_program_needs_libc_libm_and_libgcc_only() {
    let program = support::taper();
    let listed =
        Command::new("readelf").args(["--dynamic", "--wide"]).arg(program.get_program()).env("LC_ALL", "C").output();
    let listed = listed.expect("readelf is there: it comes with the C compiler's binutils");
    let text = String::from_utf8(listed.stdout).unwrap();
    let bracketed = |line: &str| line.split(['[', ']']).nth(1).unwrap_or_default().to_owned();
    let mut needed: Vec<String> = text.lines().filter(|line| line.contains("(NEEDED)")).map(bracketed).collect();
    // Every program names its loader; it comes with the C library.
    needed.retain(|name| !name.starts_with("ld-linux"));
    assert!(needed.iter().any(|name| name == "libc.so.6"), "{text}");
    let allowed = ["libc.so.6", "libm.so.6", "libgcc_s.so.1"];
    assert!(needed.iter().all(|name| allowed.contains(&name.as_str())), "{needed:?}");
}
