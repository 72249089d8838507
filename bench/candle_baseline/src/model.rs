//! candle-transformers' `quantized_llama`, timed as `taper bench model` times ours: a case is repeated for at least two seconds,
//! after one run to warm up when it comes for the first time. Logits are computed for the last position, nothing is sampled.

use anyhow::{Context, Result, bail};
use candle_core::quantized::gguf_file;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use std::collections::HashMap;
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

impl Case {
    /// Tokens in the cache before the first that is timed; candle's prompts begin at position 0, its generation after it.
    fn depth(&self) -> usize {
        match *self {
            Case::Prompt(_) => 0,
            Case::Generate { depth, .. } => depth.max(1),
        }
    }

    /// The model with these tokens in its cache. It takes minutes for thousands, so each sample begins with a copy: a copy
    /// shares all tensors, and candle makes new ones of the cache with every token.
    fn prepare(&self, model: &ModelWeights) -> Result<ModelWeights> {
        let mut model = model.clone();
        if self.depth() > 0 {
            forward(&mut model, &tokens(self.depth()), 0)?;
        }
        Ok(model)
    }

    /// Runs the case once: tokens and the time they took.
    fn run(&self, prepared: &ModelWeights) -> Result<(usize, Duration)> {
        let mut model = prepared.clone();
        let (count, step) = match *self {
            Case::Prompt(count) => (count, count),
            Case::Generate { tokens, .. } => (tokens, 1),
        };
        let depth = self.depth();
        let ids = tokens(depth + count);
        let start = Instant::now();
        for at in (depth..depth + count).step_by(step) {
            forward(&mut model, &ids[at..at + step], at)?;
        }
        Ok((count, start.elapsed()))
    }
}

/// Answers cases, line by line.
pub fn serve(path: &str) -> Result<()> {
    let mut file = std::fs::File::open(path).with_context(|| path.to_string())?;
    let content = gguf_file::Content::read(&mut file)?;
    let model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let mut known: HashMap<String, ModelWeights> = HashMap::new();
    for name in std::io::stdin().lines() {
        let name = name?;
        let case = parse(&name)?;
        if !known.contains_key(&name) {
            let prepared = case.prepare(&model)?;
            case.run(&prepared)?;
            known.insert(name.clone(), prepared);
        }
        let prepared = &known[&name];
        let (mut count, mut spent) = (0, Duration::ZERO);
        while spent < MIN_SAMPLE {
            let (more, time) = case.run(prepared)?;
            count += more;
            spent += time;
        }
        println!("{}", serde_json::json!({ "case": name, "median": count as f64 / spent.as_secs_f64() }));
    }
    Ok(())
}
