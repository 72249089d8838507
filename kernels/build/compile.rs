//! Runs nvcc, a process per file and target, and fatbinary, a process per file. What came of a file is kept by a hash of all
//! that it was made from, so an edit of one file compiles that file alone, and an edit of a header all of them.

use super::settings::{Settings, Target};
use super::sources::{Source, Sources};
use super::toolchain::Toolchain;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

/// `-v`: the report is made from what ptxas says.
const FLAGS: &[&str] = &["-O3", "-std=c++17", "-Xptxas", "-v"];
/// For profilers and the sanitizer, which name lines of the source then; the image is nearly three times as large with it.
const LINE_INFO: &str = "-lineinfo";

/// Code is unpacked once, when it is loaded.
const COMPRESSION: &str = "--compress-mode=size";

/// What a compilation needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compiler<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) toolchain: &'a Toolchain,
    pub(crate) sources: &'a Sources,
}

/// A file that was compiled for all targets.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// Of the source.
    pub(crate) name: String,
    pub(crate) fatbin: Vec<u8>,
    /// One for each target.
    pub(crate) logs: Vec<Log>,
}

/// What a run of nvcc left.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Log {
    /// Such as `sm_90a`.
    pub(crate) target: String,
    pub(crate) seconds: f64,
    /// ptxas' words.
    pub(crate) text: String,
}

impl Compiler<'_> {
    /// All files, in the order of the sources.
    pub(crate) fn run(&self) -> Result<Vec<Compiled>, String> {
        let cache = self.settings.cache.clone().unwrap_or_else(|| self.settings.out.join("cuda"));
        fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
        let entries: Vec<Entry> =
            self.sources.kernels.iter().map(|source| Entry::new(&cache, &self.key(source))).collect();
        let mut compiled: Vec<Option<Compiled>> =
            self.sources.kernels.iter().zip(&entries).map(|(source, entry)| entry.read(&source.name)).collect();

        let missing: Vec<usize> = (0..compiled.len()).filter(|&at| compiled[at].is_none()).collect();
        let mut made =
            self.compile(&missing.iter().map(|&at| &self.sources.kernels[at]).collect::<Vec<_>>())?.into_iter();
        // What was edited meanwhile was compiled under the name of what it was; cargo runs the build again.
        let unchanged = Sources::read(&self.settings.sources).is_ok_and(|now| now == *self.sources);
        for at in missing {
            let file = made.next().ok_or("a file is missing")?;
            if unchanged {
                entries[at].write(&file).map_err(|error| format!("{}: {error}", cache.display()))?;
            }
            compiled[at] = Some(file);
        }
        if self.settings.cache.is_none() {
            prune(&cache, &entries);
        }
        Ok(compiled.into_iter().flatten().collect())
    }

    fn flags(&self) -> impl Iterator<Item = &'static str> + use<> {
        FLAGS.iter().copied().chain(self.settings.line_info.then_some(LINE_INFO))
    }

    /// The name of what comes of a file.
    fn key(&self, source: &Source) -> String {
        let mut hasher = DefaultHasher::new();
        let flags: Vec<&str> = self.flags().collect();
        (&self.toolchain.version, flags, COMPRESSION, &source.text).hash(&mut hasher);
        for header in self.sources.included(source) {
            (&header.name, &header.text).hash(&mut hasher);
        }
        for target in &self.settings.targets {
            target.name().hash(&mut hasher);
        }
        format!("{}.{:016x}", source.name, hasher.finish())
    }

    /// Files that nothing was kept of.
    fn compile(&self, files: &[&Source]) -> Result<Vec<Compiled>, String> {
        let scratch = self.settings.out.join(format!("nvcc-{}", process::id()));
        fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
        let compiled = self.compile_in(&scratch, files);
        let _ = fs::remove_dir_all(&scratch);
        compiled
    }

    fn compile_in(&self, scratch: &Path, files: &[&Source]) -> Result<Vec<Compiled>, String> {
        let targets = &self.settings.targets;
        let runs: Vec<(&Source, &Target)> =
            files.iter().flat_map(|file| targets.iter().map(move |target| (*file, target))).collect();
        let logs = in_parallel(self.settings.jobs, &runs, |(file, target)| self.nvcc(scratch, file, target))?;
        let pack = |(file, logs): (&&Source, &[Log])| {
            let fatbin = self.fatbinary(scratch, file)?;
            Ok(Compiled { name: file.name.clone(), fatbin, logs: logs.to_vec() })
        };
        files.iter().zip(logs.chunks(targets.len())).map(pack).collect()
    }

    fn nvcc(&self, scratch: &Path, source: &Source, target: &Target) -> Result<Log, String> {
        let begin = Instant::now();
        // In the folder of the sources, so that no name of a folder comes into the code.
        let mut command = Command::new(&self.toolchain.nvcc);
        command.current_dir(&self.settings.sources).args(self.flags()).args(target.nvcc_arguments()).arg(&source.name);
        let text = output(command.arg("-o").arg(object(scratch, source, target))).map_err(|words| {
            format!(
                "nvcc {} cannot compile {} for {}: {words}\nTAPER_CUDA_ARCHS=none builds without CUDA kernels",
                self.toolchain.version,
                source.path.display(),
                target.name()
            )
        })?;
        Ok(Log { target: target.name(), seconds: begin.elapsed().as_secs_f64(), text })
    }

    fn fatbinary(&self, scratch: &Path, source: &Source) -> Result<Vec<u8>, String> {
        let fatbin = scratch.join(&source.name).with_extension("fatbin");
        let mut command = Command::new(&self.toolchain.fatbinary);
        command.arg(format!("--create={}", fatbin.display())).args(["-64", COMPRESSION]);
        for target in &self.settings.targets {
            command.arg(target.fatbinary_argument(&object(scratch, source, target).display().to_string()));
        }
        let failed = |words: String| format!("{} fails: {words}", self.toolchain.fatbinary.display());
        output(&mut command).map_err(failed)?;
        fs::read(&fatbin).map_err(|error| failed(error.to_string()))
    }
}

/// Where nvcc leaves what it made.
fn object(scratch: &Path, source: &Source, target: &Target) -> PathBuf {
    scratch.join(format!("{}.{}", source.name, target.name()))
}

/// What a program that succeeds says on stderr; else how it ended, and all that it said.
fn output(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let (said, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    if done.status.success() { Ok(errors.into_owned()) } else { Err(format!("{}\n{said}{errors}", done.status)) }
}

/// `work` on every item, on some threads; after the first failure nothing new is begun. The failure is that of the first item.
fn in_parallel<T: Copy + Sync, R: Send>(
    threads: usize,
    items: &[T],
    work: impl Fn(T) -> Result<R, String> + Sync,
) -> Result<Vec<R>, String> {
    let next = Mutex::new(items.iter().copied().enumerate());
    let take = || next.lock().ok()?.next();
    let done: Mutex<Vec<(usize, Result<R, String>)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                while let Some((at, item)) = take() {
                    let result = work(item);
                    let failed = result.is_err();
                    if let Ok(mut done) = done.lock() {
                        done.push((at, result));
                    }
                    if failed {
                        while take().is_some() {}
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().map_err(|_| "a thread of the build panicked")?;
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The two files that are kept of a compilation.
struct Entry {
    fatbin: PathBuf,
    log: PathBuf,
}

impl Entry {
    fn new(cache: &Path, key: &str) -> Entry {
        Entry { fatbin: cache.join(format!("{key}.fatbin")), log: cache.join(format!("{key}.log")) }
    }

    fn read(&self, name: &str) -> Option<Compiled> {
        let (fatbin, log) = (fs::read(&self.fatbin).ok()?, fs::read_to_string(&self.log).ok()?);
        Some(Compiled { name: name.to_owned(), fatbin, logs: Log::read_all(&log)? })
    }

    /// Whoever finds the fatbin finds both files, whole: it comes last, and under its name when it is written.
    fn write(&self, file: &Compiled) -> io::Result<()> {
        let publish = |path: &Path, bytes: &[u8]| {
            let part = path.with_extension(format!("part{}", process::id()));
            fs::write(&part, bytes).and_then(|()| fs::rename(&part, path))
        };
        publish(&self.log, Log::write_all(&file.logs).as_bytes())?;
        publish(&self.fatbin, &file.fatbin)
    }
}

/// Deletes what earlier builds kept; what cannot be deleted stays.
fn prune(cache: &Path, keep: &[Entry]) {
    for path in fs::read_dir(cache).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if !keep.iter().any(|entry| entry.fatbin == path || entry.log == path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Before each log of a file; ptxas begins no line so.
const HEAD: &str = "== ";

impl Log {
    fn write_all(logs: &[Log]) -> String {
        logs.iter().map(|log| format!("{HEAD}{} {:.3}\n{}\n", log.target, log.seconds, log.text.trim_end())).collect()
    }

    fn read_all(text: &str) -> Option<Vec<Log>> {
        let mut logs: Vec<Log> = Vec::new();
        for line in text.lines() {
            if let Some(head) = line.strip_prefix(HEAD) {
                let (target, seconds) = head.split_once(' ')?;
                logs.push(Log { target: target.to_owned(), seconds: seconds.parse().ok()?, text: String::new() });
            } else {
                let log = logs.last_mut()?;
                log.text.push_str(line);
                log.text.push('\n');
            }
        }
        Some(logs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read_as_they_were_written() {
        let log = |target: &str, text: &str| Log { target: target.into(), seconds: 0.25, text: text.into() };
        let logs = vec![log("sm_80", "ptxas info    : 0 bytes gmem\n  0 bytes\n"), log("compute_80", "\n")];
        assert_eq!(Log::read_all(&Log::write_all(&logs)).unwrap(), logs);
        assert_eq!(Log::read_all(""), Some(Vec::new()));
        assert_eq!(Log::read_all("no head"), None);
    }

    #[test]
    fn results_come_in_the_order_of_the_items_and_the_first_failure_stands_for_all() {
        let items: Vec<usize> = (0..100).collect();
        assert_eq!(in_parallel(4, &items, |item| Ok(item * 2)).unwrap(), (0..200).step_by(2).collect::<Vec<_>>());
        let fail = |item| if item % 10 == 7 { Err(format!("{item} fails")) } else { Ok(item) };
        assert_eq!(in_parallel(1, &items, fail).unwrap_err(), "7 fails");
        assert!(in_parallel(3, &items, fail).is_err());
        assert_eq!(in_parallel(0, &[], Ok::<usize, String>).unwrap(), [0; 0]);
    }
}
