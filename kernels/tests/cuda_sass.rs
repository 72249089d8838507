//! `cuda/check_sass.py` on the words of a disassembler that a program plays.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// What cuobjdump prints of one kernel for two architectures.
const SAID: &str = "\
Fatbin elf code:
================
arch = sm_80
\tcode for sm_80
\t\tFunction : gemv_bf16
\t.headerflags\t@\"EF_CUDA_SM80\"
        /*0000*/                   MOV R1, c[0x0][0x28] ;                 /* 0x00000a0000017a02 */
                                                                          /* 0x000fe40000000f00 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;       /* 0x0000000402047981 */
        /*0020*/                   HMMA.16816.F32.BF16 R4, R4, R8, R4 ;   /* 0x000000080404723c */
\tcode for sm_90a
\t\tFunction : gemv_bf16
        /*0000*/             @!UP2 STL.64 [R1+0x8], R4 ;                  /* 0x0000080401007387 */
";

/// The exit status and the output for some rules.
fn check(rules: &str, said: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    fs::write(file("said"), said).unwrap();
    fs::write(file("cuobjdump.text"), format!("#!/bin/sh\ncat {}\n", file("said").display())).unwrap();
    fs::write(file("rules"), rules).unwrap();
    fs::write(file("image"), b"\x50\xed\x55\xba\x01\x00\x10\x00\x01\x00\x00\x00\x00\x00\x00\x00x").unwrap();
    // Written by another process: one that this process had open could be busy when it is started.
    let install =
        Command::new("install").args(["-m", "755"]).args([file("cuobjdump.text"), file("cuobjdump")]).status();
    assert!(install.unwrap().success());
    let done = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/check_sass.py"))
        .arg(file("image"))
        .arg("--rules")
        .arg(file("rules"))
        .env("CUOBJDUMP", file("cuobjdump"))
        .env("NVDISASM", file("cuobjdump"))
        .output()
        .unwrap();
    let text = String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
    (done.status.code().unwrap(), text)
}

#[test]
fn rules_that_hold_pass() {
    let rules = "# comment\n\ngemv_* sm_80 has HMMA.16816 LDG lacks STL HMMA.16\n* sm_90a has STL # there\n* sm_120 has X\n*,!gemm_* sm_80 lacks STL";
    let (status, text) = check(rules, SAID);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("2 kernels for sm_80 sm_90a, 0 violations"), "{text}");
}

#[test]
fn a_rule_that_is_broken_is_named_with_what_breaks_it() {
    for (rules, words) in [
        ("* * lacks LDL STL", "STL 1 times in gemv_bf16 for sm_90a"),
        ("* sm_90a has HMMA", "HMMA is not there in gemv_bf16 for sm_90a"),
        ("gemm_* * has HMMA", "there is no such kernel"),
        ("*,!gemv_* * has HMMA", "there is no such kernel"),
    ] {
        let (status, text) = check(rules, SAID);
        assert!(status == 1 && text.contains(words) && text.contains(", 1 violations"), "{status} {text}");
    }
}

#[test]
fn what_cannot_be_checked_is_no_success() {
    let (status, text) = check("gemv_* * HMMA", SAID);
    assert!(status == 2 && text.contains("rule 1"), "{status} {text}");
    let (status, text) = check("* * lacks STL", "Fatbin ptx code:\n");
    assert!(status == 2 && text.contains("has no machine code"), "{status} {text}");
}
