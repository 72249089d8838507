//! A signal that ends a program unless it says otherwise.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

/// SIGXFSZ, by the number it has on Linux, macOS and the BSDs.
const FILE_SIZE_EXCEEDED: i32 = 25;

/// From now on a file that grows beyond a limit of this process (`ulimit -f`, `LimitFSIZE=`) is a write that fails, as on a
/// full disk, and not the end of the program: the cache on disk does without the block. To be called within a runtime.
pub(crate) fn survive_file_size_limit() -> Result<()> {
    // The handler stays when the receiver is dropped; with any handler the system returns an error from the write.
    signal(SignalKind::from_raw(FILE_SIZE_EXCEEDED)).map(drop).context("cannot handle signals")
}
