//! `taper serve`: the socket first, then the first model, then requests until a signal.

mod models;

use crate::args::{KvKind, ModelArgs, ServeArgs};
use crate::listen::{self, listen};
use crate::output;
use crate::progress::Bars;
use crate::settings;
use crate::signals;
use crate::traces::Traces;
use crate::unix_socket::{self, SocketFile};
use anyhow::{Context, Result, bail};
use models::Prepared;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use taper_kernels::cpu::processors;
use taper_server::{ServerState, Socket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

pub(crate) fn run(args: Box<ServeArgs>) -> Result<()> {
    let variables = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    for (name, nearest) in settings::misspelled_variables(variables) {
        output::status(&format!("nothing reads the variable {name}; the nearest is {nearest}"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // Handlers only pass events on; the cores belong to the kernels. Of two threads one wakes up the other for nothing with
        // each token, and who serves clients keeps off one core: with a second core for them, there are two.
        .worker_threads((processors::count() - 1).clamp(1, 2))
        .on_thread_start(processors::leave_first)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    // By the runtime's threads, and not by this one: each connection would be accepted on one thread and served by another.
    let result = runtime.block_on(runtime.spawn(serve(args))).context("the server panicked").flatten();
    // A model that is still being loaded or fetched cannot be waited for.
    runtime.shutdown_background();
    result
}

async fn serve(args: Box<ServeArgs>) -> Result<()> {
    let mut signals = Signals::new()?;
    signals::survive_file_size_limit()?;
    // What can be wrong with keys and certificates should not wait for a model either.
    let mut config = args.operation.server_config(&args.host)?;
    config.sampling = args.sampling.defaults();
    // Dropped when all is over, it sends what is left.
    let traces = Traces::start(&args.operation, &mut config)?;
    let is_encrypted = config.tls.is_some();
    let (socket, address) = open_socket(&args, is_encrypted).await?;
    output::status(&format!("listening on {address}, loading {}", args.model.model));
    traces.announce();
    listen::allow_connections(args.operation.max_connections);

    let state = ServerState::with_config(config);
    reload_on_hangup(state.clone())?;
    let (loaded_sender, loaded) = oneshot::channel();
    let loading_state = state.clone();
    std::thread::Builder::new().name("taper-load".into()).spawn(move || {
        let result = load(args, &loading_state);
        if let Err(error) = &result {
            loading_state.set_failed(format!("{error:#}"));
        }
        // Nobody is waiting any more when the server has stopped in the meantime.
        loaded_sender.send(result).ok();
    })?;

    let (stop, stopped) = oneshot::channel::<()>();
    let watched = state.clone();
    let server = taper_server::run(socket, state, async {
        // A sender that is dropped stops the server as well.
        stopped.await.ok();
    });
    // The socket's file goes when the last answer has gone.
    let listening_at = &address;
    let control = async move {
        let outcome = tokio::select! {
            loaded = loaded => match loaded {
                Ok(Ok(())) => {
                    announce(listening_at);
                    until_stopped(&mut signals, watched.crashed()).await
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Err(anyhow::anyhow!("loading the model crashed; the message above says where")),
            },
            name = signals.recv() => {
                output::status(&format!("{name} received while loading: stopping"));
                Ok(())
            }
        };
        tokio::spawn(async move {
            output::status(&format!("{} received again: stopping at once", signals.recv().await));
            std::process::exit(130);
        });
        drop(stop);
        outcome
    };
    let (served, outcome) = tokio::join!(server, control);
    // Sends what is left; meanwhile this thread hears a second signal.
    tokio::task::spawn_blocking(move || drop(traces)).await.ok();
    outcome?;
    served.context("the server failed")?;
    Ok(())
}

/// Waits for a signal. Where the engine has crashed before one comes, whoever supervises this program should start it anew.
async fn until_stopped(signals: &mut Signals, crashed: impl Future<Output = ()>) -> Result<()> {
    tokio::select! {
        name = signals.recv() => {
            output::status(&format!("{name} received: finishing the running requests; again stops at once"));
            Ok(())
        }
        () = crashed => bail!("the engine crashed; the log above says where"),
    }
}

/// Finds all models and loads the first.
fn load(args: Box<ServeArgs>, state: &ServerState) -> Result<()> {
    let told = state.clone();
    let progress = Bars::with_listener(move |text| told.set_loading_reason(text));
    let Prepared { models, limits, loader } = models::prepare(args, &progress)?;
    if let [_, others @ ..] = &models[..]
        && !others.is_empty()
    {
        let names: Vec<&str> = others.iter().map(|model| model.id.as_str()).collect();
        output::status(&format!("loaded when they are asked for: {}", names.join(", ")));
    }
    state.declare(models, limits, Arc::new(loader));
    state.load_first().map_err(anyhow::Error::msg)
}

/// Two servers of one fingerprint and one model give the same answer to the same seed, unless the class of arithmetic says that
/// it may depend on what else was computed ([`taper_kernels::cuda::NUMERICS_CLASS_BY_ROWS`]).
fn fingerprint(args: &ModelArgs, numerics_class: &str) -> Result<String> {
    let mut parts = vec!["taper".to_owned(), env!("CARGO_PKG_VERSION").to_owned()];
    parts.extend(Some(env!("TAPER_COMMIT").to_owned()).filter(|commit| commit != "unknown"));
    parts.extend(args.quantization().map(|quantization| quantization.name().to_owned()));
    let stored = args.kv_dtype()?;
    if stored != KvKind::default_of(args.device.device) {
        parts.push(format!("kv_{}", KvKind::name_of(stored)));
    }
    parts.push(numerics_class.to_owned());
    Ok(parts.join("-"))
}

/// Where the server listens.
enum Address {
    Http(SocketAddr),
    Https(SocketAddr),
    Unix { path: PathBuf, is_encrypted: bool, _file: SocketFile },
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Http(address) => write!(f, "http://{address}"),
            Address::Https(address) => write!(f, "https://{address}"),
            Address::Unix { path, .. } => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Listens where the arguments say.
async fn open_socket(args: &ServeArgs, is_encrypted: bool) -> Result<(Socket, Address)> {
    if let Some(path) = &args.operation.unix_socket {
        let (listener, file) = unix_socket::listen(path)?;
        return Ok((listener.into(), Address::Unix { path: path.clone(), is_encrypted, _file: file }));
    }
    let listener = listen(&args.host, args.port).await?;
    let address = listener.local_addr()?;
    let address = if is_encrypted { Address::Https(address) } else { Address::Http(address) };
    Ok((listener.into(), address))
}

/// From now on SIGHUP reads keys and certificate again; it never ends the server.
fn reload_on_hangup(state: ServerState) -> Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let state = state.clone();
            // It reads files. A panic there is in the log.
            let _ = tokio::task::spawn_blocking(move || state.reload()).await;
        }
    });
    Ok(())
}

fn announce(address: &Address) {
    let url = match address {
        Address::Http(address) => format!("http://{}", reachable(*address)),
        Address::Https(address) => format!("https://{}", reachable(*address)),
        Address::Unix { path, is_encrypted, .. } => {
            let scheme = if *is_encrypted { "https" } else { "http" };
            format!("--unix-socket {} {scheme}://localhost", path.display())
        }
    };
    output::status(&format!(
        "try:\n  curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{{\"stream\": true, \"messages\": [{{\"role\": \"user\", \"content\": \"Name three colours.\"}}]}}'",
    ));
}

/// Host and port for a client on this machine.
fn reachable(address: SocketAddr) -> String {
    // What listens everywhere is reached here by this machine's own name.
    if address.ip().is_unspecified() { format!("localhost:{}", address.port()) } else { address.to_string() }
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next one; its name.
    async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::load;
    use clap::Parser;
    use taper_engine::stub::{StubRunner, stub_limits};
    use taper_engine::{Engine, EngineConfig, Request};
    use taper_testkit::tiny::TinyModel;

    #[test]
    fn a_crash_of_the_engine_ends_the_wait_with_an_error() {
        let file = tempfile::NamedTempFile::new().expect("there is room");
        std::fs::write(file.path(), TinyModel::default().to_gguf()).expect("there is room");
        let checkpoint = load::open(file.path()).expect("it is sound");
        let tokenizer = load::tokenizer(&checkpoint).expect("it is sound");
        let runner = StubRunner::new(stub_limits(tokenizer.vocab_size()), |_| 0).dying_at(0);
        let engine = Engine::start(Box::new(runner), Arc::clone(&tokenizer), EngineConfig::default());
        let _events = engine.submit(Request { prompt_tokens: vec![1], ..Request::default() }).expect("it is taken");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it starts");
        let error =
            runtime.block_on(async { until_stopped(&mut Signals::new().expect("it listens"), engine.drained()).await });
        assert!(error.is_err_and(|error| error.to_string().contains("crashed")));
    }

    #[test]
    fn the_fingerprint_names_build_and_arithmetic() {
        let of = |flags: &str| {
            let Ok(Cli { command: Command::Serve(args), .. }) =
                Cli::try_parse_from(["taper", "serve"].into_iter().chain(flags.split_whitespace()))
            else {
                panic!("{flags} is not understood")
            };
            fingerprint(&args.model, "a-class").expect("it can be had")
        };
        let plain = of("");
        assert!(plain.starts_with(concat!("taper-", env!("CARGO_PKG_VERSION"))), "{plain}");
        assert!(plain.ends_with("-a-class") && !plain.contains("unknown"), "{plain}");
        let begin = plain.strip_suffix("a-class").expect("seen above");
        assert_eq!(of("--kv-cache-dtype q8_0"), format!("{begin}kv_q8_0-a-class"));
        assert_eq!(of("--kv-cache-dtype f16"), plain, "the default");
        assert_eq!(of("--device cuda --quantization fp8 --kv-cache-dtype f16"), format!("{begin}fp8-kv_f16-a-class"));
    }
}
