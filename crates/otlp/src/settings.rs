//! Where traces are sent and under which name: the caller's endpoint, and OpenTelemetry's variables.

use std::time::Duration;

use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;

use crate::client::{Client, LastError};

/// Where the collector takes traces, at the endpoint that all kinds of data share.
const PATH: &str = "/v1/traces";
/// How long a batch may take, tries again included, where no variable says.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What keeps traces from being sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSetting(pub(crate) String);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Whether OpenTelemetry's variables name a collector, and none of them turns that off.
pub fn names_collector() -> bool {
    let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
    !is_off && of_variables().is_some()
}

/// The traces' own endpoint is used as it is, the one of all kinds of data with a path behind it.
fn of_variables() -> Option<String> {
    let common = || variable("OTEL_EXPORTER_OTLP_ENDPOINT").map(|base| with_path(&base));
    variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(common)
}

fn with_path(base: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") }
}

/// The whole URL.
pub(crate) fn endpoint(given: Option<&str>) -> Result<String, InvalidSetting> {
    let endpoint = given.map(with_path).or_else(of_variables);
    let missing = || InvalidSetting("no endpoint of a collector is given, such as http://localhost:4318".to_owned());
    let endpoint = endpoint.ok_or_else(missing)?;
    let rest = ["http://", "https://"].iter().find_map(|scheme| endpoint.strip_prefix(scheme));
    match rest.and_then(|rest| rest.split('/').next()) {
        // The endpoint stands in the log.
        Some(authority) if authority.contains('@') => {
            let message =
                "a collector's endpoint has no user and password; OTEL_EXPORTER_OTLP_HEADERS has a place for them";
            Err(InvalidSetting(message.to_owned()))
        }
        Some(authority) if !authority.is_empty() => Ok(endpoint),
        _ => {
            let message = format!("a collector's endpoint must be a URL such as http://localhost:4318, got {endpoint}");
            Err(InvalidSetting(message))
        }
    }
}

/// What sends spans to `endpoint`, and where it says why it could not.
pub(crate) fn exporter(endpoint: &str) -> Result<(SpanExporter, LastError), InvalidSetting> {
    for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
        if let Some(protocol) = variable(name).filter(|protocol| protocol != "http/protobuf") {
            let message = format!("{name} must be http/protobuf, the only protocol here, got {protocol}");
            return Err(InvalidSetting(message));
        }
    }
    let (timeout, last_error) = (timeout()?, LastError::default());
    let builder = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new(timeout, last_error.clone()))
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(timeout)
        .with_endpoint(endpoint);
    let mut exporter = builder.build().map_err(|error| InvalidSetting(format!("traces cannot be sent: {error}")))?;
    exporter.set_resource(&resource());
    Ok((exporter, last_error))
}

fn timeout() -> Result<Duration, InvalidSetting> {
    for name in ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"] {
        if let Some(text) = variable(name) {
            let milliseconds = text.trim().parse().ok().filter(|milliseconds| *milliseconds > 0);
            let invalid = || InvalidSetting(format!("{name} must be a number of milliseconds, got {text}"));
            return Ok(Duration::from_millis(milliseconds.ok_or_else(invalid)?));
        }
    }
    Ok(TIMEOUT)
}

/// This server: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, else `taper`.
fn resource() -> Resource {
    let name = "service.name";
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let is_named = variable("OTEL_SERVICE_NAME").is_some()
        || attributes.split(',').any(|attribute| attribute.split('=').next().is_some_and(|key| key.trim() == name));
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = Resource::builder().with_attribute(version);
    if is_named { builder.build() } else { builder.with_service_name("taper").build() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_and_gets_the_path_of_traces() {
        for (given, expected) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
            ("https://collector.example/otlp", "https://collector.example/otlp/v1/traces"),
            ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
        ] {
            assert_eq!(endpoint(Some(given)).unwrap(), expected);
        }
        for given in ["localhost:4318", "http://", "grpc://localhost:4317", ""] {
            let error = endpoint(Some(given)).unwrap_err().to_string();
            assert!(error.contains("http://localhost:4318"), "{given}: {error}");
        }
        let error = endpoint(Some("https://me:sesame@collector.example")).unwrap_err().to_string();
        assert!(error.contains("OTEL_EXPORTER_OTLP_HEADERS") && !error.contains("sesame"), "{error}");
    }
}
