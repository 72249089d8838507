//! Pulling from a model hub: the whole protocol against a mock on this machine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod mock;

use mock::{Behaviour, COMMIT, MockHub, config, content, sha256_hex};
use std::path::Path;
use taper_hub::{Error, Hub, ModelName, Quiet, ResolvedModel};

const LEN: usize = 3_000_000;

fn one_file(name: &str, bytes: &[u8]) -> Behaviour {
    Behaviour { files: [(name.to_string(), bytes.to_vec())].into(), ..Behaviour::default() }
}

fn resolve(hub: &Hub, name: &str) -> Result<ResolvedModel, Error> {
    hub.resolve(&ModelName::parse(name).unwrap(), &Quiet)
}

fn no_parts_are_left(folder: &Path) {
    for entry in std::fs::read_dir(folder.join("hf/models--o--r/blobs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.ends_with(".part"), "{name}");
    }
}

#[test]
fn a_pulled_file_stands_in_the_layout_of_the_python_client() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 1));
    let mock = MockHub::start(one_file("o/r/main/sub/m.gguf", &bytes));
    let hub = Hub::new(config(dir.path(), &mock.url()));
    let model = resolve(&hub, "hf:o/r/sub/m.gguf").unwrap();

    let repo = dir.path().join("hf/models--o--r");
    assert_eq!(model.path, repo.join("snapshots").join(COMMIT).join("sub/m.gguf"));
    assert_eq!(model.id, "m");
    assert_eq!(std::fs::read(&model.path).unwrap(), bytes);
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let link = std::fs::read_link(&model.path).unwrap();
    assert_eq!(link, Path::new("../../../blobs").join(sha256_hex(&bytes)), "a relative link survives a moved cache");
    no_parts_are_left(dir.path());
}

#[test]
fn what_is_in_the_cache_is_taken_without_asking() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 2));
    let mock = MockHub::start(one_file("o/r/main/m.gguf", &bytes));
    let hub = Hub::new(config(dir.path(), &mock.url()));
    let first = resolve(&hub, "hf:o/r/m.gguf").unwrap();
    let asked = mock.requests().len();
    assert_eq!(resolve(&hub, "hf:o/r/m.gguf").unwrap(), first);
    assert_eq!(mock.requests().len(), asked);

    let mut offline = config(dir.path(), &mock.url());
    offline.offline = true;
    assert_eq!(resolve(&Hub::new(offline.clone()), "hf:o/r/m.gguf").unwrap(), first);
    assert_eq!(resolve(&Hub::new(offline), "hf:o/r").unwrap(), first);
    assert_eq!(mock.requests().len(), asked);
}

#[test]
fn offline_and_not_cached_is_an_error_that_asks_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let mock = MockHub::start(one_file("o/r/main/m.gguf", b"x"));
    let hub = Hub::new(taper_hub::HubConfig { offline: true, ..config(dir.path(), &mock.url()) });
    for name in ["hf:o/r/m.gguf", "hf:o/r", "pip:some-package==1"] {
        let error = resolve(&hub, name).unwrap_err();
        assert!(matches!(error, Error::Offline { .. }), "{error}");
        assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
    }
    assert!(mock.requests().is_empty());
}

#[test]
fn a_line_that_breaks_is_taken_up_where_it_broke() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 3));
    let mock = MockHub::start(Behaviour { cuts: vec![1_000_000, 500_000], ..one_file("o/r/main/m.gguf", &bytes) });
    let hub = Hub::new(config(dir.path(), &mock.url()));
    let model = resolve(&hub, "hf:o/r/m.gguf").unwrap();
    assert_eq!(std::fs::read(model.path).unwrap(), bytes);
    assert_eq!(mock.transfers(), ["bytes=0-", "bytes=1000000-", "bytes=1500000-"]);
}

#[test]
fn a_second_run_goes_on_where_the_first_gave_up() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 4));
    let broken = Behaviour { cuts: vec![1_500_000], then_status: Some(503), ..one_file("o/r/main/m.gguf", &bytes) };
    let mock = MockHub::start(broken);
    let hub = Hub::new(config(dir.path(), &mock.url()));
    let error = resolve(&hub, "hf:o/r/m.gguf").unwrap_err();
    assert!(error.to_string().contains("503"), "{error}");

    mock.change(|b| b.then_status = None);
    let model = resolve(&hub, "hf:o/r/m.gguf").unwrap();
    assert_eq!(std::fs::read(model.path).unwrap(), bytes);
    assert_eq!(mock.transfers().last().unwrap(), "bytes=1500000-");
}

#[test]
fn a_server_that_never_finishes_gives_an_error_with_both_lengths() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 5));
    let mock = MockHub::start(Behaviour { cuts: vec![100, 0, 0], ..one_file("o/r/main/m.gguf", &bytes) });
    let error = resolve(&Hub::new(config(dir.path(), &mock.url())), "hf:o/r/m.gguf").unwrap_err();
    assert!(matches!(error, Error::Interrupted { received: 100, expected: 1000, .. }), "{error:?}");
}

#[test]
fn a_server_that_ignores_ranges_is_listened_to_from_the_start() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 6));
    let mock = MockHub::start(Behaviour {
        cuts: vec![1_000_000],
        ignores_ranges: true,
        ..one_file("o/r/main/m.gguf", &bytes)
    });
    let model = resolve(&Hub::new(config(dir.path(), &mock.url())), "hf:o/r/m.gguf").unwrap();
    assert_eq!(std::fs::read(model.path).unwrap(), bytes);
}

#[test]
fn a_complete_or_overlong_part_of_an_earlier_run_is_no_trap() {
    for extra in [0, 7] {
        let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 7));
        let blobs = dir.path().join("hf/models--o--r/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        let part = [bytes.clone(), vec![0; extra]].concat();
        std::fs::write(blobs.join(format!("{}.part", sha256_hex(&bytes))), part).unwrap();
        let mock = MockHub::start(one_file("o/r/main/m.gguf", &bytes));
        let model = resolve(&Hub::new(config(dir.path(), &mock.url())), "hf:o/r/m.gguf").unwrap();
        assert_eq!(std::fs::read(model.path).unwrap(), bytes);
    }
}

#[test]
fn a_wrong_part_of_an_earlier_run_costs_one_clean_attempt() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 8));
    let blobs = dir.path().join("hf/models--o--r/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(format!("{}.part", sha256_hex(&bytes))), "rubbish").unwrap();
    let mock = MockHub::start(one_file("o/r/main/m.gguf", &bytes));
    let model = resolve(&Hub::new(config(dir.path(), &mock.url())), "hf:o/r/m.gguf").unwrap();
    assert_eq!(std::fs::read(model.path).unwrap(), bytes);
    assert_eq!(mock.transfers(), ["bytes=7-", "bytes=0-"]);
}

#[test]
fn a_wrong_hash_is_refused_and_nothing_is_kept() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 9));
    let mock = MockHub::start(Behaviour { corrupt: true, ..one_file("o/r/main/m.gguf", &bytes) });
    let error = resolve(&Hub::new(config(dir.path(), &mock.url())), "hf:o/r/m.gguf").unwrap_err();
    let Error::WrongHash { expected, actual, .. } = &error else { panic!("{error}") };
    assert_eq!(*expected, sha256_hex(&bytes));
    assert_ne!(actual, expected);
    assert_eq!(std::fs::read_dir(dir.path().join("hf/models--o--r/blobs")).unwrap().count(), 0);
}

#[test]
fn a_revision_is_asked_for_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (content(1000, 10), content(1000, 11));
    let commit = "f".repeat(40);
    let mut behaviour = one_file("o/r/main/m.gguf", &new);
    behaviour.files.insert("o/r/v1/m.gguf".into(), old.clone());
    behaviour.files.insert(format!("o/r/{commit}/m.gguf"), old.clone());
    behaviour.commits.insert("v1".into(), commit.clone());
    behaviour.commits.insert(commit.clone(), commit.clone());
    let mock = MockHub::start(behaviour);
    let hub = Hub::new(config(dir.path(), &mock.url()));
    let by_tag = resolve(&hub, "hf:o/r/m.gguf@v1").unwrap();
    assert_eq!(std::fs::read(&by_tag.path).unwrap(), old);
    assert_eq!(std::fs::read(resolve(&hub, "hf:o/r/m.gguf").unwrap().path).unwrap(), new);

    // The tag brought that commit, so the commit is here; and a commit is its own reference.
    let asked = mock.requests().len();
    assert_eq!(resolve(&hub, &format!("hf:o/r/m.gguf@{commit}")).unwrap(), by_tag);
    assert_eq!(mock.requests().len(), asked);
    assert!(!dir.path().join("hf/models--o--r/refs").join(&commit).exists());

    let error = resolve(&hub, "hf:o/r/m.gguf@v2").unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }) && error.to_string().contains("@v2"), "{error}");
}

#[test]
fn a_token_opens_what_is_closed_and_stays_with_the_hub() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 12));
    let mock = MockHub::start(Behaviour { token: Some("secret".into()), ..one_file("o/r/main/m.gguf", &bytes) });
    let with_token = |token: Option<&str>| {
        let mut config = config(dir.path(), &mock.url());
        config.hf_token = token.map(str::to_string);
        resolve(&Hub::new(config), "hf:o/r/m.gguf")
    };
    let none = with_token(None).unwrap_err();
    assert!(matches!(none, Error::Refused { status: 401, had_token: false, .. }), "{none}");
    assert!(none.to_string().contains("set HF_TOKEN"), "{none}");
    let wrong = with_token(Some("wrong")).unwrap_err();
    assert!(matches!(wrong, Error::Refused { status: 403, had_token: true, .. }), "{wrong}");
    assert!(wrong.to_string().contains("another token") && !wrong.to_string().contains("wrong"), "{wrong}");
    with_token(Some("secret")).unwrap();

    for request in mock.requests().iter().filter(|r| r.path.starts_with("/cdn/")) {
        assert!(!request.headers.contains_key("authorization"), "the token followed a redirect to another host");
    }
}

#[test]
fn without_a_file_the_preferred_one_is_pulled() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 13));
    let mut behaviour = one_file("o/r/main/m-Q4_K_M.gguf", &bytes);
    behaviour.files.insert("o/r/main/m-Q8_0.gguf".into(), content(1000, 14));
    behaviour.files.insert("o/r/main/README.md".into(), b"text".to_vec());
    behaviour.files.insert("o/two/main/a.gguf".into(), content(10, 15));
    behaviour.files.insert("o/two/main/b.gguf".into(), content(10, 16));
    let mock = MockHub::start(behaviour);
    let hub = Hub::new(config(dir.path(), &mock.url()));
    assert_eq!(resolve(&hub, "hf:o/r").unwrap().id, "m-Q4_K_M");
    let error = resolve(&hub, "hf:o/two").unwrap_err().to_string();
    assert!(error.contains("hf:o/two/a.gguf") && error.contains("hf:o/two/b.gguf"), "{error}");
}

#[test]
fn an_unknown_repository_or_file_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let mock = MockHub::start(one_file("o/r/main/m.gguf", b"x"));
    let hub = Hub::new(config(dir.path(), &mock.url()));
    for name in ["hf:o/other", "hf:o/r/other.gguf"] {
        let error = resolve(&hub, name).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }) && error.to_string().contains(name), "{error}");
    }
}

#[test]
fn nobody_listening_is_no_network_unless_it_is_cached() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(1000, 17));
    // A port that was free a moment ago refuses connections.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unreachable = Hub::new(config(dir.path(), &format!("http://{free}")));
    let error = resolve(&unreachable, "hf:o/r").unwrap_err();
    assert!(matches!(error, Error::NoNetwork { .. }), "{error:?}");
    assert!(error.to_string().contains(&free.to_string()), "{error}");

    let mock = MockHub::start(one_file("o/r/main/m.gguf", &bytes));
    let pulled = resolve(&Hub::new(config(dir.path(), &mock.url())), "hf:o/r").unwrap();
    assert_eq!(resolve(&unreachable, "hf:o/r").unwrap(), pulled);
}

#[test]
fn two_pullers_at_once_make_one_transfer_and_both_get_the_file() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), content(LEN, 18));
    let mock = MockHub::start(Behaviour { delay_ms: 300, ..one_file("o/r/main/m.gguf", &bytes) });
    let hub = Hub::new(config(dir.path(), &mock.url()));
    std::thread::scope(|scope| {
        for puller in [0, 1].map(|_| scope.spawn(|| resolve(&hub, "hf:o/r/m.gguf"))) {
            let model = puller.join().unwrap().unwrap();
            assert_eq!(std::fs::read(model.path).unwrap(), bytes);
        }
    });
    assert_eq!(mock.transfers(), ["bytes=0-"]);
}
