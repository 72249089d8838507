//! What the whole-system tests share: the default model, and the built binary.

#![allow(
    dead_code,
    clippy::print_stderr,
    reason = "every test target uses its own part; what is left out is said on stderr"
)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The default model's file, fetched into the normal cache on first use. `TAPER_TEST_MODEL` names another file.
/// A model that cannot be had is a failure, with the reason.
pub(crate) fn default_model() -> PathBuf {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(fetch_default_model).clone()
}

/// The default model, or `None` (with a line that says so) where `TAPER_TEST_OFFLINE=1` leaves such tests out:
/// `let Some(model) = support::model_or_skip() else { return };`
pub(crate) fn model_or_skip() -> Option<PathBuf> {
    if std::env::var_os("TAPER_TEST_OFFLINE").is_some_and(|value| value == "1") {
        eprintln!("left out: TAPER_TEST_OFFLINE=1 and this test needs the default model");
        return None;
    }
    Some(default_model())
}

fn fetch_default_model() -> PathBuf {
    if let Some(path) = std::env::var_os("TAPER_TEST_MODEL") {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "TAPER_TEST_MODEL={} is not a file", path.display());
        return path;
    }
    let fetched = taper_hub::Hub::from_env().and_then(|hub| {
        let name = taper_hub::ModelName::parse(taper_hub::DEFAULT_MODEL)?;
        hub.resolve(&name, &taper_hub::Quiet)
    });
    match fetched {
        Ok(model) => model.path,
        Err(error) => panic!(
            "these tests need the default model: {error}\nSet TAPER_TEST_MODEL to its file, or TAPER_TEST_OFFLINE=1 to leave them out."
        ),
    }
}

/// The built `taper` with nothing but its name on the command line.
pub(crate) fn taper() -> Command {
    Command::new(env!("CARGO_BIN_EXE_taper"))
}
