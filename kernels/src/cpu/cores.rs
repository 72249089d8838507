//! How many threads compute when nobody says: one for each performance core that this process may use.
//!
//! - Processors that share a core (SMT) share its vector units and its way to memory: a second thread on them only waits.
//! - Efficiency cores stay out. A loop ends with its last chunk, and a slow core takes longest for it; a generated token waits
//!   for memory, which the fast cores load fully. A long prompt would gain from them: `--threads` is for whoever wants that.
//! - The processors are those of the affinity mask; what the system offers this process, which a container's quota of time
//!   may lower further, is never exceeded.
//!
//! Linux says all this in text files. Where they are missing or make no sense every processor is taken for a core.

use super::processors;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::thread;

/// What tells performance from efficiency cores, the most telling first: Intel's list of performance cores (1 in it, 0 not),
/// speed relative to the fastest core as the scheduler sees it (above all on Arm), and the highest clock, kHz.
///
/// Not `acpi_cppc/highest_perf`: AMD ranks equal cores by it, 236, 231, 226 and so on, down to two thirds of the first.
const MEASURES: [&str; 3] = ["cpu_core/cpus", "cpu_capacity", "cpuinfo_max_freq"];

/// Least part of the fastest core's measure that a performance core has, as a fraction. Equal cores differ in their highest
/// clock by about an eighth at most (preferred cores, dies with stacked cache), middle cores of Arm have 3/4 of the largest and more;
/// compact cores have less (Zen 5c 3.3 of 5.1 GHz, Zen 4c 3.7 of 5.0), little ones below 1/2.
const LEAST_PART: (u64, u64) = (3, 4);

/// More processors than Linux can be built for; a list with others is no list.
const MOST_PROCESSORS: usize = 1 << 16;
/// More threads than any core runs.
const MOST_SIBLINGS: usize = 8;

/// The cores of this machine, and the threads that follow from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// Threads that compute by default: the performance cores, or fewer where a quota permits fewer; at least one.
    pub threads: usize,
    /// Processors that this process may use.
    pub processors: usize,
    /// Cores that they belong to.
    pub cores: usize,
    /// The first processor of each performance core.
    pub performance: Vec<usize>,
    /// The measure by which the other cores are efficiency cores; `None` where there are none.
    pub told_by: Option<&'static str>,
}

impl Cores {
    /// Of this machine and this process.
    pub fn of_this_machine() -> Cores {
        // What the system offers is what it offers the calling thread.
        processors::use_all();
        Cores::under(Path::new("/"), thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// Of the files under `root`, for a process that the system offers `offered` processors.
    fn under(root: &Path, offered: usize) -> Cores {
        // The system offers no more than the mask has: files with fewer are about something else.
        let processors = read(root).filter(|processors| processors.len() >= offered);
        choose(&processors.unwrap_or_else(|| (0..offered).map(Processor::alone).collect()), offered)
    }
}

/// Such as `performance cores of 20 processors (14 cores), by cpu_core/cpus: 0,2,4,6,8,10`, to be put behind the threads.
impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cores { threads, processors, cores, performance, told_by } = self;
        if *threads < performance.len() {
            write!(f, "of {} ", performance.len())?;
        }
        match told_by {
            Some(measure) => write!(f, "performance cores of {processors} processors ({cores} cores), by {measure}")?,
            None if cores < processors => write!(f, "cores of {processors} processors")?,
            None => write!(f, "processors, each a core")?,
        }
        write!(f, ": {}", list(performance))?;
        if *threads < performance.len() { write!(f, " (a quota of time permits no more)") } else { Ok(()) }
    }
}

/// What is known about one processor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Processor {
    id: usize,
    /// The first processor of its core.
    core: usize,
    /// By each of [`MEASURES`].
    speeds: [Option<u64>; MEASURES.len()],
}

impl Processor {
    fn alone(id: usize) -> Processor {
        Processor { id, core: id, speeds: [None; MEASURES.len()] }
    }
}

/// The cores of these processors, in ascending order, of which the system offers so many.
fn choose(processors: &[Processor], offered: usize) -> Cores {
    let measure = (0..MEASURES.len()).find(|&measure| differ(processors, measure));
    let fastest = measure.and_then(|measure| processors.iter().filter_map(|p| p.speeds[measure]).max());
    let is_fast = |processor: &&Processor| {
        let speed = measure.and_then(|measure| processor.speeds[measure]);
        let (part, whole) = LEAST_PART;
        speed.zip(fastest).is_none_or(|(speed, fastest)| speed.saturating_mul(whole) >= fastest.saturating_mul(part))
    };
    let mut fast_cores = BTreeSet::new();
    let first_of_core = |processor: &&Processor| fast_cores.insert(processor.core);
    let performance: Vec<usize> = processors.iter().filter(is_fast).filter(first_of_core).map(|p| p.id).collect();
    let cores = processors.iter().map(|processor| processor.core).collect::<BTreeSet<_>>().len();
    Cores {
        threads: performance.len().min(offered).max(1),
        processors: processors.len(),
        cores,
        told_by: measure.map(|measure| MEASURES[measure]).filter(|_| performance.len() < cores),
        performance,
    }
}

/// Whether a measure is known of all processors and not the same for all.
fn differ(processors: &[Processor], measure: usize) -> bool {
    let mut speeds = processors.iter().map(|processor| processor.speeds[measure]);
    let first = speeds.clone().next().flatten();
    speeds.clone().all(|speed| speed.is_some()) && speeds.any(|speed| speed != first)
}

/// The processors that are online and that this thread may use, ascending, from the files of Linux under `root`; `None` where
/// it does not say which those are.
fn read(root: &Path) -> Option<Vec<Processor>> {
    let text = |path: &str| fs::read_to_string(root.join(path)).ok();
    let set = |path: &str| parse_set(&text(path)?);
    let number = |path: &str| text(path)?.trim().parse().ok().filter(|&number| number > 0);
    let status = text("proc/thread-self/status")?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(parse_set)?;
    let online = set("sys/devices/system/cpu/online")?;
    let performance = set("sys/devices/cpu_core/cpus");
    let processor = |id: usize| {
        let folder = format!("sys/devices/system/cpu/cpu{id}");
        let siblings = set(&format!("{folder}/topology/thread_siblings_list"));
        let siblings = siblings.filter(|siblings| siblings.contains(&id) && siblings.len() <= MOST_SIBLINGS);
        let speeds = [
            performance.as_ref().map(|performance| u64::from(performance.contains(&id))),
            number(&format!("{folder}/cpu_capacity")),
            number(&format!("{folder}/cpufreq/cpuinfo_max_freq")),
        ];
        Processor { id, core: siblings.and_then(|siblings| siblings.first().copied()).unwrap_or(id), speeds }
    };
    Some(allowed.intersection(&online).copied().map(processor).collect())
}

/// `0-3,8` as Linux writes sets of processors.
fn parse_set(text: &str) -> Option<BTreeSet<usize>> {
    let mut set = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_PROCESSORS {
            return None;
        }
        set.extend(first..=last);
    }
    Some(set)
}

/// Ascending ids as Linux writes them.
fn list(ids: &[usize]) -> String {
    let runs = ids.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Files of Linux in a folder of their own.
    struct Tree(TempDir);

    impl Tree {
        /// A machine whose processors `0..processors` are online and permitted.
        fn new(processors: usize) -> Tree {
            let tree = Tree(tempfile::tempdir().unwrap());
            let all = format!("0-{}\n", processors - 1);
            tree.allow(&all).file("sys/devices/system/cpu/online", &all)
        }

        fn file(self, path: &str, text: impl AsRef<[u8]>) -> Tree {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn allow(self, list: &str) -> Tree {
            let status = format!("Name:\ttaper\nCpus_allowed_list:\t{list}\nMems_allowed_list:\t0\n");
            self.file("proc/thread-self/status", status)
        }

        /// A file of each of these processors.
        fn files(self, ids: impl IntoIterator<Item = usize>, name: &str, text: impl Fn(usize) -> String) -> Tree {
            let path = |id| format!("sys/devices/system/cpu/cpu{id}/{name}");
            ids.into_iter().fold(self, |tree, id| tree.file(&path(id), text(id)))
        }

        fn siblings(self, ids: impl IntoIterator<Item = usize>, text: impl Fn(usize) -> String) -> Tree {
            self.files(ids, "topology/thread_siblings_list", text)
        }

        fn max_freq(self, ids: impl IntoIterator<Item = usize>, khz: usize) -> Tree {
            self.files(ids, "cpufreq/cpuinfo_max_freq", |_| format!("{khz}\n"))
        }

        fn cores(&self, offered: usize) -> Cores {
            Cores::under(self.0.path(), offered)
        }

        #[track_caller]
        fn check(&self, offered: usize, threads: usize, why: &str) {
            let cores = self.cores(offered);
            assert_eq!((cores.threads, cores.to_string()), (threads, why.to_string()));
        }
    }

    /// Neighbours share a core.
    fn pairs(id: usize) -> String {
        format!("{}-{}\n", id / 2 * 2, id / 2 * 2 + 1)
    }

    /// Processors `cores` apart share a core, as AMD counts.
    fn apart(cores: usize) -> impl Fn(usize) -> String {
        move |id| format!("{},{}\n", id % cores, id % cores + cores)
    }

    /// Six performance cores of two threads and eight efficiency cores, as an i7-1370P.
    fn hybrid() -> Tree {
        let tree = Tree::new(20).siblings(0..12, pairs).siblings(12..20, |id| format!("{id}\n"));
        let tree = tree.file("sys/devices/cpu_core/cpus", "0-11\n").file("sys/devices/cpu_atom/cpus", "12-19\n");
        tree.max_freq(0..12, 5_200_000).max_freq(12..20, 3_900_000)
    }

    /// Four Zen 5 and eight Zen 5c cores of two threads each; this kernel gives all one capacity.
    fn zen_5_and_5c() -> Tree {
        let fast = |id: &usize| id % 12 < 4;
        let tree = Tree::new(24).siblings(0..24, apart(12)).files(0..24, "cpu_capacity", |_| "1024\n".into());
        let tree = tree.max_freq((0..24).filter(fast), 5_157_895);
        tree.max_freq((0..24).filter(|id| !fast(id)), 3_305_169)
    }

    #[test]
    fn intels_list_of_performance_cores_is_believed_and_each_core_has_one_thread() {
        hybrid().check(20, 6, "performance cores of 20 processors (14 cores), by cpu_core/cpus: 0,2,4,6,8,10");
    }

    #[test]
    fn a_process_on_one_kind_of_cores_uses_all_of_them() {
        hybrid().allow("12-19").check(8, 8, "processors, each a core: 12-19");
        hybrid().allow("1,3,4-5").check(4, 3, "cores of 4 processors: 1,3-4");
        hybrid().allow("0-1").check(2, 1, "cores of 2 processors: 0");
    }

    #[test]
    fn equal_cores_with_two_threads_count_once() {
        let zen = Tree::new(16).siblings(0..16, apart(8));
        zen.check(16, 8, "cores of 16 processors: 0-7");
    }

    #[test]
    fn equal_cores_that_clock_differently_all_count() {
        // A die with stacked cache beside one without.
        let zen = Tree::new(32).siblings(0..32, apart(16));
        let zen = zen.max_freq((0..32).filter(|id| id % 16 < 8), 5_250_000);
        let zen = zen.max_freq((0..32).filter(|id| id % 16 >= 8), 5_750_000);
        zen.check(32, 16, "cores of 32 processors: 0-15");
    }

    #[test]
    fn compact_cores_are_told_by_their_clock() {
        zen_5_and_5c().check(24, 4, "performance cores of 24 processors (12 cores), by cpuinfo_max_freq: 0-3");
    }

    #[test]
    fn little_cores_are_told_by_their_capacity_and_middle_ones_stay() {
        let capacity = |id: usize| format!("{}\n", [397, 397, 397, 397, 870, 870, 870, 1024][id]);
        // Clocks say less: the little ones' is 3/4 of the largest.
        let arm =
            Tree::new(8).files(0..8, "cpu_capacity", capacity).max_freq(0..4, 1_800_000).max_freq(4..8, 2_400_000);
        arm.check(8, 4, "performance cores of 8 processors (8 cores), by cpu_capacity: 4-7");
    }

    #[test]
    fn a_quota_permits_no_more_than_it_says() {
        let cores = "of 6 performance cores of 20 processors (14 cores), by cpu_core/cpus: 0,2,4,6,8,10";
        hybrid().check(3, 3, &format!("{cores} (a quota of time permits no more)"));
        assert_eq!(hybrid().cores(8).threads, 6, "eight processors' time is enough for the performance cores");
    }

    #[test]
    fn processors_that_are_not_online_do_not_count() {
        let machine = Tree::new(4).allow("0-127").siblings(0..4, pairs);
        machine.check(4, 2, "cores of 4 processors: 0,2");
    }

    #[test]
    fn where_the_system_says_nothing_every_processor_is_a_core() {
        Tree(tempfile::tempdir().unwrap()).check(5, 5, "processors, each a core: 0-4");
        Tree::new(3).check(3, 3, "processors, each a core: 0-2");
    }

    #[test]
    fn nonsense_is_not_believed() {
        for garbage in ["", "x", "7-2", "0-18446744073709551615", "0-4294967295", "-1", "0-", "0,,1-x", "\u{0}"] {
            let check = |tree: Tree| assert_eq!(tree.cores(4).threads, 4, "{garbage:?}");
            check(Tree::new(4).siblings(0..4, pairs).allow(garbage));
            check(Tree::new(4).siblings(0..4, pairs).file("sys/devices/system/cpu/online", garbage));
            check(Tree::new(4).siblings(0..4, |_| garbage.into()));
            check(Tree::new(4).file("sys/devices/cpu_core/cpus", garbage));
            check(
                Tree::new(4)
                    .files(0..2, "cpu_capacity", |_| garbage.into())
                    .files(2..4, "cpu_capacity", |_| "9".into()),
            );
        }
        let binary = Tree::new(4).file("sys/devices/system/cpu/online", [0xff, 0xfe, 0x80]);
        assert_eq!(binary.cores(4).threads, 4);
        let one_core_of_sixteen = Tree::new(16).siblings(0..16, |_| "0-15".into());
        assert_eq!(one_core_of_sixteen.cores(16).threads, 16);
        let of_another_core = Tree::new(4).siblings(0..4, |_| "0-1".into());
        assert_eq!(of_another_core.cores(4).performance, [0, 2, 3]);
        let mask_of_one = Tree::new(4).allow("2");
        assert_eq!(mask_of_one.cores(4).performance, [0, 1, 2, 3], "the system offers four");
    }

    #[test]
    fn this_machine_has_no_more_threads_than_it_offers() {
        let cores = Cores::of_this_machine();
        let offered = thread::available_parallelism().map_or(1, NonZero::get);
        assert!((1..=offered).contains(&cores.threads), "{cores:?}");
        assert!(cores.performance.len() <= cores.cores && cores.cores <= cores.processors, "{cores:?}");
    }
}
