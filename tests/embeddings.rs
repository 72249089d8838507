//! Embeddings of the default model over HTTP: they tell texts apart, and a vector is the same in any company.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;
mod support;

use serde_json::{Value, json};
use server::{Server, post};

/// Pairs of texts of one meaning, in other words.
const PAIRS: [[&str; 2]; 4] = [
    ["The cat is sleeping on the sofa.", "A kitten naps on the couch."],
    ["The central bank raised interest rates again.", "Interest rates were increased by the bank once more."],
    [
        "To bake bread you need flour, water, yeast and salt.",
        "Bread is made by baking flour with water, yeast and salt.",
    ],
    ["The train to Berlin leaves at nine in the morning.", "At nine o'clock in the morning the Berlin train departs."],
];

fn embed(server: &Server, fields: &Value) -> Vec<Value> {
    let (status, body) = server.post("/v1/embeddings", fields);
    assert_eq!(status, 200, "{body}");
    let data = body["data"].as_array().unwrap();
    data.iter().map(|item| item["embedding"].clone()).collect()
}

fn floats(embedding: &Value) -> Vec<f64> {
    embedding.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn texts_of_one_meaning_are_nearer_than_others() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &[]);
    let texts: Vec<&str> = PAIRS.iter().flatten().copied().collect();
    let mut vectors: Vec<Vec<f64>> = embed(&server, &json!({ "input": texts })).iter().map(floats).collect();
    assert!(vectors.iter().all(|vector| vector.len() == 576 && (dot(vector, vector) - 1.0).abs() < 1e-5));
    // States of a model that writes have much in common whatever the text.
    let mean: Vec<f64> = (0..576).map(|i| vectors.iter().map(|v| v[i]).sum::<f64>() / vectors.len() as f64).collect();
    vectors.iter_mut().for_each(|vector| vector.iter_mut().zip(&mean).for_each(|(x, mean)| *x -= mean));
    let cosine = |a: &[f64], b: &[f64]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    for (place, vector) in vectors.iter().enumerate() {
        let near = |other: &usize| cosine(vector, &vectors[*other]);
        let others = (0..vectors.len()).filter(|&other| other != place);
        let nearest = others.max_by(|a, b| near(a).total_cmp(&near(b))).unwrap();
        assert_eq!(texts[nearest], texts[place ^ 1], "the nearest to {:?}", texts[place]);
    }
}

#[test]
fn a_vector_has_the_same_bits_alone_and_in_company() {
    let Some(model) = support::model_or_skip() else { return };
    let server = Server::start(&model, &[]);
    let long = PAIRS.concat().join(" ").repeat(4);
    let mut texts: Vec<&str> = PAIRS.iter().flatten().copied().collect();
    texts.push(&long);
    for pooling in ["mean", "last"] {
        let ask =
            |input: Value| embed(&server, &json!({ "input": input, "pooling": pooling, "encoding_format": "base64" }));
        let together = std::thread::scope(|scope| {
            let url = &server.url;
            let company = scope.spawn(move || {
                let body = json!({ "prompt": "Once upon a time", "max_tokens": 64, "ignore_eos": true });
                post(url, "/v1/completions", &body).0
            });
            let together = ask(json!(texts));
            assert_eq!(company.join().unwrap(), 200);
            together
        });
        for (text, vector) in texts.iter().zip(&together) {
            assert_eq!(&ask(json!(text))[0], vector, "{pooling}: {text:?}");
        }
    }
}
