//! The sources of the kernels: what each `.cu` file says, the headers that all share, and what a file says of its spills.

use std::fs;
use std::path::{Path, PathBuf};

/// A file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// Its name in the folder, such as `softmax.cu`.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// What is compiled, and what may be included, each by name ascending. The simulator, a folder below, is neither.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    pub(crate) kernels: Vec<Source>,
    pub(crate) headers: Vec<Source>,
}

impl Sources {
    pub(crate) fn read(folder: &Path) -> Result<Sources, String> {
        let read = |ending: &str| -> Result<Vec<Source>, std::io::Error> {
            let mut sources = Vec::new();
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if path.extension().is_some_and(|extension| extension == ending) {
                    sources.push(Source { text: fs::read_to_string(&path)?, name, path });
                }
            }
            sources.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(sources)
        };
        let both = || Ok(Sources { kernels: read("cu")?, headers: read("cuh")? });
        both().map_err(|error: std::io::Error| format!("{}: {error}", folder.display()))
    }

    /// The headers that a file includes, itself or through others, by name.
    pub(crate) fn included(&self, source: &Source) -> Vec<&Source> {
        let mut names: Vec<&str> = source.includes().collect();
        let mut found: Vec<&Source> = Vec::new();
        while let Some(name) = names.pop() {
            let header = self.headers.iter().find(|header| header.name == name);
            if let Some(header) = header.filter(|&header| !found.contains(&header)) {
                names.extend(header.includes());
                found.push(header);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.kernels.iter().chain(&self.headers).map(|source| source.path.clone())
    }
}

impl Source {
    /// Names of files that it includes itself.
    fn includes(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")?.strip_suffix('"'))
    }

    /// Whether a line `// spill: KERNEL TARGET: why` permits it; `*` is every target.
    pub(crate) fn permits_spill(&self, kernel: &str, target: &str) -> bool {
        self.text.lines().any(|line| {
            let Some(rest) = line.trim().strip_prefix("// spill:") else { return false };
            let Some((of, why)) = rest.split_once(':') else { return false };
            let words: Vec<&str> = of.split_whitespace().collect();
            !why.trim().is_empty() && (words == [kernel, target] || words == [kernel, "*"])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_includes_what_its_headers_include_and_no_more() {
        let file = |name: &str, text: &str| Source { path: PathBuf::new(), name: name.into(), text: text.into() };
        let headers = vec![
            file("a.cuh", "#pragma once\n#include \"c.cuh\"\n#include <stdint.h>\n"),
            file("b.cuh", ""),
            file("c.cuh", "#include \"a.cuh\"\n"),
        ];
        let sources = Sources { kernels: Vec::new(), headers };
        let names = |text: &str| -> Vec<String> {
            sources.included(&file("x.cu", text)).iter().map(|header| header.name.clone()).collect()
        };
        assert_eq!(names("// x\n#include \"a.cuh\"\n#include \"nowhere.h\"\n"), ["a.cuh", "c.cuh"]);
        assert_eq!(names("int b;"), [""; 0]);
    }

    #[test]
    fn a_spill_is_permitted_where_its_line_gives_a_reason() {
        let says = |line: &str| {
            let text = format!("int x;\n{line}\n");
            Source { path: PathBuf::new(), name: String::new(), text }.permits_spill("gemv_bf16", "sm_100")
        };
        assert!(says("// spill: gemv_bf16 sm_100: four bytes, outside of the loop"));
        assert!(says("  // spill: gemv_bf16 *: outside of the loop"));
        for other in [
            "",
            "// spill: gemv_bf16 sm_100:",
            "// spill: gemv_bf16 sm_100",
            "// spill: gemv_bf16 sm_120: why",
            "// spill: gemv sm_100: why",
            "// spill: gemv_bf16: why",
        ] {
            assert!(!says(other), "{other}");
        }
    }
}
