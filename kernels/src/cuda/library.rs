//! The driver's library (and NVIDIA's others), looked for as cudarc does and refused as an error where cudarc would panic.

use super::error::ProbeError;
use cudarc::driver::sys;
use libloading::Library;
use std::error::Error;
use std::sync::OnceLock;

/// Makes sure that the library is loaded and has some functions: after that cudarc's wrappers of them do not panic.
pub(super) fn require(functions: &[&'static str]) -> Result<(), ProbeError> {
    // Kept for ever: cudarc opens the same one again, and a driver does not like to be unloaded.
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if LIBRARY.get().is_none() {
        let library = open(&names()).map_err(|reason| ProbeError::NoLibrary { names: names(), reason })?;
        LIBRARY.get_or_init(|| library);
    }
    let missing = functions.iter().find(|name| {
        // SAFETY: one of the names that cudarc looks for was found above, so `culib` finds one and does not panic. The
        // address is not called.
        unsafe { sys::culib().get::<unsafe extern "C" fn()>(**name).is_err() }
    });
    missing.map_or(Ok(()), |&function| Err(ProbeError::FunctionMissing { function }))
}

/// Names that the driver's library may have, in cudarc's order. Of cudarc's list those are left out that only other systems
/// use.
fn names() -> Vec<String> {
    cudarc::get_lib_name_candidates("cuda").into_iter().filter(|name| name.starts_with("libcuda.")).collect()
}

/// The first library that loads, or why none does.
pub(super) fn open(names: &[String]) -> Result<Library, String> {
    let mut reason = String::new();
    for name in names {
        // SAFETY: what runs are the initialisers of NVIDIA's library, or of what the user put in its place.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            // Of the reasons, one that is not just absence: an empty file of that name, as containers have, say.
            Err(error) if reason.is_empty() || is_absence(&reason) => {
                reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            }
            Err(_) => {}
        }
    }
    Err(reason)
}

fn is_absence(reason: &str) -> bool {
    reason.contains("No such file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_that_drivers_are_installed_by() {
        let names = names();
        assert_eq!((names[0].as_str(), names[names.len() - 1].as_str()), ("libcuda.so", "libcuda.so.1"));
    }

    #[test]
    fn what_is_missing_is_told_by_name_and_reason() {
        let reason = open(&["libnone.so".into(), "libnone.so.1".into()]).unwrap_err();
        assert!(reason.contains("libnone.so.1") && is_absence(&reason), "{reason}");
    }

    #[test]
    fn a_file_that_is_no_library_is_told_rather_than_one_that_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("libcuda.so.1");
        std::fs::write(&empty, "").unwrap();
        let names = vec!["libnone.so".into(), empty.to_str().unwrap().to_owned(), "libnone.so.1".into()];
        let reason = open(&names).unwrap_err();
        assert!(reason.contains(empty.to_str().unwrap()) && !is_absence(&reason), "{reason}");
    }
}
