//! The cache over real folders: what is stored comes back, and nothing that happens to the files makes it lie or fail to open.

use super::*;
use proptest::prelude::*;
use std::fs;
use std::sync::atomic::{AtomicI64, Ordering};
use tempfile::TempDir;

const BLOCK: usize = 300;
const FILE: u64 = (record::HEADER + BLOCK) as u64;

fn open(dir: &TempDir) -> DiskCache {
    open_for(dir, "model", 1000)
}

/// With room for so many blocks.
fn open_for(dir: &TempDir, identity: &str, max_blocks: u64) -> DiskCache {
    DiskCache::open(dir.path(), identity, BLOCK, max_blocks * FILE).unwrap()
}

/// The blocks of a chain.
fn chain(salt: &str, len: usize) -> Vec<BlockHash> {
    let root = BlockHash::root("model", Some(salt));
    std::iter::successors(Some(root.child(&[0])), |hash| Some(hash.child(&[0]))).take(len).collect()
}

/// What a block holds.
fn bytes(hash: BlockHash) -> Vec<u8> {
    (0..BLOCK).map(|at| hash.0[at % 32] ^ (at / 32) as u8).collect()
}

fn store(cache: &DiskCache, chain: &[BlockHash]) {
    let parents = std::iter::once(None).chain(chain.iter().copied().map(Some));
    for (&hash, parent) in chain.iter().zip(parents) {
        cache.store(hash, parent, &bytes(hash));
        cache.flush();
    }
}

fn held(cache: &DiskCache, chain: &[BlockHash]) -> Vec<bool> {
    chain.iter().map(|&hash| cache.contains(hash)).collect()
}

/// All blocks in the folder, in one order.
fn files(dir: &TempDir) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in fs::read_dir(dir.path()).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        files.extend(fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()));
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "kv"));
    files.sort();
    files
}

#[test]
fn blocks_outlive_the_cache_that_stored_them() {
    let dir = tempfile::tempdir().unwrap();
    let chain = chain("", 3);
    let cache = open(&dir);
    store(&cache, &chain[..2]);
    assert_eq!(cache.load(chain[0]), Some(bytes(chain[0])));
    assert_eq!(cache.load(chain[2]), None);
    // Stored again, it is not written again.
    store(&cache, &chain[..2]);
    let stats = cache.stats();
    assert_eq!((stats.stored, stats.loaded, stats.blocks, stats.bytes), (2, 1, 2, 2 * FILE));
    // What waits is written before the cache is gone.
    cache.store(chain[2], Some(chain[1]), &bytes(chain[2]));
    drop(cache);

    let cache = open(&dir);
    assert_eq!(held(&cache, &chain), [true; 3]);
    for &hash in &chain {
        assert_eq!(cache.load(hash), Some(bytes(hash)));
    }
    assert_eq!(cache.stats(), DiskCacheStats { blocks: 3, bytes: 3 * FILE, loaded: 3, ..DiskCacheStats::default() });
}

#[test]
fn identities_are_apart_and_share_the_room() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (chain("old", 2), chain("new", 3));
    store(&open(&dir), &old);
    let cache = open_for(&dir, "another model", 4);
    assert_eq!(cache.stats().blocks, 2);
    assert_eq!(cache.load(old[0]), None, "even if it had the same name");
    drop(cache);
    assert_eq!(files(&dir).len(), 2, "a block of another model is not damaged");

    let cache = open_for(&dir, "another model", 4);
    store(&cache, &new);
    assert_eq!(cache.stats().evicted, 1);
    drop(cache);
    let cache = open(&dir);
    assert_eq!(held(&cache, &old), [true, false], "the end of the older chain went");
    assert_eq!(cache.load(old[0]), Some(bytes(old[0])));
}

#[test]
fn the_least_recently_used_go_first_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let chains = ["a", "b", "c"].map(|salt| chain(salt, 1)[0]);
    let cache = open(&dir);
    chains.iter().for_each(|&hash| store(&cache, &[hash]));
    // From memory, and from disk.
    cache.touch(chains[0]);
    cache.load(chains[1]);
    drop(cache);
    let cache = open_for(&dir, "model", 3);
    store(&cache, &chain("d", 1));
    assert_eq!(held(&cache, &chains), [true, true, false]);
    store(&cache, &chain("e", 1));
    assert_eq!(held(&cache, &chains), [false, true, false]);
    drop(cache);
    let cache = open_for(&dir, "model", 1);
    cache.flush();
    assert_eq!(cache.stats().blocks, 1, "a smaller limit holds from the start");
}

#[test]
fn a_chain_is_not_eaten_from_its_beginning_to_make_room_for_its_end() {
    for room in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let (chain, other) = (chain("", 5), chain("other", 1));
        let cache = open_for(&dir, "model", room);
        store(&cache, &chain);
        assert_eq!(held(&cache, &chain), [0, 1, 2, 3, 4].map(|at| at < room), "and what follows could serve nobody");
        assert_eq!((cache.stats().dropped, cache.stats().evicted), (5 - room, 0));
        store(&cache, &other);
        assert_eq!(cache.load(other[0]), Some(bytes(other[0])));
        assert_eq!(held(&cache, &chain), [0, 1, 2, 3, 4].map(|at| at + 1 < room));
    }
}

#[test]
fn a_limit_below_one_block_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let small = DiskCache::open(dir.path(), "model", BLOCK, FILE - 1);
    assert!(matches!(small, Err(DiskCacheError::TooSmall { .. })));
}

#[test]
fn a_second_process_reads_and_leaves_everything_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let chain = chain("", 3);
    let first = open(&dir);
    store(&first, &chain[..2]);
    let damaged = &files(&dir)[0];
    fs::write(damaged, b"not a block").unwrap();
    let leftover = damaged.with_extension("part");
    fs::write(&leftover, b"being written").unwrap();

    let second = open(&dir);
    assert_eq!(second.read_only(), Some("another process writes to it"));
    store(&second, &chain);
    let loaded = chain.iter().filter(|&&hash| second.load(hash) == Some(bytes(hash))).count();
    assert_eq!(loaded, 1);
    assert!(damaged.exists() && leftover.exists());
    drop((first, second));
    let third = open(&dir);
    assert_eq!(third.read_only(), None);
    assert!(!damaged.exists() && !leftover.exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_read_and_one_that_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let chain = chain("", 1);
    store(&open(&dir), &chain);
    // A folder in the place of the lock stops root as well.
    fs::remove_file(dir.path().join("lock")).unwrap();
    fs::create_dir(dir.path().join("lock")).unwrap();
    let cache = open(&dir);
    assert!(cache.read_only().is_some_and(|why| why.contains("cannot write")));
    assert_eq!(cache.load(chain[0]), Some(bytes(chain[0])));

    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = DiskCache::open(&file, "model", BLOCK, 100 * FILE).unwrap_err();
    assert!(refused.to_string().contains("file"), "{refused}");
}

#[test]
#[cfg(unix)]
fn a_pipe_in_the_place_of_a_block_costs_the_block_and_nobody_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let chain = chain("", 2);
    let cache = open(&dir);
    store(&cache, &chain);
    for file in files(&dir) {
        fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    }
    // The thread that writes looks at the first, because it was used, and the caller at the second.
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        cache.touch(chain[0]);
        cache.flush();
        let loaded = cache.load(chain[1]);
        drop(cache);
        done.send(loaded).unwrap();
    });
    assert_eq!(is_done.recv_timeout(std::time::Duration::from_secs(10)), Ok(None));
}

#[test]
fn files_of_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    let chain = chain("", 1);
    store(&open(&dir), &chain);
    let folder = files(&dir)[0].parent().unwrap().to_owned();
    let foreign = [
        dir.path().join("notes.txt"),
        dir.path().join("more"),
        folder.join("notes.kv"),
        folder.join(format!("{}.kv", chain[0])),
        folder.join(format!("{0}-{0}.kv.bak", chain[0])),
    ];
    foreign.iter().for_each(|path| fs::write(path, "mine").unwrap());
    fs::create_dir(folder.join(format!("{0}-{0}.kv", BlockHash::root("", None)))).unwrap();
    let cache = open_for(&dir, "model", 1);
    store(&cache, &self::chain("other", 1));
    assert_eq!((cache.stats().evicted, cache.stats().blocks), (1, 1));
    assert!(foreign.iter().all(|path| fs::read(path).unwrap() == b"mine"));
}

/// Bytes that the pretended disk still takes.
static FREE: AtomicI64 = AtomicI64::new(0);

struct SmallDisk(File);

impl Write for SmallDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let free = FREE.load(Ordering::SeqCst);
        if free == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.0.write(&bytes[..bytes.len().min(free as usize)])?;
        FREE.fetch_sub(written as i64, Ordering::SeqCst);
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn a_full_disk_costs_blocks_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let create: Create = |path| Ok(Box::new(SmallDisk(File::create(path)?)));
    let cache = DiskCache::open_with(dir.path(), "model", (BLOCK, 1000 * FILE), create).unwrap();
    let chain = chain("", 9);
    // The third block is cut in its bytes, then not even tried, then cut in its header. The fourth has no parent.
    FREE.store(2 * FILE as i64 + 200, Ordering::SeqCst);
    store(&cache, &chain[..4]);
    FREE.store(7, Ordering::SeqCst);
    store(&cache, &chain[..3]);
    store(&cache, &chain[..3]);
    assert_eq!(held(&cache, &chain[..4]), [true, true, false, false]);
    let stats = cache.stats();
    assert_eq!((stats.stored, stats.dropped, stats.write_errors), (2, 4, 2));
    let folder = files(&dir)[0].parent().unwrap().to_owned();
    let names: Vec<_> = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names.len(), 3, "two blocks, and the identity in words: {names:?}");

    // There is room again, after two that are passed over.
    FREE.store(100 * FILE as i64, Ordering::SeqCst);
    (0..2).for_each(|_| store(&cache, &chain[..3]));
    assert!(!cache.contains(chain[2]));
    store(&cache, &chain);
    assert_eq!(cache.load(chain[8]), Some(bytes(chain[8])));
}

#[test]
fn a_queue_that_is_full_drops_blocks_and_never_waits() {
    let dir = tempfile::tempdir().unwrap();
    /// Held by the test: the first file cannot be made meanwhile.
    static GATE: Mutex<()> = Mutex::new(());
    let create: Create = |path| {
        drop(GATE.lock());
        Ok(Box::new(File::create(path)?))
    };
    let large = QUEUE_BYTES / 2;
    let cache = DiskCache::open_with(dir.path(), "model", (large, 100 * large as u64), create).unwrap();
    let chain = chain("", MIN_QUEUE_BLOCKS + 5);
    let closed = GATE.lock().unwrap();
    chain.iter().for_each(|&hash| cache.store(hash, None, &vec![0; large]));
    // One may have been taken out of the queue.
    let dropped = cache.stats().dropped;
    assert!((4..=5).contains(&dropped), "{dropped}");
    drop(closed);
    cache.flush();
    assert_eq!(cache.stats().stored + dropped, chain.len() as u64);
}

#[test]
fn threads_that_store_load_and_evict_at_once_see_whole_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open_for(&dir, "model", 20);
    let chains: Vec<_> = (0..4).map(|number| chain(&number.to_string(), 30)).collect();
    std::thread::scope(|scope| {
        for chain in &chains {
            scope.spawn(|| store(&cache, chain));
            scope.spawn(|| {
                for &hash in chains.iter().flatten() {
                    let loaded = cache.load(hash);
                    assert!(loaded.is_none_or(|loaded| loaded == bytes(hash)));
                }
            });
        }
    });
    let stats = cache.stats();
    assert_eq!(stats.damaged, 0);
    assert_eq!((stats.blocks as u64 + stats.evicted, files(&dir).len()), (stats.stored, stats.blocks));
    assert!(stats.bytes <= 20 * FILE);
}

#[derive(Debug, Clone)]
enum Harm {
    Cut(prop::sample::Index),
    Flip(prop::sample::Index, u8),
    Grow(u8),
    Remove,
    /// In place of another block.
    Swap(prop::sample::Index),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Harm::Cut),
        (any::<prop::sample::Index>(), 0..8_u8).prop_map(|(at, bit)| Harm::Flip(at, bit)),
        any::<u8>().prop_map(Harm::Grow),
        Just(Harm::Remove),
        any::<prop::sample::Index>().prop_map(Harm::Swap),
    ]
}

fn harm_file(path: &Path, others: &[PathBuf], harm: &Harm) {
    let mut bytes = fs::read(path).unwrap();
    match harm {
        // An earlier harm left nothing of it.
        Harm::Cut(_) | Harm::Flip(..) if bytes.is_empty() => {}
        Harm::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Harm::Flip(at, bit) => {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        Harm::Grow(byte) => bytes.push(*byte),
        Harm::Remove => return fs::remove_file(path).unwrap(),
        Harm::Swap(other) => bytes = fs::read(other.get(others)).unwrap(),
    }
    fs::write(path, bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn harmed_files_are_never_believed_and_the_cache_goes_on(
        harms in prop::collection::vec((any::<prop::sample::Index>(), harm()), 1..4), is_open: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let chain = chain("", 4);
        let cache = open(&dir);
        store(&cache, &chain);
        let cache = if is_open { Some(cache) } else { drop(cache); None };
        let all = files(&dir);
        let original: Vec<Vec<u8>> = all.iter().map(|path| fs::read(path).unwrap()).collect();
        for (file, harm) in &harms {
            let file = file.get(&all);
            let others: Vec<PathBuf> = all.iter().filter(|path| path.exists()).cloned().collect();
            if file.exists() {
                harm_file(file, &others, harm);
            }
        }
        // Two harms may undo each other.
        let is_sound = |path: &Path, original: &Vec<u8>| fs::read(path).is_ok_and(|bytes| bytes == *original);
        let sound = all.iter().zip(&original).filter(|(path, original)| is_sound(path, original)).count();

        let cache = cache.unwrap_or_else(|| open(&dir));
        let mut loaded = 0;
        for &hash in &chain {
            if let Some(found) = cache.load(hash) {
                prop_assert_eq!(found, bytes(hash));
                loaded += 1;
            }
        }
        prop_assert_eq!(loaded, sound);
        store(&cache, &chain);
        for &hash in &chain {
            prop_assert_eq!(cache.load(hash), Some(bytes(hash)));
        }
    }
}
