//! What could be better, a line each, with what to do.

use super::system::System;
use indicatif::BinaryBytes;
use serde::Serialize;

/// Something that could be better.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Advice {
    /// What is the case.
    pub(super) what: String,
    /// What to do, a command where there is one.
    pub(super) then: String,
}

/// What advice is made of.
#[derive(Debug, Default, Clone)]
pub(super) struct Findings<'a> {
    pub(super) system: System,
    /// That compute.
    pub(super) threads: usize,
    /// The command that measures kernels, where nothing was measured.
    pub(super) untuned: Option<&'a str>,
    pub(super) memory_available_bytes: Option<u64>,
    /// Names and sizes of models that are here.
    pub(super) models: Vec<(&'a str, u64)>,
    /// Sets that the processor has and the system keeps back: name and reason.
    pub(super) refused: Vec<(&'a str, &'a str)>,
    /// A GPU that could compute and is not asked to by default.
    pub(super) gpu: Option<&'a str>,
    /// A GPU that this build has no kernels for.
    pub(super) gpu_without_kernels: bool,
}

/// Models that do not fit are named as far as so many; more would hide the rest.
const MOST_MODELS: usize = 3;

/// What follows from what was found; empty where nothing could be better.
pub(super) fn advise(found: &Findings<'_>) -> Vec<Advice> {
    let mut advice = Vec::new();
    let mut add = |what: String, then: String| advice.push(Advice { what, then });
    if let Some(command) = found.untuned {
        add("no kernels were measured here: built-in rules choose them".into(), format!("run `{command}` once"));
    }
    for (isa, reason) in &found.refused {
        add(format!("the processor has {isa}, and it is not used"), (*reason).to_owned());
    }
    let transparent = "/sys/kernel/mm/transparent_hugepage";
    if found.system.huge_pages.transparent.as_deref() == Some("never") {
        add(
            "huge pages are off, so the processor looks up every 4 KiB of weights".into(),
            format!("run `echo madvise | sudo tee {transparent}/enabled`"),
        );
    } else if found.system.huge_pages.defrag.as_deref() == Some("never") {
        add(
            "huge pages come only where memory is whole already".into(),
            format!("run `echo madvise | sudo tee {transparent}/defrag`"),
        );
    }
    let reserved = &found.system.huge_pages;
    if let (Some(free), Some(size)) = (reserved.reserved_free.filter(|free| *free > 0), reserved.size_bytes) {
        let bytes = BinaryBytes(free.saturating_mul(size));
        add(
            format!("{bytes} are reserved as huge pages that nobody uses, and this program cannot"),
            "run `sudo sysctl vm.nr_hugepages=0` if nothing else needs them".into(),
        );
    }
    if let Some(load) = found.system.load_average.filter(|load| *load > found.threads as f64) {
        let threads = taper_bench::counted(found.threads, "thread");
        add(
            format!("the load average is {load:.1}, and {threads} compute here"),
            "close other programs (`top` shows them), or take fewer threads by `--threads`".into(),
        );
    }
    let container = &found.system.container;
    let left = container.memory_limit_bytes.map(|limit| limit.saturating_sub(container.memory_used_bytes.unwrap_or(0)));
    if let Some(memory) = found.memory_available_bytes.into_iter().chain(left).min() {
        let too_large = found.models.iter().filter(|(_, bytes)| *bytes > memory);
        for (name, bytes) in too_large.take(MOST_MODELS) {
            let (bytes, memory) = (BinaryBytes(*bytes), BinaryBytes(memory));
            add(
                format!("{name} has {bytes}, and {memory} of memory are free"),
                "close other programs, raise the container's limit, or take a smaller quantization of it".into(),
            );
        }
    }
    if let Some(gpu) = found.gpu {
        add(
            format!("{gpu} computes only where it is asked to"),
            "add `--device cuda`, or set TAPER_DEVICE=cuda".into(),
        );
    }
    if found.gpu_without_kernels {
        add(
            "there is a GPU, and this build has no kernels for it".into(),
            "build with nvcc 13 (README.md, Devices), or set TAPER_FATBIN".into(),
        );
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::super::system::{Container, HugePages};
    use super::*;

    fn check(found: &Findings<'_>, what: &str, then: &str) {
        let advice = advise(found);
        assert_eq!(advice.len(), 1, "{advice:?}");
        assert!(advice[0].what.contains(what) && advice[0].then.contains(then), "{advice:?}");
    }

    fn huge_pages(huge_pages: HugePages) -> Findings<'static> {
        Findings { system: System { huge_pages, ..System::default() }, ..Findings::default() }
    }

    #[test]
    fn a_machine_without_faults_gets_no_advice() {
        assert_eq!(advise(&Findings::default()), []);
        let fine = HugePages {
            transparent: Some("madvise".into()),
            defrag: Some("madvise".into()),
            reserved_free: Some(0),
            ..HugePages::default()
        };
        assert_eq!(advise(&huge_pages(fine)), []);
    }

    #[test]
    fn each_fault_is_named_with_what_to_do() {
        check(
            &Findings { untuned: Some("taper tune"), ..Findings::default() },
            "no kernels were measured",
            "run `taper tune`",
        );
        check(&Findings { refused: vec![("amx", "Linux 5.16")], ..Findings::default() }, "has amx", "Linux 5.16");
        let never = || Some("never".to_owned());
        check(
            &huge_pages(HugePages { transparent: never(), ..HugePages::default() }),
            "huge pages are off",
            "tee /sys/kernel/mm/transparent_hugepage/enabled",
        );
        check(&huge_pages(HugePages { defrag: never(), ..HugePages::default() }), "whole already", "/defrag");
        let reserved = HugePages { reserved_free: Some(2), size_bytes: Some(1 << 30), ..HugePages::default() };
        check(&huge_pages(reserved), "2.00 GiB are reserved", "vm.nr_hugepages=0");
        check(&Findings { gpu: Some("GPU 0"), ..Findings::default() }, "GPU 0 computes only", "--device cuda");
        check(&Findings { gpu_without_kernels: true, ..Findings::default() }, "no kernels for it", "TAPER_FATBIN");
    }

    #[test]
    fn others_that_compute_are_told_of() {
        let load = |load| Findings {
            threads: 2,
            system: System { load_average: Some(load), ..System::default() },
            ..Findings::default()
        };
        assert_eq!(advise(&load(2.0)), []);
        check(&load(2.1), "load average is 2.1, and 2 threads", "close other programs");
    }

    #[test]
    fn a_model_larger_than_what_is_free_is_named() {
        let models = vec![("small", 10), ("large", 1000)];
        let found = Findings { models, memory_available_bytes: Some(500), ..Findings::default() };
        check(&found, "large has 1000 B", "smaller quantization");
        let container = Container { memory_limit_bytes: Some(900), memory_used_bytes: Some(895), processors: None };
        let in_container = Findings { system: System { container, ..System::default() }, ..found };
        assert_eq!(advise(&in_container).len(), 2, "the tighter of the two counts");
    }
}
