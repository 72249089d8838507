//! The arrows of the map: which crate may depend on which, read from the manifests. An arrow that turns out to be needed is
//! added here and to ARCHITECTURE.md with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Every crate, its folder, and the crates of ours that it may use. Dev-dependencies are free.
const ARROWS: &[(&str, &str, &[&str])] = &[
    (
        "taper",
        "crates/cli",
        &[
            "taper-server",
            "taper-engine",
            "taper-bench",
            "taper-hub",
            "taper-models",
            "taper-kernels",
            "taper-text",
            "taper-checkpoint",
            "taper-otlp",
        ],
    ),
    ("taper-otlp", "crates/otlp", &["taper-server"]),
    ("taper-server", "server", &["taper-engine", "taper-text"]),
    ("taper-bench", "crates/bench", &["taper-models", "taper-kernels"]),
    ("taper-engine", "crates/engine", &["taper-models", "taper-text"]),
    ("taper-models", "models", &["taper-kernels", "taper-checkpoint"]),
    ("taper-text", "crates/text", &["taper-checkpoint"]),
    ("taper-hub", "crates/hub", &[]),
    ("taper-checkpoint", "crates/checkpoint", &[]),
    ("taper-kernels", "kernels", &[]),
    ("taper-cuda-sim", "kernels/cuda/sim", &["taper-kernels"]),
    ("taper-testkit", "crates/testkit", &[]),
];

/// Where `unsafe` may stand: the arithmetic, the calls that run its kernels, and the one mmap.
const MAY_BE_UNSAFE: &[&str] = &["taper-kernels", "taper-cuda-sim", "taper-checkpoint"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn manifest(folder: &str) -> toml::Table {
    read(&root().join(folder).join("Cargo.toml")).parse().unwrap_or_else(|e| panic!("{folder}/Cargo.toml: {e}"))
}

/// Names of the dependencies that end in the user's binary, `[target.*.dependencies]` included.
fn normal_dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut add = |table: Option<&toml::Value>| {
        for (key, value) in table.and_then(toml::Value::as_table).into_iter().flatten() {
            // `x = { package = "taper-y" }` is a dependency on taper-y.
            names.insert(value.get("package").and_then(toml::Value::as_str).unwrap_or(key).to_string());
        }
    };
    for kind in ["dependencies", "build-dependencies"] {
        add(manifest.get(kind));
        for (_, target) in manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten() {
            add(target.get(kind));
        }
    }
    names
}

#[test]
fn crates_depend_on_each_other_only_along_the_arrows_of_the_map() {
    for (name, folder, allowed) in ARROWS {
        let ours = normal_dependencies(&manifest(folder)).into_iter().filter(|d| d.starts_with("taper"));
        for dependency in ours {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} depends on {dependency}; the map allows it only {allowed:?}"
            );
        }
    }
}

#[test]
fn the_map_names_every_crate_of_the_workspace() {
    let workspace = manifest(".");
    let mut folders = BTreeSet::new();
    for member in workspace["workspace"]["members"].as_array().unwrap() {
        match member.as_str().unwrap().strip_suffix("/*") {
            None => drop(folders.insert(member.as_str().unwrap().to_string())),
            Some(parent) => {
                for entry in std::fs::read_dir(root().join(parent)).unwrap() {
                    let name = entry.unwrap().file_name().into_string().unwrap();
                    folders.insert(format!("{parent}/{name}"));
                }
            }
        }
    }
    let mapped: BTreeMap<&str, &str> = ARROWS.iter().map(|(name, folder, _)| (*folder, *name)).collect();
    assert_eq!(folders, mapped.keys().map(ToString::to_string).collect::<BTreeSet<_>>());
    for (folder, name) in mapped {
        assert_eq!(manifest(folder)["package"]["name"].as_str(), Some(name), "{folder}");
    }
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    for (name, folder, _) in ARROWS {
        let lints = manifest(folder).get("lints").and_then(|l| l.get("workspace")).and_then(toml::Value::as_bool);
        assert_eq!(lints, Some(true), "{name}: [lints] workspace = true is missing");
    }
}

#[test]
fn every_dependency_stands_once_in_the_root_manifest() {
    for (name, folder, _) in ARROWS {
        let manifest = manifest(folder);
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (dependency, value) in manifest.get(kind).and_then(toml::Value::as_table).into_iter().flatten() {
                let inherited = value.get("workspace").and_then(toml::Value::as_bool);
                assert_eq!(inherited, Some(true), "{name}: {dependency} must be `workspace = true`");
            }
        }
    }
}

#[test]
fn unsafe_code_is_forbidden_outside_kernels_and_the_mmap() {
    for (name, folder, _) in ARROWS {
        let src = root().join(folder).join("src");
        let entry = ["lib.rs", "main.rs"].map(|f| src.join(f)).into_iter().find(|p| p.exists()).unwrap();
        let forbids = read(&entry).lines().any(|line| line.trim() == "#![forbid(unsafe_code)]");
        assert_eq!(forbids, !MAY_BE_UNSAFE.contains(name), "{}: forbid(unsafe_code)", entry.display());
    }
}
