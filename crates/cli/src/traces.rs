//! Traces of requests for an OpenTelemetry collector, in programs that are built with the feature `otlp`. The others know the flag
//! and say what it needs.

use crate::args::OperationArgs;
use crate::output;
use anyhow::Result;
use taper_server::ServerConfig;

/// What sends traces, where they are wanted.
#[cfg(feature = "otlp")]
pub(crate) struct Traces(Option<taper_otlp::Exporter>);

#[cfg(feature = "otlp")]
impl Traces {
    /// Has a server of this configuration traced, where a flag or OpenTelemetry's own variables ask for it.
    ///
    /// # Errors
    /// When one of them says what cannot be done.
    pub(crate) fn start(args: &OperationArgs, config: &mut ServerConfig) -> Result<Traces> {
        use anyhow::Context;
        let endpoint = args.otlp_endpoint.as_deref();
        if endpoint.is_none() && !taper_otlp::names_collector() {
            return Ok(Traces(None));
        }
        let exporter = taper_otlp::Exporter::start(endpoint).context("--otlp-endpoint")?;
        config.on_request = Some(exporter.listener());
        Ok(Traces(Some(exporter)))
    }

    /// Says where traces go.
    pub(crate) fn announce(&self) {
        if let Some(exporter) = &self.0 {
            output::status(&format!("traces are sent to {}", exporter.endpoint()));
        }
    }
}

/// How to build a program that has them.
#[cfg(not(feature = "otlp"))]
const HOW: &str = "this program is built without traces; `cargo build --release --features otlp` builds one with them";

/// Nothing: no traces are sent.
#[cfg(not(feature = "otlp"))]
pub(crate) struct Traces;

#[cfg(not(feature = "otlp"))]
impl Traces {
    /// Refuses the flag.
    #[allow(clippy::needless_pass_by_ref_mut, reason = "a program with traces has its configuration changed here")]
    pub(crate) fn start(args: &OperationArgs, _: &mut ServerConfig) -> Result<Traces> {
        match &args.otlp_endpoint {
            None => Ok(Traces),
            Some(_) => Err(anyhow::anyhow!("--otlp-endpoint: {HOW}")),
        }
    }

    /// Says that variables ask in vain. They may be there for every program of a machine, so they are no reason not to serve.
    #[allow(clippy::unused_self, reason = "a program with traces knows where they go")]
    pub(crate) fn announce(&self) {
        for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
            if std::env::var_os(name).is_some_and(|value| !value.is_empty()) {
                output::status(&format!("{name} is set, and {HOW}"));
            }
        }
    }
}
