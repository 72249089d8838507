//! What a caller may show while a model is fetched.

/// Receives the progress of one pull; one thing is under way at a time.
pub trait Progress: Send + Sync {
    /// Something with a name begins; `total` bytes where the source says so.
    fn start(&self, what: &str, total: Option<u64>);
    /// This many more bytes are done.
    fn advance(&self, bytes: u64);
    /// What was started has ended, well or badly.
    fn finish(&self);
    /// A line for the user: a source that failed, another process that holds the lock.
    fn note(&self, line: &str);
}

/// Shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn start(&self, _what: &str, _total: Option<u64>) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
    fn note(&self, _line: &str) {}
}
