//! `taper serve`: the HTTP server. The socket listens before the weights are read, so that a client hears "loading"
//! instead of a refused connection.

use crate::load::{Capacity, ModelArgs};
use crate::output;
use anyhow::Context;
use clap::{Args as ClapArgs, ValueEnum};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use taper_engine::{Engine, EngineConfig};
use taper_server::{ServedModel, ServerState};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Arguments of `taper serve`.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1", env = "TAPER_HOST")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080, env = "TAPER_PORT")]
    port: u16,
    /// Context length in tokens; what the model and the memory allow by default
    #[arg(long)]
    ctx: Option<usize>,
    /// Most sequences decoded together
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=512))]
    max_batch: u16,
    /// Most requests that wait; further ones get 429
    #[arg(long, default_value_t = 256)]
    max_queued: usize,
    /// Chat template: a file, or the name of a built-in one
    #[arg(long, value_name = "FILE|NAME")]
    chat_template: Option<String>,
    /// What is logged: error, warn, info, debug, trace, or a filter such as taper_server=debug
    #[arg(long, default_value = "info", env = "TAPER_LOG")]
    log_level: String,
    /// How it is logged
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    start_log(args)?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let result = runtime.block_on(serve(args.clone()));
    // Loading may still be under way on a blocking thread; it has nothing to save.
    runtime.shutdown_background();
    result
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let listener = TcpListener::bind((args.host.as_str(), args.port)).await.with_context(|| {
        format!("cannot listen on {}:{}; is another server there? --port 0 takes a free port", args.host, args.port)
    })?;
    let address = listener.local_addr().context("the socket has no address")?;
    output::note(&format!("listening on http://{address} (loading {})", args.model.model));

    let state = ServerState::new();
    state.set_loading_reason(format!("loading {}", args.model.model));
    let (failed, load_failed) = oneshot::channel();
    let loading = state.clone();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = load(&args, address, &loading) {
            loading.set_failed(format!("{error:#}"));
            let _ = failed.send(error);
        }
    });
    let shutdown = stop_signal()?;
    tokio::select! {
        done = taper_server::run(listener, state, shutdown) => done.context("the server failed"),
        Ok(error) = load_failed => Err(error),
    }
}

/// Loads the model and makes it answer.
fn load(args: &Args, address: SocketAddr, state: &ServerState) -> anyhow::Result<()> {
    let max_batch = usize::from(args.max_batch);
    let capacity = Capacity { context_len: args.ctx, max_logit_rows: max_batch, single_sequence: false };
    let start = std::time::Instant::now();
    let model = args.model.load(capacity, args.chat_template.as_deref())?;
    let limits = model.runner.limits();
    let kv_tokens = limits.num_blocks * limits.block_size;
    let config = EngineConfig { max_batch, max_queued: args.max_queued, ..EngineConfig::default() };
    let engine = Engine::start(model.runner, model.tokenizer.clone(), config);
    let created_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let has_template = model.template.is_some();
    let id = model.id.clone();
    state.set_ready(ServedModel {
        id: model.id,
        tokenizer: model.tokenizer,
        template: model.template,
        engine,
        context_len: limits.context_len,
        created_unix,
    });
    output::note(&format!(
        "ready after {:.1} s: {id}, context {} tokens, KV cache {kv_tokens} tokens\n\n  \
         curl -N http://{address}/v1/chat/completions -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}], \"stream\": true}}'\n",
        start.elapsed().as_secs_f64(),
        limits.context_len,
    ));
    if !has_template {
        output::note("the file has no chat template: /v1/completions works, chat needs --chat-template");
    }
    Ok(())
}

/// Ctrl-C and SIGTERM: the first lets running requests finish, the second stops at once.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut signals = Signals::new().context("cannot watch for signals")?;
    let (first, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move {
        signals.next().await;
        output::note("stopping: running requests finish first, another signal stops at once");
        let _ = first.send(());
        signals.next().await;
        output::note("stopped");
        // Streams are cut on purpose here; give the line above a moment to be seen.
        tokio::time::sleep(Duration::from_millis(10)).await;
        std::process::exit(130);
    });
    Ok(async move {
        let _ = stopped.await;
    })
}

/// The signals that ask a program to end.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Ctrl-C alone, where there is no SIGTERM.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals)
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

fn start_log(args: &Args) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&args.log_level).with_context(|| {
        format!("--log-level {}: expected error, warn, info, debug, trace or a filter", args.log_level)
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}
