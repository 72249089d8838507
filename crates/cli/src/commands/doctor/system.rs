//! What Linux says of huge pages, of this process's container, and of what else runs. It tells it in text files; where one is
//! missing its figure is absent.

use indicatif::BinaryBytes;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Where memory comes from, who limits it, and who else computes.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub(super) struct System {
    pub(super) huge_pages: HugePages,
    pub(super) container: Container,
    /// Runnable threads of the last minute, before anything was measured.
    pub(super) load_average: Option<f64>,
}

/// Pages that a processor looks up once for 2 MiB and not for every 4 KiB. Weights and the KV cache ask for transparent ones.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub(super) struct HugePages {
    /// `always`, `madvise` (whoever asks, as this program does) or `never`.
    pub(super) transparent: Option<String>,
    /// Whether memory is made whole for them, in the system's words.
    pub(super) defrag: Option<String>,
    /// Bytes that are in use as such, by all programs.
    pub(super) in_use_bytes: Option<u64>,
    /// Reserved ones, which only programs that name them can use: this one does not.
    pub(super) reserved: Option<u64>,
    pub(super) reserved_free: Option<u64>,
    /// Bytes of a reserved one.
    pub(super) size_bytes: Option<u64>,
}

/// What a container, or a service's unit, permits.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
pub(super) struct Container {
    pub(super) memory_limit_bytes: Option<u64>,
    /// What it holds by now, caches of files included.
    pub(super) memory_used_bytes: Option<u64>,
    /// Processors' worth of time.
    pub(super) processors: Option<f64>,
}

impl System {
    /// Asks the system whose root is `root`.
    pub(super) fn read(root: &Path) -> System {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let meminfo = text("proc/meminfo").unwrap_or_default();
        let transparent = "sys/kernel/mm/transparent_hugepage";
        System {
            huge_pages: HugePages {
                transparent: text(&format!("{transparent}/enabled")).and_then(|text| chosen(&text)),
                defrag: text(&format!("{transparent}/defrag")).and_then(|text| chosen(&text)),
                in_use_bytes: number(&meminfo, "AnonHugePages").map(|kib| kib * 1024),
                reserved: number(&meminfo, "HugePages_Total"),
                reserved_free: number(&meminfo, "HugePages_Free"),
                size_bytes: number(&meminfo, "Hugepagesize").map(|kib| kib * 1024),
            },
            container: Container::read(root),
            load_average: text("proc/loadavg").and_then(|text| text.split_whitespace().next()?.parse().ok()),
        }
    }

    /// Lines of a table.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let HugePages { transparent, defrag, in_use_bytes, reserved, reserved_free, size_bytes } = &self.huge_pages;
        let mut facts = Vec::new();
        if let Some(transparent) = transparent {
            let defrag = defrag.as_ref().map_or_else(String::new, |defrag| format!(", defrag {defrag}"));
            let in_use = in_use_bytes.map_or_else(String::new, |bytes| format!(", {} in use", BinaryBytes(bytes)));
            facts.push(("huge pages", format!("transparent: {transparent}{defrag}{in_use}")));
        }
        if let (Some(reserved), Some(free), Some(size)) = (reserved, reserved_free, size_bytes) {
            let name = if facts.is_empty() { "huge pages" } else { "" };
            facts.push((name, format!("reserved: {reserved} of {}, {free} free", BinaryBytes(*size))));
        }
        let Container { memory_limit_bytes, memory_used_bytes, processors } = &self.container;
        let memory = memory_limit_bytes.map(|limit| {
            let used = memory_used_bytes.map_or_else(String::new, |used| format!(", {} used", BinaryBytes(used)));
            format!("{} of memory{used}", BinaryBytes(limit))
        });
        let limits: Vec<String> =
            memory.into_iter().chain(processors.map(|number| format!("{number:.2} processors"))).collect();
        facts.push(("limits", if limits.is_empty() { "none of a container".to_owned() } else { limits.join("; ") }));
        facts.extend(self.load_average.map(|load| ("load average", format!("{load:.2}"))));
        facts
    }
}

impl Container {
    /// The tightest limits from this process's group up to the root.
    fn read(root: &Path) -> Container {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let below = root.join("sys/fs/cgroup");
        let unified = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let mut found = Container::default();
        for folder in unified.into_iter().flat_map(|group| up_from(&below, group)) {
            let text = |file: &str| fs::read_to_string(folder.join(file)).ok();
            let limit = text("memory.max").and_then(|text| text.trim().parse::<u64>().ok());
            found.limit_memory(limit, || text("memory.current")?.trim().parse().ok());
            found.limit_processors(text("cpu.max").and_then(|text| {
                let (quota, period) = text.trim().split_once(' ')?;
                Some((quota.parse().ok()?, period.parse().ok()?))
            }));
        }
        let of = |controller: &str| {
            groups.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, group) = rest.split_once(':')?;
                controllers.split(',').any(|name| name == controller).then_some(group)
            })
        };
        for folder in of("memory").into_iter().flat_map(|group| up_from(&below.join("memory"), group)) {
            let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
            // Without a limit it says nearly 2^63.
            let limit = number("memory.limit_in_bytes").filter(|limit| *limit < 1 << 60);
            found.limit_memory(limit, || number("memory.usage_in_bytes"));
        }
        for folder in of("cpu").into_iter().flat_map(|group| up_from(&below.join("cpu"), group)) {
            let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<f64>().ok();
            found.limit_processors(number("cpu.cfs_quota_us").zip(number("cpu.cfs_period_us")));
        }
        found
    }

    fn limit_memory(&mut self, limit: Option<u64>, used: impl FnOnce() -> Option<u64>) {
        if let Some(limit) = limit.filter(|limit| self.memory_limit_bytes.is_none_or(|other| *limit < other)) {
            (self.memory_limit_bytes, self.memory_used_bytes) = (Some(limit), used());
        }
    }

    fn limit_processors(&mut self, quota: Option<(f64, f64)>) {
        let number =
            quota.filter(|(quota, period)| *quota > 0.0 && *period > 0.0).map(|(quota, period)| quota / period);
        if let Some(number) = number.filter(|number| self.processors.is_none_or(|other| *number < other)) {
            self.processors = Some(number);
        }
    }
}

/// The folder of a group and those above it, as far as `below`; within a container the group's own name is often not there.
fn up_from(below: &Path, group: &str) -> Vec<PathBuf> {
    let group = below.join(group.trim_start_matches('/'));
    group.ancestors().take_while(|folder| folder.starts_with(below)).map(Path::to_owned).collect()
}

/// The choice in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(chosen, _)| chosen.to_owned())
}

/// The number of a line `name: number`, whatever its unit.
fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        if key.trim() == name { value.split_whitespace().next()?.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> System {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        System::read(root.path())
    }

    #[test]
    fn nothing_is_said_where_nothing_is_known() {
        assert_eq!(system(&[]), System::default());
        assert_eq!(system(&[]).facts(), [("limits", "none of a container".to_owned())]);
    }

    #[test]
    fn huge_pages_and_load_are_read() {
        let system = system(&[
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/kernel/mm/transparent_hugepage/defrag", "always defer [never]\n"),
            ("proc/meminfo", "AnonHugePages:  2048 kB\nHugePages_Total: 3\nHugePages_Free: 1\nHugepagesize: 2048 kB\n"),
            ("proc/loadavg", "1.50 0.3 0.1 1/200 99\n"),
        ]);
        assert_eq!(system.load_average, Some(1.5));
        let lines: Vec<String> = system.facts().into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines[0], "transparent: madvise, defrag never, 2.00 MiB in use");
        assert_eq!(lines[1], "reserved: 3 of 2.00 MiB, 1 free");
    }

    #[test]
    fn the_tightest_limit_up_to_the_root_counts() {
        let new = system(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "1000\n"),
            ("sys/fs/cgroup/a/memory.current", "10\n"),
            ("sys/fs/cgroup/memory.max", "2000\n"),
            ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
        ]);
        let expected = Container { memory_limit_bytes: Some(1000), memory_used_bytes: Some(10), processors: Some(1.5) };
        assert_eq!(new.container, expected);
        let old = system(&[
            ("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/x\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "10\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(old.container, expected);
        let none = system(&[
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
        ]);
        assert_eq!(none.container, Container::default());
    }
}
