//! What the system says about the machine. Linux tells it in text files; where one is missing its figure is absent.

use crate::Error;
use serde::Serialize;
use std::fs;
use std::path::Path;

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// Processors that this process may use, or has a quota for.
    pub cores: usize,
    /// Caches of the first processor, smallest level first.
    pub caches: Vec<CpuCache>,
    /// Memory of the machine, bytes.
    pub memory_bytes: Option<u64>,
    /// Memory that can be used without swapping, bytes.
    pub memory_available_bytes: Option<u64>,
    /// The processor's feature flags, in the system's words.
    #[serde(skip)]
    pub flags: Vec<String>,
}

/// One cache as a processor sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuCache {
    /// 1, 2 or 3.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Bytes.
    pub bytes: u64,
    /// The processors that share it, such as `0-3`.
    pub shared_by: String,
}

impl Machine {
    /// Asks the system.
    pub fn read() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine {
            cpu: field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).to_string(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            memory_bytes: kibibytes(&meminfo, "MemTotal"),
            memory_available_bytes: kibibytes(&meminfo, "MemAvailable"),
            // x86 says `flags`, ARM `Features`.
            flags: field(&cpuinfo, "flags")
                .or_else(|| field(&cpuinfo, "Features"))
                .map(|flags| flags.split_whitespace().map(str::to_string).collect())
                .unwrap_or_default(),
        }
    }

    /// Whether the processor has a feature, in the system's words.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|have| have == flag)
    }

    /// Bytes of the largest cache; 0 when nobody says.
    pub fn largest_cache(&self) -> u64 {
        self.caches.iter().map(|cache| cache.bytes).max().unwrap_or(0)
    }
}

/// Refuses to take more memory than is free. Systems promise more than they have, and kill who believes them.
pub(crate) fn afford(bytes: usize) -> Result<(), Error> {
    let available = Machine::read().memory_available_bytes.unwrap_or(u64::MAX);
    if bytes as u64 > available { Err(Error::Memory { bytes }) } else { Ok(()) }
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn caches(folder: &Path) -> Vec<CpuCache> {
    let one = |index: usize| {
        let read = |file: &str| fs::read_to_string(folder.join(format!("index{index}/{file}"))).ok();
        let level = read("level")?.trim().parse().ok()?;
        let bytes = size(read("size")?.trim())?;
        let kind = read("type")?.trim().to_string();
        let shared_by = read("shared_cpu_list").unwrap_or_default().trim().to_string();
        Some(CpuCache { level, kind, bytes, shared_by })
    };
    let mut caches: Vec<CpuCache> = (0..16).map_while(one).collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// `48K`, `32M` or plain bytes.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 2\nmodel name\t: A CPU: fast\nflags\t: fpu avx2\n";
        assert_eq!(field(text, "model name"), Some("A CPU: fast"));
        assert_eq!(field(text, "name"), None);
        assert_eq!(kibibytes("MemTotal:  2 kB\n", "MemTotal"), Some(2048));
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            [size("48K"), size("32M"), size("7"), size("x"), size("")],
            [Some(49152), Some(32 << 20), Some(7), None, None]
        );
    }

    #[test]
    fn this_machine_has_at_least_one_core_and_a_name() {
        let machine = Machine::read();
        assert!(machine.cores >= 1 && !machine.cpu.is_empty());
    }
}
