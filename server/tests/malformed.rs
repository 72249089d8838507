//! Two hundred malformed requests over real sockets.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

#[path = "../../tests/support/malformed.rs"]
mod malformed;
mod support;

use serde_json::json;
use support::*;

const SEED: u64 = 20_261_121;
const COUNT: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_never_meet_a_5xx_or_a_hang() {
    let state = state();
    let server = Running::start(&state).await;
    let address = server.address;
    let problems = tokio::task::spawn_blocking(move || {
        let mut problems = Vec::new();
        let mut refused = 0;
        for request in malformed::malformed(SEED, COUNT) {
            let outcome = malformed::send(address, &request, PATIENCE);
            problems.extend(malformed::verdict(&request, &outcome).err());
            refused += usize::from(matches!(outcome, Ok(Some(400..=499))));
        }
        // Those that are not HTTP, or end early, may be cut off without an answer; some mutations leave a good request.
        assert!(refused > COUNT * 3 / 4, "only {refused} of {COUNT} requests were refused with a status");
        problems
    })
    .await
    .unwrap();
    assert!(problems.is_empty(), "seed {SEED}:\n{}", problems.join("\n"));

    let mut client = server.connect().await;
    let answer =
        exchange(&mut client, &raw_post(COMPLETIONS, &json!({ "prompt": "still there?", "max_tokens": 64 }))).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(REPLY), "{answer}");
    eventually("nothing is left running", || state.active_requests() == 0).await;
}

#[test]
fn the_generator_is_the_same_for_the_same_seed() {
    let bytes = |seed| malformed::malformed(seed, 50).into_iter().map(|request| request.bytes).collect::<Vec<_>>();
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
}
