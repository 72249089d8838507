//! The build of the CUDA kernels, driven with programs that play nvcc, fatbinary and python3: what is found, what is compiled
//! and what is kept, which mistakes end it, and what it says.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../build/mod.rs"]
mod build;

use build::{Outcome, Settings};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Notes its arguments; says what a file beside it has for the target; fails for a source that has a line `#error`.
const NVCC: &str = r#"#!/bin/sh
here=$(dirname "$0")
if [ "$1" = --version ]; then
    echo "Cuda compilation tools, release RELEASE, VVERSION"
    exit
fi
echo "$@" >> "$here/calls"
for word; do
    case "$word" in
        -gencode=*) target=${word##*code=} ;;
        *.cu) source=$word ;;
    esac
    object=$word
done
if grep -n '#error' "$source" >&2; then exit 2; fi
echo "$source for $target" > "$object"
cat "$here/$source.$target.log" >&2 2>/dev/null
true
"#;

/// A fatbin with a header, and what nvcc left as its content.
const FATBINARY: &str = r#"#!/bin/sh
for word; do
    case "$word" in
        --create=*) fatbin=${word#--create=} ;;
        --image3=*) content="$content$(cat "${word##*file=}"); " ;;
    esac
done
[ ${#content} -lt 256 ] || exit 1
printf '\120\355\125\272\001\000\020\000'"\\$(printf %o ${#content})"'\000\000\000\000\000\000\000%s' "$content" > "$fatbin"
"#;

/// A machine: a folder with sources, toolkits and programs, and variables.
struct Machine {
    folder: TempDir,
    variables: HashMap<&'static str, OsString>,
}

impl Machine {
    /// Two sources and no compiler.
    fn new() -> Machine {
        let machine = Machine { folder: tempfile::tempdir().unwrap(), variables: HashMap::new() };
        for folder in ["kernels/cuda/sim", "out", "path"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        machine.write("kernels/cuda/one.cu", "#include \"all.cuh\"\n");
        machine.write("kernels/cuda/two.cu", "int two;\n");
        machine.write("kernels/cuda/all.cuh", "int all;\n");
        machine.write("kernels/cuda/sim/other.cu", "#error: not for nvcc\n");
        machine
            .with("CARGO_MANIFEST_DIR", "kernels")
            .with("OUT_DIR", "out")
            .with("PATH", "path")
            .set("NUM_JOBS", "2")
            .set("TAPER_CUDA_ARCHS", "90a,ptx")
    }

    /// A machine with nvcc 13.0.88 in PATH.
    fn with_nvcc() -> Machine {
        let machine = Machine::new();
        machine.toolkit("path", "13.0.88");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn set(mut self, variable: &'static str, value: &str) -> Machine {
        self.variables.insert(variable, value.into());
        self
    }

    /// A variable that is a path of this machine.
    fn with(self, variable: &'static str, name: &str) -> Machine {
        let path = self.path(name);
        self.set(variable, path.to_str().unwrap())
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// A program. It is written by another process: a file that this one had open could not be executed while another thread
    /// starts a process.
    fn program(&self, name: &str, text: &str) {
        self.write(&format!("{name}.text"), text);
        let done = Command::new("install")
            .args(["-m", "755"])
            .args([self.path(&format!("{name}.text")), self.path(name)])
            .status()
            .unwrap();
        assert!(done.success());
    }

    fn toolkit(&self, folder: &str, version: &str) {
        let release = version.rsplit_once('.').unwrap().0;
        self.program(&format!("{folder}/nvcc"), &NVCC.replace("RELEASE", release).replace("VERSION", version));
        self.program(&format!("{folder}/fatbinary"), FATBINARY);
    }

    fn try_build(&self) -> Result<Outcome, String> {
        let mut settings = Settings::from_variables(|name| self.variables.get(name).cloned())?;
        settings.search.usual = self.path("usual");
        build::run(&settings)
    }

    fn build(&self) -> Outcome {
        self.try_build().unwrap()
    }

    /// How it fails.
    fn failure(&self) -> String {
        self.try_build().unwrap_err()
    }

    fn image(&self) -> Vec<u8> {
        fs::read(self.path("out/kernels.fatbin")).unwrap()
    }

    fn report(&self) -> String {
        fs::read_to_string(self.path("out/kernels.txt")).unwrap()
    }

    /// What nvcc was called with since the last time, without the names of folders.
    fn calls(&self) -> Vec<String> {
        let calls = self.path("path/calls");
        let text = fs::read_to_string(&calls).unwrap_or_default();
        let _ = fs::remove_file(calls);
        let without_output = |line: &str| line.split(" -o ").next().unwrap().to_owned();
        let mut lines: Vec<String> = text.lines().map(without_output).collect();
        lines.sort();
        lines
    }
}

/// Where the compiler that was taken lies, as cargo is told: the last file that is watched.
fn taken(outcome: &Outcome, machine: &Machine) -> String {
    let nvcc = outcome.inputs.last().unwrap();
    nvcc.strip_prefix(machine.folder.path()).unwrap_or(nvcc).display().to_string()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn every_file_is_compiled_for_every_target_into_one_image() {
    let machine = Machine::with_nvcc();
    let outcome = machine.build();
    let flags = "-O3 -std=c++17 -Xptxas -v";
    let call = |arguments: &str, file: &str| format!("{flags} {arguments} {file}");
    let (cubin, ptx) =
        ("-cubin -gencode=arch=compute_90a,code=sm_90a", "-ptx -gencode=arch=compute_80,code=compute_80");
    let expected = [call(cubin, "one.cu"), call(cubin, "two.cu"), call(ptx, "one.cu"), call(ptx, "two.cu")];
    assert_eq!(machine.calls(), expected);

    let content = |file: &str| format!("{file} for sm_90a; {file} for compute_80; ");
    let fatbin = |file: &str| {
        let content = content(file);
        [b"\x50\xed\x55\xba\x01\x00\x10\x00", &(content.len() as u64).to_le_bytes()[..], content.as_bytes()].concat()
    };
    assert_eq!(machine.image(), [fatbin("one.cu"), fatbin("two.cu")].concat());
    assert_eq!(machine.report().lines().next(), Some("1 KiB for sm_90a and PTX, nvcc 13.0.88"));

    let inputs: Vec<String> = outcome.inputs.iter().map(|path| text(path)).collect();
    for name in ["kernels/cuda/one.cu", "kernels/cuda/two.cu", "kernels/cuda/all.cuh", "path/nvcc"] {
        assert!(inputs.contains(&text(&machine.path(name))), "{name} in {inputs:?}");
    }
    assert!(!inputs.iter().any(|path| path.contains("sim")), "{inputs:?}");
    assert!(outcome.warnings.is_empty(), "{:?}", outcome.warnings);
    let scratch = fs::read_dir(machine.path("out")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!scratch.into_iter().any(|name| name.to_string_lossy().starts_with("nvcc-")), "scratch files are gone");
}

#[test]
fn what_did_not_change_is_not_compiled_again() {
    let machine = Machine::with_nvcc();
    machine.build();
    let (image, report) = (machine.image(), machine.report());
    assert_eq!(machine.calls().len(), 4);
    machine.build();
    assert_eq!((machine.calls().len(), machine.image(), machine.report()), (0, image, report));

    machine.write("kernels/cuda/two.cu", "int three;\n");
    machine.build();
    let calls = machine.calls();
    assert!(calls.len() == 2 && calls.iter().all(|call| call.ends_with("two.cu")), "{calls:?}");
    machine.write("kernels/cuda/all.cuh", "int none;\n");
    machine.build();
    let calls = machine.calls();
    assert!(
        calls.len() == 2 && calls.iter().all(|call| call.ends_with("one.cu")),
        "the file that includes it: {calls:?}"
    );
    machine.toolkit("path", "13.1.80");
    machine.build();
    assert_eq!(machine.calls().len(), 4, "another compiler makes other code");

    let kept = || fs::read_dir(machine.path("out/cuda")).unwrap().count();
    assert_eq!(kept(), 4, "a fatbin and a log for each file: what is not used any more is gone");
    let machine = machine.set("TAPER_CUDA_ARCHS", "90a");
    machine.build();
    assert_eq!(machine.calls().len(), 2);
    let machine = machine.set("TAPER_CUDA_LINE_INFO", "1");
    machine.build();
    let calls = machine.calls();
    assert!(calls.len() == 2 && calls.iter().all(|call| call.contains(" -lineinfo ")), "{calls:?}");
}

#[test]
fn a_cache_serves_other_builds_and_does_not_believe_half_of_an_entry() {
    let machine = Machine::with_nvcc().with("TAPER_FATBIN_CACHE", "cache");
    machine.build();
    let image = machine.image();
    assert_eq!(machine.calls().len(), 4);

    fs::create_dir(machine.path("elsewhere")).unwrap();
    let machine = machine.with("OUT_DIR", "elsewhere");
    machine.build();
    assert_eq!(machine.calls().len(), 0);
    assert_eq!(fs::read(machine.path("elsewhere/kernels.fatbin")).unwrap(), image);

    for entry in fs::read_dir(machine.path("cache")).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().unwrap() == "log" && text(&entry).contains("one.cu") {
            fs::remove_file(entry).unwrap();
        }
    }
    machine.build();
    assert_eq!(machine.calls().len(), 2);
}

#[test]
fn compilers_are_looked_for_in_one_order() {
    let mut machine = Machine::new();
    // The last place first: each one after it comes before it.
    machine.toolkit("site/nvidia/cu13/bin", "13.0.1");
    machine.program("path/python3", &format!("#!/bin/sh\necho {}\n", text(&machine.path("site/nvidia"))));
    assert_eq!(taken(&machine.build(), &machine), "site/nvidia/cu13/bin/nvcc");
    machine.toolkit("usual/bin", "13.0.2");
    assert_eq!(taken(&machine.build(), &machine), "usual/bin/nvcc");
    machine.toolkit("path", "13.0.3");
    assert_eq!(taken(&machine.build(), &machine), "path/nvcc");
    for (variable, value, nvcc) in [
        ("CUDA_PATH", "second", "second/bin/nvcc"),
        ("CUDA_HOME", "first", "first/bin/nvcc"),
        ("TAPER_CUDA_PACKAGES", "packages", "packages/nvidia/cu13/bin/nvcc"),
        ("NVCC", "named/nvcc", "named/nvcc"),
    ] {
        machine.toolkit(nvcc.strip_suffix("/nvcc").unwrap(), "14.2.1");
        machine = machine.with(variable, value);
        let outcome = machine.build();
        assert_eq!(taken(&outcome, &machine), nvcc);
        assert!(outcome.variables.contains(&variable), "cargo watches it: {:?}", outcome.variables);
    }
}

#[test]
fn a_compiler_that_is_too_old_is_passed_over_and_named_if_there_is_no_other() {
    let machine = Machine::new().with("CUDA_HOME", "old");
    machine.toolkit("old/bin", "12.9.86");
    machine.program("path/nvcc", "#!/bin/sh\necho something else\n");
    let outcome = machine.build();
    assert!(machine.image().is_empty());
    let [warning] = &outcome.warnings[..] else { panic!("{:?}", outcome.warnings) };
    let old = text(&machine.path("old/bin/nvcc"));
    for part in ["no nvcc 13.0 or newer", &format!("{old} is 12.9.86"), "does not answer --version", "pip install"] {
        assert!(warning.contains(part), "{part} in {warning}");
    }
    machine.toolkit("usual/bin", "13.0.88");
    let outcome = machine.build();
    assert_eq!((taken(&outcome, &machine).as_str(), outcome.warnings.len()), ("usual/bin/nvcc", 0));

    let machine = machine.with("NVCC", "old/bin/nvcc");
    let outcome = machine.build();
    assert!(machine.image().is_empty() && outcome.warnings[0].contains("is 12.9.86"), "{:?}", outcome.warnings);
}

#[test]
fn a_compiler_that_is_asked_for_by_name_must_be_there() {
    let machine = Machine::with_nvcc().with("NVCC", "missing/nvcc");
    let failure = machine.failure();
    assert!(failure.starts_with("NVCC=") && failure.contains("missing/nvcc: No such file"), "{failure}");
    let machine = Machine::with_nvcc().with("TAPER_CUDA_PACKAGES", "empty");
    let failure = machine.failure();
    assert!(failure.starts_with("TAPER_CUDA_PACKAGES=") && failure.contains("empty/nvidia/cu13/bin/nvcc"), "{failure}");
}

#[test]
fn without_a_compiler_the_image_is_empty_and_the_reason_is_kept() {
    let machine = Machine::new();
    let outcome = machine.build();
    assert_eq!(
        (machine.image().len(), machine.report().as_str()),
        (0, "none: this build found no nvcc 13.0 or newer\n")
    );
    let [warning] = &outcome.warnings[..] else { panic!("{:?}", outcome.warnings) };
    for part in ["pip install --no-deps --target DIR -r kernels/cuda/requirements.txt", "TAPER_CUDA_PACKAGES=DIR"] {
        assert!(warning.contains(part), "{part} in {warning}");
    }
    assert!(outcome.variables.contains(&"TAPER_REQUIRE_CUDA_KERNELS"), "it would make a difference");

    let machine = machine.set("TAPER_REQUIRE_CUDA_KERNELS", "1");
    let failure = machine.failure();
    assert!(failure.contains("TAPER_REQUIRE_CUDA_KERNELS") && failure.contains("pip install"), "{failure}");
    machine.toolkit("path", "12.0.1");
    assert!(machine.failure().contains("is 12.0.1"));
    machine.toolkit("path", "13.0.88");
    assert!(!machine.build().variables.contains(&"TAPER_REQUIRE_CUDA_KERNELS"), "it makes none");

    let unwanted = Machine::with_nvcc().set("TAPER_CUDA_ARCHS", "none");
    assert!(unwanted.build().warnings.is_empty() && unwanted.image().is_empty());
    assert_eq!(unwanted.report(), "none: TAPER_CUDA_ARCHS=none was asked for\n");
}

#[test]
fn an_error_in_a_source_is_told_in_the_words_of_nvcc() {
    let machine = Machine::with_nvcc();
    machine.write("kernels/cuda/two.cu", "int two;\n#error \"here\"\n");
    let failure = machine.failure();
    for part in ["two.cu for sm_90a: exit status: 2", "2:#error \"here\"", "TAPER_CUDA_ARCHS=none"] {
        assert!(failure.contains(part), "{part} in {failure}");
    }
    machine.write("kernels/cuda/two.cu", "int two;\n");
    machine.build();
    machine.program("path/fatbinary", "#!/bin/sh\necho 'no space' >&2\nexit 1\n");
    machine.write("kernels/cuda/two.cu", "int three;\n");
    let failure = machine.failure();
    assert!(failure.contains("fatbinary fails: exit status: 1\nno space"), "{failure}");
}

/// What ptxas says of a kernel.
fn said(kernel: &str, target: &str, stores: u32, loads: u32) -> String {
    format!(
        "ptxas info    : Compiling entry function '{kernel}' for '{target}'\n\
         ptxas info    : Function properties for {kernel}\n    \
             {stores} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n\
         ptxas info    : Used 40 registers, used 1 barriers, 64 bytes smem, 372 bytes cmem[0]\n"
    )
}

#[test]
fn warnings_and_spills_are_told_and_spills_forbidden_unless_the_source_says_why() {
    let machine = Machine::with_nvcc().set("TAPER_CUDA_ARCHS", "90a,100,ptx");
    for (target, stores, loads) in [("sm_90a", 0, 0), ("sm_100", 8, 12)] {
        let warning = "two.cuh(7): warning #177-D: variable \"x\" is not used\n";
        let log = warning.to_owned() + &said("gemv", target, 0, 0) + &said("flat_gemm", target, stores, loads);
        machine.write(&format!("path/one.cu.{target}.log"), &log);
    }
    let outcome = machine.build();
    let spill = "one.cu: flat_gemm spills registers: sm_100 8 bytes stored, 12 loaded";
    assert_eq!(outcome.warnings, ["one.cu: two.cuh(7): warning #177-D: variable \"x\" is not used", spill]);
    assert!(outcome.variables.contains(&"TAPER_DENY_SPILLS"));
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let table: Vec<_> = machine.report().lines().map(words).filter(|words| words.len() == 7).collect();
    assert!(table.contains(&words("flat_gemm sm_100 40 64 8 8 12")), "{}", machine.report());
    assert!(table.contains(&words("gemv sm_90a 40 64 0 0 0")), "{}", machine.report());

    let machine = machine.set("TAPER_DENY_SPILLS", "1");
    let failure = machine.failure();
    assert!(failure.contains(spill) && failure.contains("// spill: KERNEL sm_90a: why"), "{failure}");
    machine.write("kernels/cuda/one.cu", "// spill: flat_gemm sm_100: two registers, before the loop\n");
    let outcome = machine.build();
    assert!(outcome.warnings.len() == 1 && !outcome.variables.contains(&"TAPER_DENY_SPILLS"), "{outcome:?}");
    assert!(machine.report().contains("flat_gemm"));
}

#[test]
fn what_is_edited_while_it_is_compiled_is_not_kept() {
    let machine = Machine::with_nvcc();
    let edit = format!("here=$(dirname \"$0\")\necho 'int late;' >> {}\n", text(&machine.path("kernels/cuda/all.cuh")));
    let nvcc =
        NVCC.replacen("here=$(dirname \"$0\")\n", &edit, 1).replace("RELEASE", "13.0").replace("VERSION", "13.0.88");
    machine.program("path/nvcc", &nvcc);
    machine.build();
    assert_eq!(machine.calls().len(), 4);
    machine.write("kernels/cuda/all.cuh", "int all;\n");
    machine.toolkit("path", "13.0.88");
    machine.build();
    assert_eq!(machine.calls().len(), 4);
}
