//! `taper bench model`

use super::{Bench, about_model, candle_driver, setup, setup_on, try_to_write};
use crate::args::{AttentionKind, BenchModelArgs, FillKind, NamedCase, PeerKind};
use crate::load::{self, ModelTask};
use crate::output;
use crate::progress::Bars;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use taper_bench::candle::Candle;
use taper_bench::model::{self, ModelCase};
use taper_bench::{Case, Measurement, Peer, Setup, figure, params};
use taper_kernels::cuda::{Cuda, Driver, NUMERICS_CLASS_BY_ROWS};
use taper_kernels::{AttentionScheme, Backend, KvDtype};
use taper_models::{Llama, LoadOptions, ModelConfig, ModelSoftmax};

pub(crate) fn run(args: &BenchModelArgs) -> Result<()> {
    try_to_write(&args.output)?;
    let cases = args.all_cases();
    let candle = if args.against.contains(&PeerKind::Candle) {
        Some(candle_driver(args.candle_driver.as_deref())?)
    } else {
        None
    };
    let progress = Bars::new();
    let resolved = load::resolve(&args.model.model, &progress)?;
    let checkpoint = load::open(&resolved.path)?;
    let limit = ModelConfig::from_checkpoint(&checkpoint)?.context_len;
    if let Some(NamedCase { name, case }) = cases.iter().find(|named| named.case.context_len() > limit) {
        bail!("{name} needs a context of {} tokens, and the model was made for {limit}", case.context_len());
    }
    let plain: Vec<Case> = cases.iter().map(|named| named.case).collect();
    let kv_dtype = args.model.kv_dtype()?;
    let options = LoadOptions { kv_dtype, ..model::load_options(&plain, args.model.attention.scheme()) };
    let task = Measure { args, kv_dtype, cases, path: &resolved.path, candle, gpu: None };
    load::with_model(&args.model, &checkpoint, options, &progress, task)
}

struct Measure<'a> {
    args: &'a BenchModelArgs,
    kv_dtype: KvDtype,
    cases: Vec<NamedCase>,
    path: &'a Path,
    candle: Option<PathBuf>,
    gpu: Option<Setup>,
}

impl ModelTask for Measure<'_> {
    type Output = ();

    fn computes_on(&mut self, gpu: &Cuda<Driver>) {
        self.gpu = Some(setup_on(gpu, self.args.output.bandwidth_bytes()));
    }

    fn run<B: Backend + Clone>(self, mut model: Llama<B>) -> Result<()> {
        let info = model.backend().info();
        let setup = self.gpu.clone().unwrap_or_else(|| setup(&info, self.args.output.bandwidth_bytes()));
        let mut bench = Bench::start(&self.args.output, setup)?;
        let start = |driver: &PathBuf| Candle::start(driver, self.path, info.threads);
        let mut candle = self.candle.as_ref().map(start).transpose()?;
        for named in &self.cases {
            let rows = self.measure(&mut model, named, &mut candle)?;
            for row in &rows {
                let (low, high) = (figure(row.summary.p10), figure(row.summary.p90));
                output::status(&format!("{}: {} {} [{low}..{high}]", row.case, figure(row.summary.median), row.unit));
            }
            bench.add(rows);
        }
        bench.finish(|finished| model::plots(&finished.records, finished.ceiling).into())
    }
}

impl Measure<'_> {
    /// The rows of a case: ours, each peer's, and the ratios. Samples of all sides take turns.
    fn measure<B: Backend>(
        &self,
        model: &mut Llama<B>,
        named: &NamedCase,
        candle: &mut Option<Candle>,
    ) -> Result<Vec<Measurement>> {
        let peers = self.peers(named);
        if named.case.depth() > 0 {
            let doing = match self.args.fill {
                FillKind::Computed => "computing the keys before it; --fill random takes seconds at any depth",
                FillKind::Random => "writing random keys before it",
            };
            output::status(&format!("{}: {doing}", named.name));
        }
        let numerics_class = model.backend().info().numerics_class;
        let mut case = ModelCase::new(model, named.case, self.args.fill.fill())?;
        case.warm_up()?;
        let mut ours = Vec::new();
        let mut theirs = vec![Vec::new(); peers.len()];
        for _ in 0..self.args.repeat {
            ours.push(case.sample()?);
            for (peer, samples) in peers.iter().zip(&mut theirs) {
                samples.push(match (peer, candle.as_mut()) {
                    (Peer::NaiveAttention, _) => {
                        case.set_attention(AttentionScheme::Naive);
                        let sample = case.sample()?;
                        case.set_attention(self.args.model.attention.scheme());
                        sample
                    }
                    (Peer::OnlineSoftmax, _) => {
                        let softmax = case.set_softmax(ModelSoftmax::Online)?;
                        let sample = case.sample()?;
                        case.set_softmax(softmax)?;
                        sample
                    }
                    (Peer::Candle, Some(candle)) => candle.sample(named.case)?,
                    (Peer::Candle, None) => bail!("candle's network is not running"),
                });
            }
        }
        let mut row = case.measurement(&ours, self.about(numerics_class));
        // Whoever reads rows looks for the name that was given.
        row.case.clone_from(&named.name);
        let of_peers = peers.iter().zip(&theirs);
        let of_peers =
            of_peers.flat_map(|(peer, theirs)| [peer.row(&row, theirs), peer.ratio_row(&row, &ours, theirs)]);
        Ok([row.clone()].into_iter().chain(of_peers).collect())
    }

    /// The peers that can do this case.
    fn peers(&self, named: &NamedCase) -> Vec<Peer> {
        let can = |peer: &Peer| {
            let can = *peer != Peer::Candle || Candle::can(named.case);
            if !can {
                output::status(&format!("{}: candle's network has no batches and no prompts at a depth", named.name));
            }
            can
        };
        self.args.against.iter().map(|kind| kind.peer()).filter(can).collect()
    }

    /// What a row says beside its case.
    fn about(&self, numerics_class: &str) -> serde_json::Map<String, serde_json::Value> {
        let attention = match self.args.model.attention {
            AttentionKind::Splitkv => "split-kv",
            AttentionKind::Naive => "naive",
        };
        let mut about = about_model(self.path, &self.args.model, self.kv_dtype);
        about.extend(params([
            ("network", "taper".into()),
            ("attention", attention.into()),
            ("deterministic", (numerics_class != NUMERICS_CLASS_BY_ROWS).into()),
        ]));
        about
    }
}
