//! The Unix socket of `taper serve --unix-socket`: only this user may connect, and what a crash left behind is replaced.

use anyhow::{Context, Result, bail};
use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Who may connect.
const MODE: u32 = 0o600;
/// The socket's name until it is moved to its place.
const FIRST_NAME: &str = "s";

/// The socket's file; removed when dropped, unless it is another's by then.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            // Who cannot remove it leaves it to be replaced by the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Listens at `path`. To be called within a runtime.
///
/// # Errors
/// When another program listens there, something else lies there, or the system refuses.
pub(crate) fn listen(path: &Path) -> Result<(UnixListener, SocketFile)> {
    check_free(path).with_context(|| format!("--unix-socket {}", path.display()))?;
    bind(path).with_context(|| format!("--unix-socket {}: cannot listen there", path.display()))
}

fn check_free(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(found) if !found.file_type().is_socket() => bail!("there is a file that is no socket"),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("another program listens there"),
        // Nobody does: what a server left that was killed.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error).context("there is a socket that cannot be asked whether it is in use"),
    }
}

/// The socket comes into being in a folder that nobody else may enter, gets its mode, and is then moved to its place: there is
/// no moment in which others may connect, nor one in which the path leads nowhere.
fn bind(path: &Path) -> Result<(UnixListener, SocketFile)> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Short, since the path of a socket may have some hundred bytes only.
    let folder = parent.join(format!(".t{}", std::process::id()));
    let create = || DirBuilder::new().mode(0o700).create(&folder);
    match create() {
        // What was killed here had this process's number: in a container that is always 1.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let _ = fs::remove_file(folder.join(FIRST_NAME));
            fs::remove_dir(&folder)?;
            create()?;
        }
        created => created?,
    }
    let bound = bind_in(&folder, path);
    // Empty by now, and nobody's loss otherwise.
    let _ = fs::remove_dir_all(&folder);
    bound
}

fn bind_in(folder: &Path, path: &Path) -> Result<(UnixListener, SocketFile)> {
    let first = folder.join(FIRST_NAME);
    let listener = UnixListener::bind(&first)?;
    fs::set_permissions(&first, Permissions::from_mode(MODE))?;
    let identity = identity(&fs::symlink_metadata(&first)?);
    fs::rename(&first, path)?;
    Ok((listener, SocketFile { path: path.to_owned(), identity }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within<T>(work: impl FnOnce() -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it starts");
        let _entered = runtime.enter();
        work()
    }

    #[test]
    fn only_this_user_may_connect_and_the_file_goes_with_the_server() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("taper.sock");
        within(|| {
            let (_listener, file) = listen(&path).expect("it listens");
            let mode = fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, MODE);
            UnixStream::connect(&path).expect("this user may");
            drop(file);
        });
        assert_eq!(fs::read_dir(folder.path()).expect("it is a folder").count(), 0, "nothing is left");
    }

    #[test]
    fn a_socket_in_use_is_an_error_and_one_left_behind_is_replaced() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("taper.sock");
        within(|| {
            let (listener, file) = listen(&path).expect("it listens");
            let error = format!("{:#}", listen(&path).expect_err("it is in use"));
            assert!(error.contains("another program") && error.contains("taper.sock"), "{error}");
            // As a crash would.
            std::mem::forget(file);
            drop(listener);
            let (_listener, _file) = listen(&path).expect("nobody listens there");
            UnixStream::connect(&path).expect("it is served");
        });
    }

    #[test]
    fn what_a_kill_left_of_a_start_is_replaced() {
        let folder = tempfile::tempdir().expect("there is room");
        let left = folder.path().join(format!(".t{}", std::process::id()));
        let path = folder.path().join("taper.sock");
        for has_socket in [false, true] {
            fs::create_dir(&left).expect("there is room");
            if has_socket {
                fs::write(left.join(FIRST_NAME), "").expect("there is room");
            }
            within(|| {
                let (_listener, _file) = listen(&path).expect("it listens");
                UnixStream::connect(&path).expect("it is served");
            });
            assert!(!left.exists(), "nothing is left");
        }
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("notes.txt");
        fs::write(&path, "mine").expect("there is room");
        let error = format!("{:#}", within(|| listen(&path)).expect_err("it is a file"));
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(fs::read(&path).expect("it is there"), b"mine");
        let nowhere = folder.path().join("none").join("taper.sock");
        assert!(format!("{:#}", within(|| listen(&nowhere)).expect_err("no folder")).contains("none"));
    }
}
