//! `taper bench chat`

use super::{Bench, about_model, setup, try_to_write};
use crate::args::{ActivationsKind, BackendKind, BenchChatArgs, ModelArgs};
use crate::load::{self, ModelTask};
use crate::progress::Bars;
use anyhow::{Result, bail};
use taper_bench::chat::{self, Conversation, Script};
use taper_kernels::{Backend, BackendInfo};
use taper_models::{Llama, LoadOptions, ModelConfig};

pub(crate) fn run(args: &BenchChatArgs) -> Result<()> {
    try_to_write(&args.output)?;
    if args.model.backend != BackendKind::Cpu {
        bail!("`taper bench chat` compares roundings of activations, which the CPU backend alone has");
    }
    let script = args.script();
    let progress = Bars::new();
    let resolved = load::resolve(&args.model.model, &progress)?;
    let checkpoint = load::open(&resolved.path)?;
    let limit = ModelConfig::from_checkpoint(&checkpoint)?.context_len;
    if script.context_len() > limit {
        let len = script.context_len();
        bail!(
            "the conversation takes {len} tokens, and the model was made for {limit}; fewer --turns, or less in a --question \
             or an --answer"
        );
    }
    let kv_dtype = args.model.kv_dtype()?;
    let options = LoadOptions { kv_dtype, ..script.load_options(args.model.attention.scheme()) };
    let conversation = |activations| {
        let args = ModelArgs { activations, ..args.model.clone() };
        load::with_model(&args, &checkpoint, options, &progress, Hold(script))
    };
    let (mut full, info) = conversation(ActivationsKind::Full)?;
    let (mut mixed, _) = conversation(ActivationsKind::Mixed)?;
    let mut bench = Bench::start(&args.output, setup(&info, args.output.bandwidth_bytes()))?;
    let about = about_model(&resolved.path, &args.model, kv_dtype);
    bench.add(chat::measure(full.as_mut(), mixed.as_mut(), (script, args.repeat), &about)?);
    bench.finish(|finished| chat::findings(&finished.records))
}

/// Lets a loaded model hold the conversation.
struct Hold(Script);

impl ModelTask for Hold {
    type Output = (Box<dyn Conversation>, BackendInfo);

    fn run<B: Backend + Clone>(self, model: Llama<B>) -> Result<Self::Output> {
        let info = model.backend().info();
        Ok((chat::conversation(model, self.0), info))
    }
}
