//! Fewer cases on an emulated processor, which is some thirty times slower than a real one.

/// Where `TAPER_TEST_QUICK` is set, the first of these cases and every `every`-th after it; else all of them.
pub fn thinned<T>(cases: impl IntoIterator<Item = T>, every: usize) -> impl Iterator<Item = T> {
    let is_quick = std::env::var_os("TAPER_TEST_QUICK").is_some();
    cases.into_iter().step_by(if is_quick { every } else { 1 })
}
