//! candle-transformers' `quantized_llama`, timed as `taper bench model` times ours: a case is repeated for at least two seconds,
//! after one run to warm up when it comes for the first time. Logits are computed for the last position, nothing is sampled.

use anyhow::{Context, Result, bail};
use candle_core::quantized::gguf_file;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Least time of one sample.
const MIN_SAMPLE: Duration = Duration::from_secs(2);

enum Case {
    Prompt(usize),
    Generate { tokens: usize, depth: usize },
}

fn parse(case: &str) -> Result<Case> {
    if let Some(n) = case.strip_prefix("pp") {
        return Ok(Case::Prompt(n.parse()?));
    }
    let Some(rest) = case.strip_prefix("tg") else { bail!("{case}: expected ppN, tgN or tgN@DEPTH") };
    let (tokens, depth) = rest.split_once('@').unwrap_or((rest, "0"));
    Ok(Case::Generate { tokens: tokens.parse()?, depth: depth.parse()? })
}

/// The same pseudo-random ids on every run.
fn tokens(count: usize) -> Vec<u32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32 % 49152
    };
    (0..count).map(|_| next()).collect()
}

fn forward(model: &mut ModelWeights, tokens: &[u32], position: usize) -> Result<()> {
    let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    let logits = model.forward(&input, position)?;
    // Reading one value proves that the work was done.
    let _: f32 = logits.flatten_all()?.get(0)?.to_scalar()?;
    Ok(())
}

/// Runs a case once: tokens and the time of the timed part.
fn run(model: &mut ModelWeights, case: &Case) -> Result<(usize, Duration)> {
    match *case {
        Case::Prompt(count) => {
            let tokens = tokens(count);
            let start = Instant::now();
            forward(model, &tokens, 0)?;
            Ok((count, start.elapsed()))
        }
        Case::Generate { tokens: count, depth } => {
            // candle keeps one growing cache: position 0 starts it anew, so the depth is filled again each time.
            let ids = tokens(depth.max(1) + count);
            let depth = depth.max(1);
            forward(model, &ids[..depth], 0)?;
            let start = Instant::now();
            for at in depth..depth + count {
                forward(model, &ids[at..at + 1], at)?;
            }
            Ok((count, start.elapsed()))
        }
    }
}

/// Answers cases, line by line.
pub fn serve(path: &str) -> Result<()> {
    let mut file = std::fs::File::open(path).with_context(|| path.to_string())?;
    let content = gguf_file::Content::read(&mut file)?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let mut known = HashSet::new();
    for name in std::io::stdin().lines() {
        let name = name?;
        let case = parse(&name)?;
        if known.insert(name.clone()) {
            run(&mut model, &case)?;
        }
        let (mut count, mut spent) = (0, Duration::ZERO);
        while spent < MIN_SAMPLE {
            let (more, time) = run(&mut model, &case)?;
            count += more;
            spent += time;
        }
        println!("{}", serde_json::json!({ "case": name, "median": count as f64 / spent.as_secs_f64() }));
    }
    Ok(())
}
