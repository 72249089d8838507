//! What ptxas says of each kernel, as a table: registers, shared memory, stack and spills. A spill is a register that is kept in
//! memory for a while: a load and a store, usually inside of the loop that everybody waits for.

use super::compile::{Compiled, Log};
use super::settings::{Settings, Target};
use super::sources::Sources;
use super::toolchain::Toolchain;
use std::fmt::Write;

/// What a kernel takes; bytes per thread, shared memory per block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Resources {
    /// A kernel, or a function that was not inlined into one: it has no registers of its own.
    pub(crate) function: String,
    pub(crate) registers: u32,
    /// Static shared memory.
    pub(crate) shared: u32,
    pub(crate) stack: u32,
    pub(crate) spill_stores: u32,
    pub(crate) spill_loads: u32,
}

/// All files.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    files: Vec<FileReport<'a>>,
}

#[derive(Debug)]
struct FileReport<'a> {
    name: &'a str,
    logs: &'a [Log],
    /// Of each log, in their order.
    resources: Vec<Vec<Resources>>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(compiled: &'a [Compiled]) -> Report<'a> {
        let file = |file: &'a Compiled| FileReport {
            name: &file.name,
            logs: &file.logs,
            resources: file.logs.iter().map(|log| parse(&log.text)).collect(),
        };
        Report { files: compiled.iter().map(file).collect() }
    }

    /// A line for each kernel that spills on a target for which its file does not say why.
    pub(crate) fn spills(&self, sources: &Sources) -> Vec<String> {
        let mut lines = Vec::new();
        for (file, source) in self.files.iter().zip(&sources.kernels) {
            let mut spills: Vec<(&str, Vec<String>)> = Vec::new();
            for (target, used) in file.rows().filter(|(_, used)| used.spill_stores + used.spill_loads > 0) {
                if source.permits_spill(&used.function, target) {
                    continue;
                }
                let words = format!("{target} {} bytes stored, {} loaded", used.spill_stores, used.spill_loads);
                match spills.iter_mut().find(|(function, _)| *function == used.function) {
                    Some((_, targets)) => targets.push(words),
                    None => spills.push((&used.function, vec![words])),
                }
            }
            let line = |(function, targets): (&str, Vec<String>)| {
                format!("{}: {function} spills registers: {}", file.name, targets.join("; "))
            };
            lines.extend(spills.into_iter().map(line));
        }
        lines
    }

    /// What compilers warn of, without the repetitions of other targets. ptxas calls it an info when it gives up on speed.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for file in &self.files {
            let said = file.logs.iter().flat_map(|log| log.text.lines());
            for line in said.filter(|line| line.contains("warning") || line.contains("Performance Loss")) {
                let line = format!("{}: {}", file.name, line.trim());
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
        lines
    }

    /// A line that sums up, the seconds of each file, and the table.
    pub(crate) fn text(&self, image_bytes: usize, settings: &Settings, toolchain: &Toolchain) -> String {
        let mut text = format!("{}\n\nseconds of nvcc\n", summary(image_bytes, settings, toolchain));
        for file in &self.files {
            let sum: f64 = file.logs.iter().map(|log| log.seconds).sum();
            let each: Vec<String> = file.logs.iter().map(|log| format!("{} {:.1}", log.target, log.seconds)).collect();
            let _ = writeln!(text, "{:<32} {sum:>7.1}  {}", file.name, each.join("  "));
        }
        let rows = || self.files.iter().flat_map(FileReport::rows);
        let width = rows().map(|(_, used)| used.function.len()).max().unwrap_or_default().max("kernel".len());
        let _ = writeln!(
            text,
            "\n{:<width$}  {:<8}  registers  shared  stack  spill stores  spill loads",
            "kernel", "target"
        );
        for (target, used) in rows() {
            let Resources { function, registers, shared, stack, spill_stores, spill_loads } = used;
            let _ = writeln!(
                text,
                "{function:<width$}  {target:<8}  {registers:>9}  {shared:>6}  {stack:>5}  {spill_stores:>12}  {spill_loads:>11}"
            );
        }
        text
    }
}

impl FileReport<'_> {
    /// Kernels by name, each on all targets.
    fn rows(&self) -> impl Iterator<Item = (&str, &Resources)> {
        let targets = self.logs.iter().map(|log| log.target.as_str());
        let mut rows: Vec<(&str, &Resources)> = targets
            .zip(&self.resources)
            .flat_map(|(target, list)| list.iter().map(move |used| (target, used)))
            .collect();
        // Stable: targets keep their order.
        rows.sort_by(|(_, a), (_, b)| a.function.cmp(&b.function));
        rows.into_iter()
    }
}

/// `367 KiB for sm_80 86 89 90a 100 120 and PTX, nvcc 13.0.88`.
fn summary(image_bytes: usize, settings: &Settings, toolchain: &Toolchain) -> String {
    let machines = settings.targets.iter().filter_map(|target| match target {
        Target::Machine(arch) => Some(arch.as_str()),
        Target::Ptx => None,
    });
    let machines = machines.collect::<Vec<_>>().join(" ");
    let has_ptx = settings.targets.contains(&Target::Ptx);
    let targets = match (machines.is_empty(), has_ptx) {
        (true, _) => "PTX".to_owned(),
        (false, true) => format!("sm_{machines} and PTX"),
        (false, false) => format!("sm_{machines}"),
    };
    format!("{} KiB for {targets}, nvcc {}", image_bytes.div_ceil(1024), toolchain.version)
}

/// Reads what `ptxas -v` says.
pub(crate) fn parse(text: &str) -> Vec<Resources> {
    let mut functions: Vec<Resources> = Vec::new();
    let mut kernel = String::new();
    let mut current = String::new();
    for line in text.lines().map(|line| line.trim_start_matches("ptxas info").trim_start_matches([' ', ':'])) {
        if let Some(rest) = line.strip_prefix("Compiling entry function ") {
            kernel = rest.split('\'').nth(1).unwrap_or_default().to_owned();
        } else if let Some(name) = line.strip_prefix("Function properties for ") {
            current = name.trim().to_owned();
        } else if line.contains("bytes stack frame") {
            let used = of(&mut functions, &current);
            used.stack = before(line, " bytes stack frame");
            used.spill_stores = before(line, " bytes spill stores");
            used.spill_loads = before(line, " bytes spill loads");
        } else if line.starts_with("Used ") {
            let used = of(&mut functions, &kernel);
            used.registers = before(line, " registers");
            used.shared = before(line, " bytes smem");
        }
    }
    functions
}

/// The entry of a function, a new one if it is the first that is said of it.
fn of<'a>(functions: &'a mut Vec<Resources>, name: &str) -> &'a mut Resources {
    let at = functions.iter().position(|used| used.function == name).unwrap_or_else(|| {
        functions.push(Resources { function: name.to_owned(), ..Resources::default() });
        functions.len() - 1
    });
    &mut functions[at]
}

/// The number before some words; zero if they are not there.
fn before(line: &str, words: &str) -> u32 {
    let head = line.split(words).next().filter(|head| head.len() < line.len());
    head.and_then(|head| head.rsplit([' ', ',']).next()).and_then(|number| number.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ptxas 13.0 says of a kernel that is well, of one that spills and of the function that it calls.
    const SAID: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'softmax_block' for 'sm_80'
ptxas info    : Function properties for softmax_block
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 32 bytes smem, 372 bytes cmem[0]
ptxas info    : Compile time = 11.250 ms
ptxas info    : Compiling entry function 'attention' for 'sm_80'
ptxas info    : Function properties for attention
    40 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 40 bytes cumulative stack size, 372 bytes cmem[0]
ptxas info    : Compile time = 40.791 ms
ptxas info    : Function properties for _ZN3foo3barEf
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
";

    fn used(function: &str, registers: u32, [shared, stack, spill_stores, spill_loads]: [u32; 4]) -> Resources {
        Resources { function: function.into(), registers, shared, stack, spill_stores, spill_loads }
    }

    #[test]
    fn every_function_has_what_ptxas_says_of_it() {
        let expected = [
            used("softmax_block", 30, [32, 0, 0, 0]),
            used("attention", 255, [0, 40, 4, 8]),
            used("_ZN3foo3barEf", 0, [0, 16, 0, 0]),
        ];
        assert_eq!(parse(SAID), expected);
        assert_eq!(parse(""), []);
    }
}
