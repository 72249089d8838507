//! The cache on disk after `kill -9`: a process that writes it is killed at random points, and the next one opens it and
//! finds whole blocks only.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use taper_engine::{BlockHash, DiskCache};
use taper_testkit::rng::SplitMix;

/// Of about the size that blocks of real models have, so that a kill meets a write.
const BLOCK: usize = 2 << 20;
/// Room for fewer blocks than there are, so that files are removed as well.
const ROOM: u64 = 24 * (BLOCK as u64 + 1000);
const CHAINS: usize = 8;
const CHAIN_LEN: usize = 8;
const KILLS: usize = 50;
/// Tells this program, run again by itself, that it is the process to be killed; and where the cache is.
const VICTIM: &str = "TAPER_DISK_CACHE_VICTIM";

fn open(dir: &Path) -> DiskCache {
    DiskCache::open(dir, "model", BLOCK, ROOM).unwrap()
}

fn chain(number: usize) -> Vec<BlockHash> {
    let root = BlockHash::root("model", Some(&number.to_string()));
    std::iter::successors(Some(root.child(&[1])), |hash| Some(hash.child(&[1]))).take(CHAIN_LEN).collect()
}

fn bytes(hash: BlockHash) -> Vec<u8> {
    hash.0.repeat(BLOCK / 32)
}

/// Stores chains until it is killed; does nothing when this program is run as a test.
#[test]
fn victim() {
    let Some(dir) = std::env::var_os(VICTIM) else { return };
    let cache = open(Path::new(&dir));
    println!("ready: {:?}", cache.read_only());
    for number in (0..CHAINS).cycle() {
        let chain = chain(number);
        let parents = std::iter::once(None).chain(chain.iter().copied().map(Some));
        for (&hash, parent) in chain.iter().zip(parents) {
            cache.store(hash, parent, &bytes(hash));
        }
        cache.flush();
    }
}

/// A victim and what it says.
fn start(dir: &Path) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "victim", "--nocapture", "--test-threads=1"]).env(VICTIM, dir);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Files that were begun and not finished.
fn num_parts(dir: &Path) -> usize {
    let folders = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().flatten());
    files.filter(|file| file.path().extension().is_some_and(|extension| extension == "part")).count()
}

#[test]
fn a_cache_whose_writer_was_killed_at_any_point_opens_and_holds_whole_blocks_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = SplitMix::new(60);
    let (mut held, mut loaded, mut interrupted) = (0, 0, 0);
    for kill in 0..KILLS {
        let (mut victim, mut lines) = start(dir.path());
        // Some are killed while they open the cache.
        if kill % 4 != 0 {
            let is_ready = lines.any(|line| line.unwrap().contains("ready: None"));
            assert!(is_ready, "the victim opens the cache and may write it");
        }
        std::thread::sleep(Duration::from_micros(rng.below(30_000) as u64));
        victim.kill().unwrap();
        victim.wait().unwrap();
        interrupted += num_parts(dir.path());

        let cache = open(dir.path());
        assert_eq!(cache.read_only(), None, "the lock died with its process");
        assert!(cache.stats().bytes <= ROOM);
        assert_eq!(num_parts(dir.path()), 0, "what was begun is removed");
        for hash in (0..CHAINS).flat_map(chain) {
            held += usize::from(cache.contains(hash));
            if let Some(found) = cache.load(hash) {
                assert!(found == bytes(hash), "kill {kill}: wrong bytes");
                loaded += 1;
            }
        }
    }
    println!("{interrupted} of {KILLS} kills met a write; {loaded} blocks were found whole");
    assert_eq!(loaded, held, "what was renamed is whole");
    assert!(loaded > 0, "the victim got to write");
}
