//! The release of NVIDIA's kernel driver (`580.65.06`), which the driver's library does not tell: it knows its CUDA version.

use std::fs;

/// The release of the kernel driver that is loaded, if there is one.
pub fn driver_release() -> Option<String> {
    parse(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The first word of the first line that is a version.
fn parse(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_found_in_the_lines_of_either_driver() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC 12.2.0\n";
        assert_eq!(parse(closed).as_deref(), Some("535.129.03"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)\n";
        assert_eq!(parse(open).as_deref(), Some("580.65.06"));
        assert_eq!(parse("NVRM version: unknown\nGCC version: 12.2.0\n"), None);
        assert_eq!(parse(""), None);
    }
}
