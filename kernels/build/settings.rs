//! What the user and cargo ask for, read from variables once.

use super::toolchain::Search;
use std::env::split_paths;
use std::ffi::OsString;
use std::path::PathBuf;
use std::thread::available_parallelism;

/// Variables that choose what is compiled and by what. Not PATH: it is another one in every editor and shell.
pub(crate) const VARIABLES: &[&str] = &["NVCC", "CUDA_HOME", "CUDA_PATH", "TAPER_CUDA_PACKAGES", ARCHS, LINE_INFO];
pub(crate) const REQUIRE: &str = "TAPER_REQUIRE_CUDA_KERNELS";
pub(crate) const DENY_SPILLS: &str = "TAPER_DENY_SPILLS";
const ARCHS: &str = "TAPER_CUDA_ARCHS";
const LINE_INFO: &str = "TAPER_CUDA_LINE_INFO";

/// Every GPU that can be used (compute capability 8.0 and newer; 8.7 and 10.3 run the code of 8.6 and 10.0), and PTX for those
/// to come. 9.0 with its features of its own, `a`: its matrix products need them.
const DEFAULT_ARCHS: &str = "80,86,89,90a,100,120,ptx";

/// What a build is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The folder of the sources.
    pub(crate) sources: PathBuf,
    /// The folder of the image and its report.
    pub(crate) out: PathBuf,
    /// Where compiled files are kept for other builds; else they are kept in `out`, for this one.
    pub(crate) cache: Option<PathBuf>,
    /// Compilers that run at once, at most.
    pub(crate) jobs: usize,
    /// What to compile for; nothing if no kernels are wanted.
    pub(crate) targets: Vec<Target>,
    /// Whether code says which lines of the source it is of.
    pub(crate) line_info: bool,
    /// An image without kernels is an error.
    pub(crate) require: bool,
    /// A spill that no source explains is an error.
    pub(crate) deny_spills: bool,
    /// Where to look for the compiler.
    pub(crate) search: Search,
}

/// What code is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Machine code of an architecture, such as `90a`.
    Machine(String),
    /// PTX of the oldest architecture that can be used, which drivers compile for GPUs that this build does not know.
    Ptx,
}

/// The architecture of the PTX.
const OLDEST: &str = "80";

impl Settings {
    /// Reads them; cargo sets those that have no default.
    ///
    /// # Errors
    /// When an architecture has no form of one.
    pub(crate) fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Settings, String> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let is_on = |name: &str| set(name).is_some_and(|value| value != "0");
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let processors = available_parallelism().map_or(1, usize::from);
        Ok(Settings {
            sources: path("CARGO_MANIFEST_DIR").unwrap_or_default().join("cuda"),
            out: path("OUT_DIR").unwrap_or_default(),
            cache: path("TAPER_FATBIN_CACHE"),
            // What `cargo build -j` was given.
            jobs: text("NUM_JOBS").and_then(|jobs| jobs.parse().ok()).unwrap_or(processors).clamp(1, processors),
            targets: targets(&text(ARCHS).unwrap_or(DEFAULT_ARCHS.to_owned()))?,
            line_info: is_on(LINE_INFO),
            require: is_on(REQUIRE),
            deny_spills: is_on(DENY_SPILLS),
            search: Search {
                nvcc: path("NVCC"),
                packages: path("TAPER_CUDA_PACKAGES"),
                homes: ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path).collect(),
                path: set("PATH").map(|folders| split_paths(&folders).collect()).unwrap_or_default(),
                usual: "/usr/local/cuda".into(),
            },
        })
    }
}

fn targets(archs: &str) -> Result<Vec<Target>, String> {
    if archs == "none" {
        return Ok(Vec::new());
    }
    archs.split(',').map(|arch| Target::parse(arch.trim())).collect()
}

impl Target {
    fn parse(arch: &str) -> Result<Target, String> {
        let digits = arch.trim_end_matches(['a', 'f']);
        let is_number = matches!(digits.len(), 2..=3) && digits.bytes().all(|byte| byte.is_ascii_digit());
        match arch {
            "ptx" => Ok(Target::Ptx),
            _ if is_number && arch.len() - digits.len() <= 1 => Ok(Target::Machine(arch.to_owned())),
            _ => Err(format!(
                "{ARCHS}: {arch:?} is none of 80, 90a, 120, ... and `ptx`; `none` builds without CUDA kernels"
            )),
        }
    }

    /// In reports and names of files.
    pub(crate) fn name(&self) -> String {
        match self {
            Target::Machine(arch) => format!("sm_{arch}"),
            Target::Ptx => format!("compute_{OLDEST}"),
        }
    }

    /// What nvcc is told.
    pub(crate) fn nvcc_arguments(&self) -> [String; 2] {
        let (kind, arch) = match self {
            Target::Machine(arch) => ("-cubin", arch.as_str()),
            Target::Ptx => ("-ptx", OLDEST),
        };
        [kind.to_owned(), format!("-gencode=arch=compute_{arch},code={}", self.name())]
    }

    /// What fatbinary is told of the file that came of it.
    pub(crate) fn fatbinary_argument(&self, file: &str) -> String {
        match self {
            Target::Machine(arch) => format!("--image3=kind=elf,sm={arch},file={file}"),
            Target::Ptx => format!("--image3=kind=ptx,sm={OLDEST},file={file}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_numbers_with_a_letter_at_most() {
        let named = |archs: &str| targets(archs).map(|targets| targets.iter().map(Target::name).collect::<Vec<_>>());
        assert_eq!(named("90a, 100f,ptx").unwrap(), ["sm_90a", "sm_100f", "compute_80"]);
        assert_eq!(named(DEFAULT_ARCHS).unwrap().len(), 7);
        assert_eq!(named("none").unwrap(), [""; 0]);
        for wrong in ["", "sm_90a", "9", "90aa", "90a,", "1200", "90b", "none,80"] {
            assert!(named(wrong).is_err_and(|message| message.contains("TAPER_CUDA_ARCHS")), "{wrong:?}");
        }
    }

    #[test]
    fn variables_that_are_empty_are_not_set() {
        let read = |value: &'static str| Settings::from_variables(move |_| Some(value.into()));
        let empty = read("").unwrap();
        assert!(!empty.require && !empty.deny_spills && empty.search.nvcc.is_none() && empty.search.homes.is_empty());
        assert_eq!(empty.targets.len(), 7);
        let switches = |value: &str| {
            let value = OsString::from(value);
            let name_is_a_switch = |name: &str| [REQUIRE, DENY_SPILLS, LINE_INFO].contains(&name);
            let settings = Settings::from_variables(|name| name_is_a_switch(name).then(|| value.clone())).unwrap();
            [settings.require, settings.deny_spills, settings.line_info]
        };
        assert_eq!((switches("1"), switches("0")), ([true; 3], [false; 3]));
    }
}
