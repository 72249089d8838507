//! Where nvcc is, and which one.

use std::path::{self, Path, PathBuf};
use std::process::Command;

/// The oldest release: the driver interface of the program is CUDA 13.0's as well (driver 580), and older compilers do not know all
/// targets.
const OLDEST: (u32, u32) = (13, 0);

/// The folder of a toolkit in a folder of Python's `nvidia` packages.
const PACKAGED: &str = "cu13/bin/nvcc";

/// Where to look, in this order. The first two are asked for by name: nothing else is looked for where one is given.
#[derive(Debug, Clone, Default)]
pub(crate) struct Search {
    /// The compiler itself.
    pub(crate) nvcc: Option<PathBuf>,
    /// A folder that `pip install --target` filled.
    pub(crate) packages: Option<PathBuf>,
    /// Folders of toolkits.
    pub(crate) homes: Vec<PathBuf>,
    /// Folders of programs; the Python whose packages are looked at is there, too.
    pub(crate) path: Vec<PathBuf>,
    /// The folder of the toolkit that the machine's own installer leaves.
    pub(crate) usual: PathBuf,
}

/// A compiler that will do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    pub(crate) nvcc: PathBuf,
    /// The program that packs what nvcc made.
    pub(crate) fatbinary: PathBuf,
    /// Such as `13.0.88`.
    pub(crate) version: String,
}

/// Why there is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// One was asked for by name and cannot be run.
    Wrong(String),
    /// There is none, or none that is new enough. A sentence about this build.
    None(String),
}

pub(crate) fn find(search: &Search) -> Result<Toolchain, Missing> {
    let named = search.nvcc.as_ref().map(|nvcc| ("NVCC", nvcc, nvcc.clone()));
    let packages = search.packages.as_ref();
    let packaged = packages.map(|folder| ("TAPER_CUDA_PACKAGES", folder, folder.join("nvidia").join(PACKAGED)));
    if let Some((variable, value, nvcc)) = named.or(packaged) {
        let version = version(&nvcc)
            .map_err(|error| Missing::Wrong(format!("{variable}={}: {}: {error}", value.display(), nvcc.display())))?;
        return accept(nvcc, &version).map_err(|found| none(&[found]));
    }

    let mut refused = Vec::new();
    let homes = search.homes.iter().map(|home| home.join("bin/nvcc"));
    let path = search.path.iter().map(|folder| folder.join("nvcc"));
    let usual = [search.usual.join("bin/nvcc")];
    // Python is asked last, and only if there is nothing else: it takes longer than all of the rest.
    let packages = std::iter::once_with(|| python_packages(&search.path)).flatten();
    for nvcc in homes.chain(path).chain(usual).chain(packages).filter(|nvcc| nvcc.is_file()) {
        let found = version(&nvcc).map_err(|error| format!("{}: {error}", nvcc.display()));
        match found.and_then(|version| accept(nvcc, &version)) {
            Ok(toolchain) => return Ok(toolchain),
            Err(found) => refused.push(found),
        }
    }
    Err(none(&refused))
}

fn none(refused: &[String]) -> Missing {
    let (major, minor) = OLDEST;
    let found = if refused.is_empty() { String::new() } else { format!(" ({})", refused.join("; ")) };
    Missing::None(format!("this build found no nvcc {major}.{minor} or newer{found}"))
}

/// The toolchain of a compiler that is new enough, else what it is.
fn accept(nvcc: PathBuf, version: &str) -> Result<Toolchain, String> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    let release = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if release < OLDEST {
        return Err(format!("{} is {version}", nvcc.display()));
    }
    // It runs in the folder of the sources.
    let nvcc = path::absolute(&nvcc).unwrap_or(nvcc);
    // Beside it; a wrapper in another folder leaves it to PATH.
    let real = nvcc.canonicalize().unwrap_or_else(|_| nvcc.clone());
    let beside = real.with_file_name("fatbinary");
    let fatbinary = if beside.is_file() { beside } else { "fatbinary".into() };
    Ok(Toolchain { nvcc, fatbinary, version: version.to_owned() })
}

/// What `nvcc --version` says: `Cuda compilation tools, release 13.0, V13.0.88`.
fn version(nvcc: &Path) -> Result<String, String> {
    let answer = Command::new(nvcc).arg("--version").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&answer.stdout);
    let is_number =
        |word: &&str| word.split('.').count() >= 2 && word.split('.').all(|part| part.parse::<u32>().is_ok());
    let number = text.split_whitespace().filter_map(|word| word.strip_prefix('V')).find(is_number);
    number.map(str::to_owned).ok_or_else(|| "it does not answer --version as nvcc does".to_owned())
}

/// Compilers in the packages of the Python that is found first.
fn python_packages(path: &[PathBuf]) -> Vec<PathBuf> {
    let Some(python) = path.iter().map(|folder| folder.join("python3")).find(|file| file.is_file()) else {
        return Vec::new();
    };
    let script = "import nvidia; print(*nvidia.__path__, sep='\\n')";
    let Ok(answer) = Command::new(python).args(["-c", script]).output() else { return Vec::new() };
    let folders = String::from_utf8_lossy(&answer.stdout).into_owned();
    folders.lines().map(|folder| Path::new(folder).join(PACKAGED)).collect()
}
